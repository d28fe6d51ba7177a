"""Trees of `/proc`, `/sys` and `/etc` that stand in for machines which are not at hand.

None was recorded from a machine: each is written from documentation and public dumps, which its
`source` names, and has only the files that are read. `write_tree(JETSON_NANO, tmp_path)`
makes one; the command takes it by STEPSCOPE_SYSTEM_ROOT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tree:
    """A machine as its pseudo files: what it is, where that was read, and each file's text."""

    name: str
    source: str
    files: Mapping[str, str]


def write_tree(tree: Tree, folder: Path) -> Path:
    """Write a tree below a folder and return its root."""
    root = folder / tree.name
    for path, text in {"README": f"{tree.source}\n", **tree.files}.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return root


def files_in(folder: str, **texts: object) -> dict[str, str]:
    """Give files of one line each in a folder, by name."""
    return {f"{folder}/{name}": f"{text}\n" for name, text in texts.items()}


def cpus(
    count: int,
    governor: str,
    governors: str,
    slowest_khz: int,
    fastest_khz: int,
    *,
    online: int | None = None,
) -> dict[str, str]:
    """Give CPUs that scale their clock, each with a policy of its own; some may be offline.

    The folder of an offline CPU's policy stays, and its files can be neither read nor written:
    folders stand in their place, with what the kernel remembers in a file below.
    """
    online = count if online is None else online
    files = {"sys/devices/system/cpu/online": f"0-{online - 1}\n"}
    for number in range(count):
        policy = f"sys/devices/system/cpu/cpufreq/policy{number}"
        said = files_in(
            policy,
            scaling_governor=governor,
            scaling_available_governors=governors,
            scaling_min_freq=slowest_khz,
            scaling_max_freq=fastest_khz,
            scaling_cur_freq=slowest_khz,
        )
        below = "" if number < online else "/remembered"
        files |= {f"{name}{below}": text for name, text in said.items()}
        files[f"{policy}/affected_cpus"] = f"{number}\n" if number < online else "\n"
    return files


def thermal_zones(**celsius: float) -> dict[str, str]:
    """Give thermal zones by type; an underscore stands for a dash."""
    files = {}
    for number, (kind, degrees) in enumerate(celsius.items()):
        zone = f"sys/class/thermal/thermal_zone{number}"
        files |= files_in(zone, type=kind.replace("_", "-"), temp=round(degrees * 1000))
    return files


def memory(total_kib: int, available_kib: int) -> dict[str, str]:
    """Give a `meminfo` of the lines that are read."""
    text = f"MemTotal:       {total_kib} kB\nMemAvailable:   {available_kib} kB\n"
    return {"proc/meminfo": text}


def swaps(*areas: str) -> dict[str, str]:
    """Give `/proc/swaps` with these areas: name, type, size, used and priority."""
    lines = ["Filename\t\t\t\tType\t\tSize\tUsed\tPriority", *areas, ""]
    return {"proc/swaps": "\n".join(lines)}


def zram(count: int, size_kib: int) -> dict[str, str]:
    return swaps(*(f"/dev/zram{number}  partition\t{size_kib}\t0\t5" for number in range(count)))


def ina3221x(address: str, device: int, **milliwatts: int) -> dict[str, str]:
    """Give the rails of an INA3221 as the 4.9 kernels of L4T 32 show them."""
    below = f"sys/bus/i2c/drivers/ina3221x/{address}/iio:device{device}"
    names = {f"rail_name_{channel}": rail for channel, rail in enumerate(milliwatts)}
    powers = {f"in_power{channel}_input": mw for channel, mw in enumerate(milliwatts.values())}
    return files_in(below, **names, **powers)


def ina3221_hwmon(address: str, hwmon: int, **milliamperes: int) -> dict[str, str]:
    """Give the rails of an INA3221 as hwmon of newer kernels shows them, at 5 V each."""
    below = f"sys/bus/i2c/drivers/ina3221/{address}/hwmon/hwmon{hwmon}"
    texts: dict[str, object] = {"name": "ina3221"}
    for channel, (rail, current_ma) in enumerate(milliamperes.items(), start=1):
        texts |= {f"in{channel}_label": rail, f"in{channel}_input": 5000}
        texts[f"curr{channel}_input"] = current_ma
    return files_in(below, **texts)


def rapl(zone: str, name: str, energy_uj: int, range_uj: int) -> dict[str, str]:
    texts = {"name": name, "energy_uj": energy_uj, "max_energy_range_uj": range_uj}
    return files_in(f"sys/class/powercap/intel-rapl:{zone}", **texts)


