from __future__ import annotations

import contextlib
import math
import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.units import (
    duration_format,
    format_bandwidth,
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_share,
    parse_bandwidth,
    parse_bytes,
    parse_duration,
)

FACTORS = {"B": 1} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("KMGT", 1)
    for unit, base in (("B", 1000), ("iB", 1024), ("", 1024))
}


READ = {
    parse_bytes: {
        "0B": 0,
        "512 b": 512,
        "512M": 536_870_912,
        "2GB": 2_000_000_000,
        "3.9GiB": 4_187_593_113,  # 3.9 * 2**30 = 4187593113.6
        " 1.5 kib ": 1536,
        ".5k": 512,
        "9007199254740993B": 9_007_199_254_740_993,  # 2**53 + 1: no float holds it
    },
    parse_bandwidth: {
        "25Gbit": 3.125e9,
        "25 gbit/s": 3.125e9,
        "10Gbps": 1.25e9,
        "100Mbit": 12.5e6,
        "8bit": 1,
        "10GB/s": 10e9,
        "1.5GiB/s": 1.5 * 2**30,
        " 500 kB ": 500_000,
    },
    parse_duration: {
        "20us": 20e-6,
        "20µs": 20e-6,
        "1.5 ms": 1.5e-3,
        "300ns": 3e-7,
        "2s": 2,
        "0s": 0,
    },
}
PRINTED = {
    format_bytes: {
        0: "0 B",
        1023: "1023 B",
        1024: "1.0 KiB",
        1_048_575: "1.0 MiB",  # 1023.999 KiB: never shown as 1024.0 KiB
        1_610_612_736: "1.5 GiB",
        5 * 1024**5: "5120.0 TiB",
        -2048: "-2.0 KiB",
    },
    format_duration: {
        0: "0 s",
        0.00085: "850 µs",
        0.0009997: "1 ms",  # never 1000 µs
        0.00321: "3.21 ms",
        0.0999: "99.9 ms",
        0.5004: "500 ms",
        0.9996: "1 s",  # never 1000 ms
        12.34: "12.3 s",
        245: "4:05",
        3723: "1:02:03",
        float("nan"): "?",
        float("inf"): "?",
    },
    format_clock: {0: "0:00", 59.6: "1:00", 3599.7: "1:00:00", 36_000: "10:00:00"},
    format_share: {0: "0.0 %", 0.1234: "12.3 %", 1: "100.0 %", 1.5: "150.0 %"},
    partial(format_count, what="epoch"): {
        0: "0 epochs",
        1: "1 epoch",
        2: "2 epochs",
        1234: "1,234 epochs",
    },
}


@pytest.mark.parametrize("parse", READ)
def test_a_figure_is_read_as_people_write_it(parse):
    rounding = 1e-15 if parse is parse_duration else 0
    figures = {text: parse(text) for text in READ[parse]}
    assert figures == pytest.approx(READ[parse], rel=rounding, abs=0)


@pytest.mark.parametrize("form", PRINTED)
def test_a_figure_is_printed_with_the_unit_that_suits_it(form):
    assert {value: form(value) for value in PRINTED[form]} == PRINTED[form]


@given(st.integers(0, 10**400), st.sampled_from(sorted(FACTORS)), st.sampled_from(["", " "]))
def test_any_whole_number_with_any_unit_is_read_exactly(count, unit, gap):
    assert parse_bytes(f"{count}{gap}{unit}") == count * FACTORS[unit]
    assert parse_bytes(f"{count}{gap}{unit.lower()}") == count * FACTORS[unit]


@given(st.integers(0, 1000 * 1024**4))
def test_a_printed_size_reads_back_to_within_its_last_digit(size):
    text = format_bytes(size)
    number, unit = text.split()
    assert parse_bytes(text) == pytest.approx(size, abs=0.05 * FACTORS[unit] + 1)
    assert float(number) < 1024
    assert len(text) <= len("1023.9 KiB")


