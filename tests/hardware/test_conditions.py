"""What a machine says of its state, on trees of machines that are not at hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_trees import (
    JETSON_AGX_XAVIER,
    JETSON_NANO,
    JETSON_ORIN,
    JETSON_XAVIER_NX,
    LAPTOP,
    RASPBERRY_PI,
    TREES,
    Tree,
    write_tree,
)

from stepscope.hardware.conditions import describe_conditions, describe_end, read_conditions
from stepscope.hardware.host import swap_areas
from stepscope.hardware.jetson import (
    JETPACKS,
    board,
    mode_number,
    power_mode,
    power_modes,
    protocol_mode,
    tegra_release,
)
from stepscope.hardware.thermal import temperature_c, throttled

# board, power mode, governor, clocks, fan, turbo
KNOWN = {
    "jetson-nano": "NVIDIA Jetson Nano Developer Kit, MAXN, schedutil, scaling, 0, None",
    "jetson-xavier-nx": (
        "NVIDIA Jetson Xavier NX Developer Kit, MODE_10W_2CORE, schedutil, scaling, 0, None"
    ),
    "jetson-agx-xavier": "Jetson-AGX, MODE_15W, schedutil, scaling, 0, None",
    "jetson-orin": "NVIDIA Jetson Orin Nano Developer Kit, 7W, schedutil, scaling, 66, None",
    "laptop": ("LENOVO 20XW0055GE (ThinkPad X1 Carbon Gen 9), None, powersave, scaling, None, on"),
    "amd-laptop": "LENOVO 21CF004PGE, None, powersave, scaling, None, None",
    "raspberry-pi": "Raspberry Pi 4 Model B Rev 1.4, None, ondemand, scaling, None, None",
    "virtual-machine": "QEMU Standard PC (Q35 + ICH9, 2009), None, None, None, None, None",
}


def name_of(tree: object) -> str | None:
    return tree.name if isinstance(tree, Tree) else None


@pytest.mark.parametrize("tree", TREES, ids=name_of)
def test_a_machine_tells_its_state_and_why_it_does_not(tmp_path, tree):
    root = write_tree(tree, tmp_path)
    found = read_conditions(root)
    names = ("board", "power_mode", "governor", "clocks", "fan", "turbo")
    assert ", ".join(str(found[name].value) for name in names) == KNOWN[tree.name]
    described = describe_conditions(root)
    missing = {name for name, value in described.items() if value is None}
    assert missing <= described["absent"].keys()
    assert all(described["absent"].values())


@pytest.mark.parametrize(
    ("tree", "release", "jetpack", "mode"),
    [
        (JETSON_NANO, "32.5.0", "4.5", "MAXN"),
        (JETSON_XAVIER_NX, "32.6.1", "4.6", "MODE_15W_6CORE"),
        (JETSON_AGX_XAVIER, "32.4.3", "4.4", "MAXN"),
        (JETSON_ORIN, "35.4.1", "5.1.2", "15W"),
        (LAPTOP, None, None, None),
    ],
    ids=name_of,
)
def test_a_jetson_has_its_software_and_the_power_mode_of_the_protocol(
    tmp_path, tree, release, jetpack, mode
):
    root = write_tree(tree, tmp_path)
    assert tegra_release(root).value == release
    assert JETPACKS.get(release) == jetpack
    assert protocol_mode(root) == mode


def test_a_power_mode_that_nobody_has_set_is_the_default_and_garbage_is_shown(tmp_path):
    root = write_tree(JETSON_XAVIER_NX, tmp_path)
    status = root / "var/lib/nvpmodel/status"
    status.unlink()
    assert power_mode(root).value == "MODE_10W_2CORE"
    status.write_text("what?")
    assert "found 'what?'" in (power_mode(root).reason or "")


@given(st.text(max_size=80))
def test_any_text_in_the_place_of_power_modes_is_survived(tmp_path_factory, text):
    root = tmp_path_factory.getbasetemp() / "any-modes"
    for name in ("etc/nvpmodel.conf", "var/lib/nvpmodel/status", "proc/swaps"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8", errors="replace")
    number = mode_number(root)
    assert (number.value is None) != (number.reason is None)
    assert isinstance(power_modes(root), dict)
    swap_areas(root)


def test_cpus_with_different_governors_name_them_all(tmp_path):
    root = write_tree(RASPBERRY_PI, tmp_path)
    (root / "sys/devices/system/cpu/cpufreq/policy1/scaling_governor").write_text("powersave\n")
    assert read_conditions(root)["governor"].value == "ondemand+powersave"


def test_a_clock_that_is_garbage_leaves_the_clocks_unknown(tmp_path):
    root = write_tree(RASPBERRY_PI, tmp_path)
    policies = root / "sys/devices/system/cpu/cpufreq"
    for file in policies.glob("policy*/scaling_min_freq"):
        file.write_text("1500000\n")
    assert read_conditions(root)["clocks"].value == "fixed"
    (policies / "policy2/scaling_max_freq").write_text("<unknown>\n")
    found = read_conditions(root)["clocks"]
    assert found.value is None
    assert "<unknown>" in (found.reason or "")


def test_the_hottest_zone_of_the_chip_is_taken_and_no_regulator_or_absurd_reading(tmp_path):
    nano = write_tree(JETSON_NANO, tmp_path / "nano")  # its PMIC-Die always says 100
    assert temperature_c(nano).value == 38.0
    root = write_tree(RASPBERRY_PI, tmp_path / "pi")
    (root / "sys/class/thermal/thermal_zone0/temp").write_text("-256000\n")
    assert temperature_c(root).value is None


def test_of_zones_of_one_type_the_hottest_counts(tmp_path):
    root = write_tree(LAPTOP, tmp_path)
    for number, celsius in enumerate((91, 45)):
        zone = root / f"sys/class/thermal/thermal_zone{number}"
        (zone / "type").write_text("x86_pkg_temp\n")
        (zone / "temp").write_text(f"{celsius}000\n")
    assert temperature_c(root).value == 91.0


def test_throttling_is_counted_where_the_system_counts(tmp_path):
    assert throttled(write_tree(LAPTOP, tmp_path)).value == 12 + 40
    assert throttled(write_tree(RASPBERRY_PI, tmp_path)).value is None


def test_a_throttling_count_that_grows_is_seen_below_a_larger_one(tmp_path):
    root = write_tree(LAPTOP, tmp_path)
    # Of two packages, the second of two CPUs; both of these tell the package's count.
    for number, package, core, of_package in ((0, 0, 12, 40), (1, 1, 5, 7), (2, 1, 0, 7)):
        cpu = root / f"sys/devices/system/cpu/cpu{number}"
        for folder in ("topology", "thermal_throttle"):
            (cpu / folder).mkdir(parents=True, exist_ok=True)
        (cpu / "topology/physical_package_id").write_text(f"{package}\n")
        (cpu / "thermal_throttle/core_throttle_count").write_text(f"{core}\n")
        (cpu / "thermal_throttle/package_throttle_count").write_text(f"{of_package}\n")
    assert throttled(root).value == 12 + 40 + 5 + 7
    (root / "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count").write_text("6\n")
    assert throttled(root).value == 12 + 40 + 6 + 7


def test_what_changes_during_a_run_is_in_its_record(tmp_path):
    root = write_tree(RASPBERRY_PI, tmp_path)
    before = describe_conditions(root)
    governors = (root / "sys/devices/system/cpu/cpufreq").glob("policy*/scaling_governor")
    for file in governors:
        file.write_text("powersave\n")
    (root / "sys/class/thermal/thermal_zone0/temp").write_text("71000\n")
    after = describe_end(before, root)
    assert after["changed"] == {"governor": {"start": "ondemand", "end": "powersave"}}
    assert after["temperature_c"] == {"start": 52.1, "end": 71.0}
    (root / "sys").rename(tmp_path / "gone")  # a change too, and no fault
    after = describe_end(before, root)
    assert after["changed"]["governor"] == {"start": "ondemand", "end": None}


def test_a_machine_without_a_name_says_so(tmp_path):
    assert "no name" in (board(tmp_path).reason or "")