def jetson(model: str, release: str, current: int, default: int, **modes: int) -> dict[str, str]:
    """Give what a Jetson says of itself, and `nvpmodel` of its modes and the one that is set."""
    known = "".join(
        f"< POWER_MODEL ID={number} NAME={name.removeprefix('_')} >\nCPU_ONLINE CORE_0 1\n\n"
        for name, number in modes.items()
    )
    return {
        "proc/device-tree/model": f"{model}\0",
        "etc/nv_tegra_release": f"# {release}, GCID: 25531747, BOARD: t210ref, EABI: aarch64\n",
        "etc/nvpmodel.conf": f"# POWER_MODEL DEFINITIONS\n{known}< PM_CONFIG DEFAULT={default} >\n",
        "var/lib/nvpmodel/status": f"pmode:{current:04d}\n",
        **clock_source("arch_sys_counter"),
    }


def clock_source(current: str, available: str | None = None) -> dict[str, str]:
    below = "sys/devices/system/clocksource/clocksource0"
    known = available or current
    return files_in(below, current_clocksource=current, available_clocksource=known)


def devfreq(name: str, slowest_hz: int, fastest_hz: int) -> dict[str, str]:
    below = f"sys/class/devfreq/{name}"
    return files_in(below, min_freq=slowest_hz, max_freq=fastest_hz, cur_freq=slowest_hz)


def memory_clock(fastest_hz: int) -> dict[str, str]:
    below = "sys/kernel/debug/bpmp/debug/clk/emc"
    return files_in(below, rate=204_000_000, max_rate=fastest_hz, mrq_rate_locked=0)


_TEGRA_GOVERNORS = "interactive conservative ondemand userspace powersave performance schedutil"
_OLD_FAN = files_in("sys/devices/pwm-fan", target_pwm=0, temp_control=1)
_DMI = "sys/class/dmi/id"

JETSON_NANO = Tree(
    "jetson-nano",
    "Written from NVIDIA's L4T 32.5 developer guide (power management of Jetson Nano), a public "
    "listing of /etc/nvpmodel.conf and of what `jetson_clocks --store` keeps on a Nano.",
    {
        **jetson(
            *("NVIDIA Jetson Nano Developer Kit", "R32 (release), REVISION: 5.0"),
            *(0, 0),
            MAXN=0,
            _5W=1,
        ),
        **cpus(4, "schedutil", _TEGRA_GOVERNORS, 102_000, 1_479_000),
        **devfreq("57000000.gpu", 76_800_000, 921_600_000),
        **_OLD_FAN,
        **files_in("sys/kernel/debug/clk/override.emc", clk_state=0, clk_update_rate=1_600_000_000),
        **files_in("sys/kernel/debug/tegra_bwmgr", emc_max_rate=1_600_000_000),
        **ina3221x("6-0040", 0, POM_5V_IN=2875, POM_5V_GPU=120, POM_5V_CPU=480),
        **thermal_zones(
            AO_therm=45.5, CPU_therm=38.0, GPU_therm=36.5, PLL_therm=36.0, PMIC_Die=100.0
        ),
        **memory(4_059_284, 2_700_000),
        **zram(4, 507_408),
        "proc/loadavg": "0.30 0.25 0.20 1/402 7561\n",
    },
)

JETSON_XAVIER_NX = Tree(
    "jetson-xavier-nx",
    "Written from NVIDIA's L4T 32.6 developer guide (power management of Jetson Xavier NX) and "
    "public listings of its nvpmodel modes and INA3221 rails.",
    {
        **jetson(
            *("NVIDIA Jetson Xavier NX Developer Kit", "R32 (release), REVISION: 6.1"),
            *(3, 3),
            MODE_15W_2CORE=0,
            MODE_15W_4CORE=1,
            MODE_15W_6CORE=2,
            MODE_10W_2CORE=3,
            MODE_10W_4CORE=4,
        ),
        **cpus(6, "schedutil", _TEGRA_GOVERNORS, 1_190_400, 1_420_800, online=2),
        **devfreq("17000000.gv11b", 114_750_000, 1_109_250_000),
        **_OLD_FAN,
        **memory_clock(1_600_000_000),
        **ina3221x("7-0040", 0, VDD_IN=4500, VDD_CPU_GPU_CV=800, VDD_SOC=1200),
        **thermal_zones(CPU_therm=41.0, GPU_therm=39.5, AUX_therm=39.0, AO_therm=40.0),
        **memory(7_970_528, 6_200_000),
        **zram(6, 664_208),
        "proc/loadavg": "0.12 0.10 0.05 1/388 9011\n",
    },
)

