"""Trees of `/proc`, `/sys` and `/etc` that stand in for machines which are not at hand.

None was recorded from a machine: each is written from documentation and public dumps, which its
`source` names, and has only the files that somebody reads. `write_tree(JETSON_NANO, tmp_path)`
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


def cpus(
    count: int,
    governor: str,
    governors: str,
    slowest_khz: int,
    fastest_khz: int,
    driver: str,
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
        said = {
            "scaling_driver": driver,
            "scaling_governor": governor,
            "scaling_available_governors": governors,
            "scaling_min_freq": str(slowest_khz),
            "scaling_max_freq": str(fastest_khz),
            "scaling_cur_freq": str(slowest_khz),
            "cpuinfo_min_freq": str(slowest_khz),
            "cpuinfo_max_freq": str(fastest_khz),
        }
        below = "" if number < online else "/remembered"
        files |= {f"{policy}/{name}{below}": f"{text}\n" for name, text in said.items()}
        files[f"{policy}/affected_cpus"] = f"{number}\n" if number < online else "\n"
    return files


def thermal_zones(**celsius: float) -> dict[str, str]:
    """Give thermal zones by type; an underscore stands for a dash."""
    files = {}
    for number, (kind, degrees) in enumerate(celsius.items()):
        zone = f"sys/class/thermal/thermal_zone{number}"
        files[f"{zone}/type"] = f"{kind.replace('_', '-')}\n"
        files[f"{zone}/temp"] = f"{round(degrees * 1000)}\n"
    return files


def memory(total_kib: int, available_kib: int, swap_kib: int = 0, free_kib: int = 0) -> str:
    """Give a `meminfo` of the lines that are read."""
    return (
        f"MemTotal:       {total_kib} kB\nMemFree:        {available_kib // 2} kB\n"
        f"MemAvailable:   {available_kib} kB\n"
        f"SwapTotal:      {swap_kib} kB\nSwapFree:       {free_kib} kB\n"
    )


def ina3221x(address: str, device: int, **milliwatts: int) -> dict[str, str]:
    """Give the rails of an INA3221 as the 4.9 kernels of L4T 32 show them, at 5 V each."""
    files = {}
    below = f"sys/bus/i2c/drivers/ina3221x/{address}/iio:device{device}"
    for channel, (rail, power_mw) in enumerate(milliwatts.items()):
        files |= {
            f"{below}/rail_name_{channel}": f"{rail}\n",
            f"{below}/in_voltage{channel}_input": "5000\n",
            f"{below}/in_current{channel}_input": f"{power_mw // 5}\n",
            f"{below}/in_power{channel}_input": f"{power_mw}\n",
        }
    return files


def ina3221_hwmon(address: str, hwmon: int, **milliamperes: int) -> dict[str, str]:
    """Give the rails of an INA3221 as hwmon of newer kernels shows them, at 5 V each."""
    below = f"sys/bus/i2c/drivers/ina3221/{address}/hwmon/hwmon{hwmon}"
    files = {f"{below}/name": "ina3221\n"}
    for channel, (rail, current_ma) in enumerate(milliamperes.items(), start=1):
        files |= {
            f"{below}/in{channel}_label": f"{rail}\n",
            f"{below}/in{channel}_input": "5000\n",
            f"{below}/curr{channel}_input": f"{current_ma}\n",
        }
    return files


def power_modes(current: int, default: int, **modes: int) -> dict[str, str]:
    """Give what `nvpmodel` leaves of itself: the modes it knows and the one that is set."""
    known = "".join(
        f"< POWER_MODEL ID={number} NAME={name.removeprefix('_')} >\nCPU_ONLINE CORE_0 1\n\n"
        for name, number in modes.items()
    )
    return {
        "etc/nvpmodel.conf": f"# POWER_MODEL DEFINITIONS\n{known}< PM_CONFIG DEFAULT={default} >\n",
        "var/lib/nvpmodel/status": f"pmode:{current:04d}\n",
    }


_ARM_CLOCK = {
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "arch_sys_counter\n",
    "sys/devices/system/clocksource/clocksource0/available_clocksource": "arch_sys_counter\n",
}
_X86_CLOCK = {
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm\n",
}
_TEGRA_GOVERNORS = "interactive conservative ondemand userspace powersave performance schedutil"
_OLD_FAN = {"sys/devices/pwm-fan/target_pwm": "0\n", "sys/devices/pwm-fan/temp_control": "1\n"}


def _zram(count: int, size_kib: int) -> str:
    head = "Filename\t\t\t\tType\t\tSize\tUsed\tPriority\n"
    rows = (f"/dev/zram{n}  partition\t{size_kib}\t0\t5\n" for n in range(count))
    return head + "".join(rows)


def _devfreq(name: str, slowest_hz: int, fastest_hz: int) -> dict[str, str]:
    below = f"sys/class/devfreq/{name}"
    return {
        f"{below}/min_freq": f"{slowest_hz}\n",
        f"{below}/max_freq": f"{fastest_hz}\n",
        f"{below}/cur_freq": f"{slowest_hz}\n",
        f"{below}/governor": "nvhost_podgov\n",
    }


def _memory_clock(fastest_hz: int) -> dict[str, str]:
    below = "sys/kernel/debug/bpmp/debug/clk/emc"
    return {
        f"{below}/rate": "204000000\n",
        f"{below}/max_rate": f"{fastest_hz}\n",
        f"{below}/mrq_rate_locked": "0\n",
    }


JETSON_NANO = Tree(
    "jetson-nano",
    "Written from NVIDIA's L4T 32.5 developer guide (power management of Jetson Nano), a public "
    "listing of /etc/nvpmodel.conf and of what `jetson_clocks --store` keeps on a Nano.",
    {
        "proc/device-tree/model": "NVIDIA Jetson Nano Developer Kit\0",
        "etc/nv_tegra_release": "# R32 (release), REVISION: 5.0, GCID: 25531747, BOARD: t210ref, "
        "EABI: aarch64, DATE: Fri Jan 15 22:55:35 UTC 2021\n",
        **power_modes(0, 0, MAXN=0, _5W=1),
        **cpus(4, "schedutil", _TEGRA_GOVERNORS, 102_000, 1_479_000, "tegra-cpufreq"),
        **_devfreq("57000000.gpu", 76_800_000, 921_600_000),
        **_OLD_FAN,
        "sys/kernel/debug/clk/override.emc/clk_state": "0\n",
        "sys/kernel/debug/clk/override.emc/clk_update_rate": "1600000000\n",
        "sys/kernel/debug/tegra_bwmgr/emc_max_rate": "1600000000\n",
        **ina3221x("6-0040", 0, POM_5V_IN=2875, POM_5V_GPU=120, POM_5V_CPU=480),
        **thermal_zones(
            AO_therm=45.5, CPU_therm=38.0, GPU_therm=36.5, PLL_therm=36.0, PMIC_Die=100.0
        ),
        **_ARM_CLOCK,
        "proc/meminfo": memory(4_059_284, 2_700_000, 2_029_632, 2_029_632),
        "proc/swaps": _zram(4, 507_408),
        "proc/loadavg": "0.30 0.25 0.20 1/402 7561\n",
    },
)

JETSON_XAVIER_NX = Tree(
    "jetson-xavier-nx",
    "Written from NVIDIA's L4T 32.6 developer guide (power management of Jetson Xavier NX) and "
    "public listings of its nvpmodel modes and INA3221 rails.",
    {
        "proc/device-tree/model": "NVIDIA Jetson Xavier NX Developer Kit\0",
        "etc/nv_tegra_release": "# R32 (release), REVISION: 6.1, GCID: 27863751, BOARD: t186ref, "
        "EABI: aarch64, DATE: Mon Jul 26 19:36:31 UTC 2021\n",
        **power_modes(
            3,
            3,
            MODE_15W_2CORE=0,
            MODE_15W_4CORE=1,
            MODE_15W_6CORE=2,
            MODE_10W_2CORE=3,
            MODE_10W_4CORE=4,
        ),
        **cpus(6, "schedutil", _TEGRA_GOVERNORS, 1_190_400, 1_420_800, "tegra_cpufreq", online=2),
        **_devfreq("17000000.gv11b", 114_750_000, 1_109_250_000),
        **_OLD_FAN,
        **_memory_clock(1_600_000_000),
        **ina3221x("7-0040", 0, VDD_IN=4500, VDD_CPU_GPU_CV=800, VDD_SOC=1200),
        **thermal_zones(CPU_therm=41.0, GPU_therm=39.5, AUX_therm=39.0, AO_therm=40.0),
        **_ARM_CLOCK,
        "proc/meminfo": memory(7_970_528, 6_200_000, 3_985_264, 3_985_264),
        "proc/swaps": _zram(6, 664_208),
        "proc/loadavg": "0.12 0.10 0.05 1/388 9011\n",
    },
)

JETSON_AGX_XAVIER = Tree(
    "jetson-agx-xavier",
    "Written from NVIDIA's L4T 32.4 developer guide (power management of Jetson AGX Xavier) and "
    "public listings of its INA3221 rails.",
    {
        "proc/device-tree/model": "Jetson-AGX\0",
        "etc/nv_tegra_release": "# R32 (release), REVISION: 4.3, GCID: 21589087, BOARD: t186ref, "
        "EABI: aarch64, DATE: Fri Jun 26 04:34:27 UTC 2020\n",
        **power_modes(2, 2, MAXN=0, MODE_10W=1, MODE_15W=2, MODE_30W_ALL=3),
        **cpus(8, "schedutil", _TEGRA_GOVERNORS, 1_190_400, 2_265_600, "tegra_cpufreq"),
        **_devfreq("17000000.gv11b", 114_750_000, 1_377_000_000),
        **_OLD_FAN,
        **_memory_clock(2_133_000_000),
        **ina3221x("1-0040", 0, GPU=300, CPU=610, SOC=1530),
        **ina3221x("1-0041", 1, CV=0, VDDRQ=460, SYS5V=2390),
        **thermal_zones(CPU_therm=36.5, GPU_therm=35.0, AUX_therm=35.5, AO_therm=36.0),
        **_ARM_CLOCK,
        "proc/meminfo": memory(32_688_048, 29_000_000),
        "proc/swaps": _zram(0, 0),
        "proc/loadavg": "0.02 0.01 0.00 1/410 5120\n",
    },
)

JETSON_ORIN = Tree(
    "jetson-orin",
    "Written from NVIDIA's Jetson Linux 35.4 and 36 developer guides (Jetson Orin Nano and NX, AGX "
    "Orin: power, INA3221 by hwmon, pwm-fan by hwmon).",
    {
        "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
        "etc/nv_tegra_release": "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, "
        "EABI: aarch64, DATE: Tue Aug  1 19:57:35 UTC 2023\n",
        **power_modes(1, 0, _15W=0, _7W=1),
        **cpus(6, "schedutil", "ondemand performance schedutil", 115_200, 1_510_400, "tegra194"),
        **_devfreq("17000000.ga10b", 306_000_000, 624_750_000),
        "sys/devices/platform/pwm-fan/hwmon/hwmon2/name": "pwmfan\n",
        "sys/devices/platform/pwm-fan/hwmon/hwmon2/pwm1": "66\n",
        **_memory_clock(2_133_000_000),
        **ina3221_hwmon("1-0040", 3, VDD_IN=880, VDD_CPU_GPU_CV=120, VDD_SOC=270),
        **thermal_zones(cpu_thermal=48.2, gpu_thermal=47.0, soc0_thermal=46.5, tj_thermal=48.2),
        **_ARM_CLOCK,
        "proc/meminfo": memory(7_802_000, 5_900_000, 3_901_000, 3_901_000),
        "proc/swaps": _zram(6, 650_166),
        "proc/loadavg": "0.40 0.31 0.22 1/502 4411\n",
    },
)

LAPTOP = Tree(
    "laptop",
    "Written from the kernel's documentation of intel_pstate, powercap (intel-rapl), "
    "power_supply and the ABI of thermal_throttle.",
    {
        "sys/class/dmi/id/sys_vendor": "LENOVO\n",
        "sys/class/dmi/id/product_name": "20XW0055GE\n",
        "sys/class/dmi/id/product_family": "ThinkPad X1 Carbon Gen 9\n",
        **cpus(8, "powersave", "performance powersave", 400_000, 4_700_000, "intel_pstate"),
        "sys/devices/system/cpu/intel_pstate/no_turbo": "0\n",
        "sys/devices/system/cpu/intel_pstate/status": "active\n",
        "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "12\n",
        "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "40\n",
        "sys/class/powercap/intel-rapl:0/name": "package-0\n",
        "sys/class/powercap/intel-rapl:0/energy_uj": "104857600000\n",
        "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "262143328850\n",
        "sys/class/powercap/intel-rapl:0:0/name": "core\n",
        "sys/class/powercap/intel-rapl:0:0/energy_uj": "52428800000\n",
        "sys/class/powercap/intel-rapl:0:0/max_energy_range_uj": "262143328850\n",
        "sys/class/powercap/intel-rapl:0:1/name": "uncore\n",
        "sys/class/powercap/intel-rapl:0:1/energy_uj": "1048576000\n",
        "sys/class/powercap/intel-rapl:0:1/max_energy_range_uj": "262143328850\n",
        "sys/class/powercap/intel-rapl:1/name": "psys\n",
        "sys/class/powercap/intel-rapl:1/energy_uj": "209715200000\n",
        "sys/class/powercap/intel-rapl:1/max_energy_range_uj": "262143328850\n",
        "sys/class/power_supply/AC/type": "Mains\n",
        "sys/class/power_supply/AC/online": "0\n",
        "sys/class/power_supply/BAT0/type": "Battery\n",
        "sys/class/power_supply/BAT0/status": "Discharging\n",
        "sys/class/power_supply/BAT0/power_now": "8300000\n",
        **thermal_zones(acpitz=47.0, x86_pkg_temp=51.0),
        **_X86_CLOCK,
        "proc/meminfo": memory(16_077_004, 9_500_000, 8_388_604, 7_340_028),
        "proc/swaps": "Filename\t\t\t\tType\t\tSize\tUsed\tPriority\n"
        "/dev/nvme0n1p3                          partition\t8388604\t1048576\t-2\n",
        "proc/loadavg": "3.80 2.10 1.40 2/1440 81231\n",
    },
)

AMD_LAPTOP = Tree(
    "amd-laptop",
    "Written from the kernel's documentation of amdgpu (hwmon: `vddnb` is of APUs alone, whose "
    "power includes the CPU), of amd-pstate and of powercap, where AMD's zones are Intel's too.",
    {
        "sys/class/dmi/id/sys_vendor": "LENOVO\n",
        "sys/class/dmi/id/product_name": "21CF004PGE\n",
        **cpus(16, "powersave", "performance powersave", 400_000, 4_768_000, "amd-pstate-epp"),
        "sys/class/powercap/intel-rapl:0/name": "package-0\n",
        "sys/class/powercap/intel-rapl:0/energy_uj": "20971520000\n",
        "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "65532610987\n",
        "sys/class/powercap/intel-rapl:0:0/name": "core\n",
        "sys/class/powercap/intel-rapl:0:0/energy_uj": "5242880000\n",
        "sys/class/powercap/intel-rapl:0:0/max_energy_range_uj": "65532610987\n",
        "sys/class/hwmon/hwmon3/name": "amdgpu\n",
        "sys/class/hwmon/hwmon3/in0_label": "vddgfx\n",
        "sys/class/hwmon/hwmon3/in1_label": "vddnb\n",
        "sys/class/hwmon/hwmon3/power1_label": "PPT\n",
        "sys/class/hwmon/hwmon3/power1_input": "9100000\n",
        **thermal_zones(acpitz=49.0),
        **_X86_CLOCK,
        "proc/meminfo": memory(15_500_000, 11_000_000),
        "proc/swaps": "Filename\t\t\t\tType\t\tSize\tUsed\tPriority\n",
        "proc/loadavg": "0.50 0.40 0.30 1/900 5120\n",
    },
)

RASPBERRY_PI = Tree(
    "raspberry-pi",
    "Written from Raspberry Pi's documentation (vcgencmd get_throttled, config.txt) and the "
    "kernel's raspberrypi-hwmon and cpufreq-dt drivers.",
    {
        "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
        **cpus(
            4,
            "ondemand",
            "conservative ondemand userspace powersave performance schedutil",
            600_000,
            1_500_000,
            "cpufreq-dt",
        ),
        "sys/class/hwmon/hwmon1/name": "rpi_volt\n",
        "sys/class/hwmon/hwmon1/in0_lcrit_alarm": "0\n",
        **thermal_zones(cpu_thermal=52.1),
        **_ARM_CLOCK,
        "proc/meminfo": memory(3_884_316, 3_300_000, 102_396, 102_396),
        "proc/swaps": "Filename\t\t\t\tType\t\tSize\tUsed\tPriority\n"
        "/var/swap                               file\t\t102396\t0\t-2\n",
        "proc/loadavg": "0.00 0.01 0.05 1/180 2210\n",
    },
)

VIRTUAL_MACHINE = Tree(
    "virtual-machine",
    "Written from what a KVM guest without cpufreq, powercap, hwmon and thermal zones shows.",
    {
        "sys/class/dmi/id/sys_vendor": "QEMU\n",
        "sys/class/dmi/id/product_name": "Standard PC (Q35 + ICH9, 2009)\n",
        "sys/devices/system/cpu/online": "0-1\n",
        "sys/devices/system/clocksource/clocksource0/current_clocksource": "kvm-clock\n",
        "sys/devices/system/clocksource/clocksource0/available_clocksource": "kvm-clock tsc\n",
        "proc/meminfo": memory(8_148_000, 7_000_000),
        "proc/swaps": "Filename\t\t\t\tType\t\tSize\tUsed\tPriority\n",
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
    for file in "$policy"/scaling_* "$policy"/cpuinfo_*; do
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
