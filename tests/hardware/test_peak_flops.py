"""Peaks: kept by their conditions, and measured again where what is kept is not sound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.errors import MachineError
from stepscope.hardware.peak_flops import conditions_of, find_peak, highest_mhz
from stepscope.hardware.peak_flops import keep_better as keep

HERE = {
    "cpu": "A57",
    "cpus_usable": 4,
    "highest_mhz": 1479.0,
    "torch": "2.13.0",
    "device": "cpu",
    "device_name": None,
    "precision": "fp32",
    "threads": 4,
}
PEAK = {
    "conditions": HERE,
    "flop_per_s": 40e9,
    "bytes_per_s": 10e9,
    "matrix_size": 1024,
    "array_bytes": 2**27,
    "pressure_cpu": 0.0,
    "cpu_mhz": 1479.0,
    "measured_unix_s": 1.7e9,
}
ENVIRONMENT = {"cpu": "A57", "cpus_usable": 4, "torch": "2.13.0", "threads": 4, "device": "cpu"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "stepscope" / "peaks"


def test_a_peak_is_found_again_under_its_conditions_only():
    assert keep(PEAK) == PEAK
    assert find_peak(HERE) == PEAK
    for other in ({"precision": "bf16"}, {"threads": 1}, {"torch": "2.4.0"}, {"cpu": "A72"}):
        assert find_peak({**HERE, **other}) is None


def test_of_two_measurements_the_better_figures_are_kept():
    keep(PEAK)
    busy = {**PEAK, "flop_per_s": 5e9, "bytes_per_s": 11e9, "matrix_size": 256}
    assert keep(busy) == {**PEAK, "bytes_per_s": 11e9}
    assert keep({**busy, "flop_per_s": 50e9}) == {**busy, "flop_per_s": 50e9}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(spoilt=st.one_of(st.binary(max_size=60), st.integers(0, 400)))
def test_a_file_that_is_cut_or_garbage_is_as_good_as_none(cache, spoilt):
    for old in cache.glob("*"):
        old.unlink()
    keep(PEAK)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(spoilt if isinstance(spoilt, bytes) else whole[:spoilt])
    assert find_peak(HERE) in (None, PEAK)
    assert keep(PEAK) == PEAK == find_peak(HERE)


@pytest.mark.parametrize(
    "changed",
    [{"flop_per_s": 0}, {"bytes_per_s": "fast"}, {"flop_per_s": None}, {"schema": 9}, {"more": 1}],
)
def test_a_file_that_says_something_else_is_no_peak(cache, changed):
    keep(PEAK)
    (file,) = cache.iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    assert find_peak(HERE) is None


def test_a_cache_that_cannot_be_written_is_named(cache):
    cache.parent.parent.mkdir(exist_ok=True)
    cache.parent.write_text("a file where a folder should be")
    with pytest.raises(MachineError, match="XDG_CACHE_HOME"):
        keep(PEAK)
    assert find_peak(HERE) is None


def test_a_user_without_a_home_has_no_peak(monkeypatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert find_peak(HERE) is None
    with pytest.raises(MachineError, match="no home"):
        keep(PEAK)


def test_threads_are_a_condition_of_a_cpu_alone():
    on_cpu = conditions_of(ENVIRONMENT, "fp32")
    on_cuda = conditions_of({**ENVIRONMENT, "device": "cuda:1", "device_name": "T4"}, "fp16")
    assert on_cpu["threads"] == 4
    assert (on_cuda["device"], on_cuda["threads"]) == ("cuda", None)
    assert conditions_of({"cpu": "A57"}, "fp32") is None, "an environment without torch"


def test_the_highest_clock_is_that_of_the_fastest_cpu(tmp_path):
    for number, khz in enumerate(("1479000", "2035200", "junk")):
        file = tmp_path / f"cpu{number}" / "cpufreq" / "scaling_max_freq"
        file.parent.mkdir(parents=True)
        file.write_text(f"{khz}\n")
    assert highest_mhz(tmp_path) == 2035.2
    assert highest_mhz(tmp_path / "nowhere") is None