JETSON_AGX_XAVIER = Tree(
    "jetson-agx-xavier",
    "Written from NVIDIA's L4T 32.4 developer guide (power management of Jetson AGX Xavier) and "
    "public listings of its INA3221 rails.",
    {
        **jetson(
            *("Jetson-AGX", "R32 (release), REVISION: 4.3"),
            *(2, 2),
            MAXN=0,
            MODE_10W=1,
            MODE_15W=2,
            MODE_30W_ALL=3,
        ),
        **cpus(8, "schedutil", _TEGRA_GOVERNORS, 1_190_400, 2_265_600),
        **devfreq("17000000.gv11b", 114_750_000, 1_377_000_000),
        **_OLD_FAN,
        **memory_clock(2_133_000_000),
        **ina3221x("1-0040", 0, GPU=300, CPU=610, SOC=1530),
        **ina3221x("1-0041", 1, CV=0, VDDRQ=460, SYS5V=2390),
        **thermal_zones(CPU_therm=36.5, GPU_therm=35.0, AUX_therm=35.5, AO_therm=36.0),
        **memory(32_688_048, 29_000_000),
        **swaps(),
        "proc/loadavg": "0.02 0.01 0.00 1/410 5120\n",
    },
)

JETSON_ORIN = Tree(
    "jetson-orin",
    "Written from NVIDIA's Jetson Linux 35.4 and 36 developer guides (Jetson Orin Nano and NX, AGX "
    "Orin: power, INA3221 by hwmon, pwm-fan by hwmon).",
    {
        **jetson(
            *("NVIDIA Jetson Orin Nano Developer Kit", "R35 (release), REVISION: 4.1"),
            *(1, 0),
            _15W=0,
            _7W=1,
        ),
        **cpus(6, "schedutil", "ondemand performance schedutil", 115_200, 1_510_400),
        **devfreq("17000000.ga10b", 306_000_000, 624_750_000),
        **files_in("sys/devices/platform/pwm-fan/hwmon/hwmon2", name="pwmfan", pwm1=66),
        **memory_clock(2_133_000_000),
        **ina3221_hwmon("1-0040", 3, VDD_IN=880, VDD_CPU_GPU_CV=120, VDD_SOC=270),
        **thermal_zones(cpu_thermal=48.2, gpu_thermal=47.0, soc0_thermal=46.5, tj_thermal=48.2),
        **memory(7_802_000, 5_900_000),
        **zram(6, 650_166),
        "proc/loadavg": "0.40 0.31 0.22 1/502 4411\n",
    },
)

LAPTOP = Tree(
    "laptop",
    "Written from the kernel's documentation of intel_pstate, powercap (intel-rapl), "
    "power_supply and the ABI of thermal_throttle.",
    {
        **files_in(_DMI, sys_vendor="LENOVO", product_name="20XW0055GE"),
        **files_in(_DMI, product_family="ThinkPad X1 Carbon Gen 9"),
        **cpus(8, "powersave", "performance powersave", 400_000, 4_700_000),
        **files_in("sys/devices/system/cpu/intel_pstate", no_turbo=0),
        **files_in(
            "sys/devices/system/cpu/cpu0/thermal_throttle",
            core_throttle_count=12,
            package_throttle_count=40,
        ),
        **rapl("0", "package-0", 104_857_600_000, 262_143_328_850),
        **rapl("0:0", "core", 52_428_800_000, 262_143_328_850),
        **rapl("0:1", "uncore", 1_048_576_000, 262_143_328_850),
        **rapl("1", "psys", 209_715_200_000, 262_143_328_850),
        **files_in("sys/class/power_supply/AC", type="Mains", online=0),
        **files_in(
            "sys/class/power_supply/BAT0", type="Battery", status="Discharging", power_now=8300000
        ),
        **thermal_zones(acpitz=47.0, x86_pkg_temp=51.0),
        **clock_source("tsc", "tsc hpet acpi_pm"),
        **memory(16_077_004, 9_500_000),
        **swaps("/dev/nvme0n1p3                          partition\t8388604\t1048576\t-2"),
        "proc/loadavg": "3.80 2.10 1.40 2/1440 81231\n",
    },
)

