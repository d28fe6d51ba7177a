"""Which energy sensors a machine has, on trees of machines that are not at hand."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from machine_trees import (
    AMD_LAPTOP,
    JETSON_AGX_XAVIER,
    JETSON_NANO,
    JETSON_ORIN,
    JETSON_XAVIER_NX,
    LAPTOP,
    RASPBERRY_PI,
    TREES,
    VIRTUAL_MACHINE,
    Tree,
    write_tree,
)

from stepscope.errors import MachineError
from stepscope.hardware.energy import find_sensors
from stepscope.records.energy_readings import widest

ZONE = "sys/class/powercap/intel-rapl:0"


def domains(tree: Tree, folder: Path) -> dict[str, float]:
    found = find_sensors(write_tree(tree, folder))
    return {sensor.domain: sensor.read() for sensor in found.working}


@pytest.mark.parametrize(
    ("tree", "wanted_w"),
    [
        (JETSON_NANO, {"POM_5V_IN": 2.875, "POM_5V_GPU": 0.12, "POM_5V_CPU": 0.48}),
        (JETSON_XAVIER_NX, {"VDD_IN": 4.5, "VDD_CPU_GPU_CV": 0.8, "VDD_SOC": 1.2}),
        (JETSON_ORIN, {"VDD_IN": 4.4, "VDD_CPU_GPU_CV": 0.6, "VDD_SOC": 1.35}),
        (
            JETSON_AGX_XAVIER,
            {"GPU": 0.3, "CPU": 0.61, "SOC": 1.53, "CV": 0.0, "VDDRQ": 0.46, "SYS5V": 2.39},
        ),
    ],
    ids=lambda given: getattr(given, "name", ""),
)
def test_a_board_tells_the_power_of_its_rails(tree, wanted_w, tmp_path):
    assert domains(tree, tmp_path) == pytest.approx(wanted_w)


def taken(tree: Tree, folder: Path) -> list[str]:
    """Return the domains whose powers are added."""
    sensors = find_sensors(write_tree(tree, folder)).working
    return sorted(widest({sensor.domain: sensor.contains for sensor in sensors}))


def test_a_boards_input_is_not_added_to_its_rails_and_rails_without_an_input_are(tmp_path):
    assert taken(JETSON_NANO, tmp_path) == ["POM_5V_IN"]
    assert taken(JETSON_AGX_XAVIER, tmp_path) == ["CPU", "CV", "GPU", "SOC", "SYS5V", "VDDRQ"]


def test_a_laptop_tells_joules_by_zone_and_its_drain_by_battery(tmp_path):
    assert domains(LAPTOP, tmp_path) == pytest.approx(
        {
            "package-0": 104857.6,
            "package-0 core": 52428.8,
            "package-0 uncore": 1048.576,
            "psys": 209715.2,
            "battery": 8.3,
        }
    )


def test_a_battery_on_mains_is_refused_with_the_reason(tmp_path):
    status = {"sys/class/power_supply/BAT0/status": "Charging\n"}
    found = find_sensors(write_tree(replace(LAPTOP, files={**LAPTOP.files, **status}), tmp_path))
    assert "is charging" in found.refused["battery BAT0"]
    assert all(sensor.domain != "battery" for sensor in found.working)


def test_a_battery_without_power_tells_it_by_current_and_voltage(tmp_path):
    below = "sys/class/power_supply/BAT0"
    files = {f"{below}/type": "Battery", f"{below}/status": "Discharging"}
    files |= {f"{below}/current_now": "-1500000", f"{below}/voltage_now": "12000000"}
    assert domains(Tree("old", "", files), tmp_path) == pytest.approx({"battery": 18.0})


@pytest.mark.parametrize("tree", [RASPBERRY_PI, VIRTUAL_MACHINE], ids=lambda tree: tree.name)
def test_a_machine_without_sensors_says_where_was_looked(tree, tmp_path):
    found = find_sensors(write_tree(tree, tmp_path))
    assert (found.working, found.refused) == ((), {})
    for family in ("NVML", "RAPL", "rails", "battery"):
        assert family in found.why_none


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_every_sensor_reads_as_a_number_and_has_a_name_that_fits_a_table(tree, tmp_path):
    for sensor in find_sensors(write_tree(tree, tmp_path)).working:
        assert sensor.read() >= 0
        assert not set(sensor.name) & set(",\n\"'")
        assert sensor.describe()["kind"] in ("counter", "power")


@pytest.mark.parametrize("text", ["garbage\n", "", "12 13\n", "1e400\n", "\0\0"])
def test_garbage_in_a_counter_is_refused_and_named(text, tmp_path):
    files = {f"{ZONE}/name": "package-0\n", f"{ZONE}/energy_uj": text}
    found = find_sensors(write_tree(Tree("broken", "", files), tmp_path))
    assert found.working == ()
    assert "energy_uj" in found.refused["rapl intel-rapl:0 package-0"]
    assert "energy_uj" in found.why_none


def test_a_counter_that_is_gone_or_is_no_file_raises_with_its_path(tmp_path):
    root = write_tree(LAPTOP, tmp_path)
    package = next(each for each in find_sensors(root).working if each.domain == "package-0")
    (root / ZONE / "energy_uj").unlink()
    with pytest.raises(MachineError, match=r"energy_uj does not exist"):
        package.read()
    (root / ZONE / "energy_uj").mkdir()
    with pytest.raises(MachineError, match="cannot be read"):
        package.read()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_counter_for_root_alone_says_so(tmp_path):
    root = write_tree(LAPTOP, tmp_path)
    (root / ZONE / "energy_uj").chmod(0)
    assert "only root can read" in find_sensors(root).refused["rapl intel-rapl:0 package-0"]


def test_a_rail_of_an_unknown_board_is_read_and_never_added(tmp_path):
    chip = "sys/class/hwmon/hwmon4"
    files = {f"{chip}/name": "ina226\n", f"{chip}/power1_input": "2500000\n"}
    (sensor,) = find_sensors(write_tree(Tree("bare", "", files), tmp_path)).working
    assert (sensor.read(), sensor.addable) == (2.5, False)


def test_the_power_of_an_apu_has_its_processor_in_it_and_a_cards_has_not(tmp_path):
    assert taken(AMD_LAPTOP, tmp_path) == ["apu hwmon3"]
    card = {"sys/class/hwmon/hwmon5/name": "amdgpu\n"}
    card |= {"sys/class/hwmon/hwmon5/power1_average": "60000000\n"}
    both = replace(AMD_LAPTOP, name="both", files={**AMD_LAPTOP.files, **card})
    assert taken(both, tmp_path) == ["apu hwmon3", "gpu hwmon5"]
    (chip,) = (name for name in AMD_LAPTOP.files if name.endswith("power1_input"))
    without = {name: text for name, text in AMD_LAPTOP.files.items() if name != chip}
    silent = replace(AMD_LAPTOP, name="silent", files=without)
    assert taken(silent, tmp_path) == ["package-0"]


def test_the_voltage_over_the_shunts_is_no_rail(tmp_path):
    chip = "sys/class/hwmon/hwmon0"
    files = {f"{chip}/name": "ina3221\n", f"{chip}/in7_label": "sum of shunt voltages\n"}
    files |= {f"{chip}/in7_input": "12\n"}
    assert domains(Tree("orin", "", files), tmp_path) == {}