@given(st.floats(1e-6, 359_999))
def test_a_printed_duration_says_the_duration(seconds):
    text = format_duration(seconds)
    clock = re.fullmatch(r"(?:(\d+):)?(\d+):(\d\d)", text)
    if clock:
        hours, minutes, rest = (int(part or 0) for part in clock.groups())
        assert minutes < 60
        assert rest < 60
        assert hours * 3600 + minutes * 60 + rest == pytest.approx(seconds, abs=0.5)
    else:
        number, unit = text.split()
        said = float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit]
        assert said == pytest.approx(seconds, rel=0.006, abs=0.5e-6)
        assert float(number) < 1000
    assert len(text) <= 8


@given(
    st.integers(1, 10**12),
    st.sampled_from(["", "k", "K", "M", "m", "G", "g", "T"]),
    st.sampled_from(["bit", "Bit", "bit/s", "bps"]),
)
def test_eight_bits_are_a_byte_whatever_the_prefix(count, prefix, unit):
    as_bytes = parse_bandwidth(f"{count}{prefix}B/s")
    assert parse_bandwidth(f"{8 * count}{prefix}{unit}") == as_bytes


@given(st.floats(1, 1e15))
def test_a_printed_bandwidth_reads_back_to_within_its_last_digit(bytes_per_s):
    printed = format_bandwidth(bytes_per_s).replace(",", "")
    if "e" not in printed:
        assert parse_bandwidth(printed) == pytest.approx(bytes_per_s, rel=0.006)


REFUSED = {
    parse_bytes: (
        "is not a size; write it like 512MiB",
        [
            "",
            "3.9",
            "600",
            "GiB",
            "-1GiB",
            "1e9",
            "12 parsecs",
            "1,5GiB",
            "0x10",
            "nan",
            "1GiB2",
            "٣GiB",
        ],
    ),
    parse_bandwidth: (  # a small b may mean bits or bytes
        "is not a bandwidth above 0; write it like 25Gbit",
        ["", "Gbit", "0Gbit", "25", "25Gb", "25gb/s", "-1Gbit", "1e3Mbit", "fast", "1iB/s", "٣bit"],
    ),
    parse_duration: (
        "is not a time with its unit; write it like 20us",
        ["", "us", "20", "-1us", "1e3us", "20 parsecs", "1s2", "2 min"],
    ),
}


@pytest.mark.parametrize("parse", REFUSED)
def test_other_text_is_refused_with_an_example(parse):
    message, texts = REFUSED[parse]
    for text in texts:
        with pytest.raises(ValueError, match=message):
            parse(text)


@pytest.mark.parametrize(
    ("parse", "unit", "least"),
    [(parse_bytes, "G", 0), (parse_bandwidth, "Gbit", math.ulp(0.0)), (parse_duration, "ms", 0)],
)
@given(text=st.text(max_size=12), count=st.integers(0, 10**400))
def test_any_text_is_a_finite_figure_or_a_value_error(parse, unit, least, text, count):
    for written in (text, f"{count}{unit}"):
        with contextlib.suppress(ValueError):
            assert least <= parse(written) < math.inf


@pytest.mark.parametrize(
    ("column_s", "shown"),
    [
        ([0.000984, 0.000188, 0.00402, 0.000009], ["0.98 ms", "0.19 ms", "4.02 ms", "0.01 ms"]),
        ([77.6, 131.0], ["1:18", "2:11"]),
        ([0.821, 7.42, 18.24], ["0.8 s", "7.4 s", "18.2 s"]),
        ([0.0000421, 0.000999], ["42 µs", "999 µs"]),
        ([0.9996, 0.5], ["1.00 s", "0.50 s"]),
        ([0.1234, 0.9994], ["123 ms", "999 ms"]),
        ([0.0, 0.0], ["0 µs", "0 µs"]),
    ],
)
def test_a_column_of_durations_has_one_unit(column_s: list[float], shown: list[str]) -> None:
    form = duration_format(column_s)
    assert [form(each) for each in column_s] == shown


def test_a_column_may_have_unknown_durations() -> None:
    assert duration_format([None, 0.0123, float("inf")])(0.0123) == "12.3 ms"
    assert duration_format([])(0) == "0 µs"