AMD_LAPTOP = Tree(
    "amd-laptop",
    "Written from the kernel's documentation of amdgpu (hwmon: `vddnb` is of APUs alone, whose "
    "power includes the CPU), of amd-pstate and of powercap, where AMD's zones are Intel's too.",
    {
        **files_in(_DMI, sys_vendor="LENOVO", product_name="21CF004PGE"),
        **cpus(16, "powersave", "performance powersave", 400_000, 4_768_000),
        **rapl("0", "package-0", 20_971_520_000, 65_532_610_987),
        **rapl("0:0", "core", 5_242_880_000, 65_532_610_987),
        **files_in("sys/class/hwmon/hwmon3", name="amdgpu", in0_label="vddgfx", in1_label="vddnb"),
        **files_in("sys/class/hwmon/hwmon3", power1_label="PPT", power1_input=9_100_000),
        **thermal_zones(acpitz=49.0),
        **clock_source("tsc", "tsc hpet acpi_pm"),
        **memory(15_500_000, 11_000_000),
        **swaps(),
        "proc/loadavg": "0.50 0.40 0.30 1/900 5120\n",
    },
)

RASPBERRY_PI = Tree(
    "raspberry-pi",
    "Written from Raspberry Pi's documentation (vcgencmd get_throttled, config.txt) and the "
    "kernel's raspberrypi-hwmon and cpufreq-dt drivers.",
    {
        "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
        **cpus(4, "ondemand", _TEGRA_GOVERNORS.removeprefix("interactive "), 600_000, 1_500_000),
        **files_in("sys/class/hwmon/hwmon1", name="rpi_volt", in0_lcrit_alarm=0),
        **thermal_zones(cpu_thermal=52.1),
        **clock_source("arch_sys_counter"),
        **memory(3_884_316, 3_300_000),
        **swaps("/var/swap                               file\t\t102396\t0\t-2"),
        "proc/loadavg": "0.00 0.01 0.05 1/180 2210\n",
    },
)

VIRTUAL_MACHINE = Tree(
    "virtual-machine",
    "Written from what a KVM guest without cpufreq, powercap, hwmon and thermal zones shows.",
    {
        **files_in(_DMI, sys_vendor="QEMU", product_name="Standard PC (Q35 + ICH9, 2009)"),
        "sys/devices/system/cpu/online": "0-1\n",
        **clock_source("kvm-clock", "kvm-clock tsc"),
        **memory(8_148_000, 7_000_000),
        **swaps(),
        "proc/loadavg": "0.00 0.00 0.00 1/120 900\n",
        "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu sse2 hypervisor lahf_lm\n",
    },
)

JETSONS = (JETSON_NANO, JETSON_XAVIER_NX, JETSON_AGX_XAVIER, JETSON_ORIN)
TREES = (*JETSONS, LAPTOP, AMD_LAPTOP, RASPBERRY_PI, VIRTUAL_MACHINE)


_NVPMODEL = """#!/bin/sh
# Sets the mode in the tree that it lies in, as the real one does in its own system. A mode that
# names its cores takes the others offline.
[ "$1" = -m ] || exit 2
cd "$(dirname "$0")/../.." || exit 1
printf 'pmode:%04d\\n' "$2" > var/lib/nvpmodel/status
cores=$(sed -n "s/^< POWER_MODEL ID=$2 NAME=.*_\\([0-9]*\\)CORE >/\\1/p" etc/nvpmodel.conf)
[ -n "$cores" ] || exit 0
cd sys/devices/system/cpu || exit 1
echo "0-$((cores - 1))" > online
for policy in cpufreq/policy*; do
    number=${policy##*policy}
    if [ "$number" -lt "$cores" ]; then echo "$number"; else echo; fi > "$policy/affected_cpus"
    for file in "$policy"/scaling_*; do
        if [ "$number" -lt "$cores" ] && [ -d "$file" ]; then
            mv "$file/remembered" "$file.now" && rmdir "$file" && mv "$file.now" "$file"
        elif [ "$number" -ge "$cores" ] && [ -f "$file" ]; then
            mv "$file" "$file.now" && mkdir "$file" && mv "$file.now" "$file/remembered"
        fi
    done
done
"""


def add_nvpmodel(root: Path) -> None:
    """Put a stand-in for NVIDIA's `nvpmodel` into a tree, which sets that tree's mode alone."""
    program = root / "usr/sbin/nvpmodel"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(_NVPMODEL, encoding="utf-8")
    program.chmod(0o755)
