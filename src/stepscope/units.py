"""Units: parse sizes, bandwidths and times, and format numbers and paths for display.

Everything is stored in SI base units (seconds, bytes, joules) and formatted only here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_BYTE_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_NUMBER = r"\s*([0-9]*\.?[0-9]+)\s*"
_SIZE = re.compile(_NUMBER + r"([a-zA-Z]*)\s*")
# A small b may mean either, so bits are spelt out and bytes have a capital B.
_BANDWIDTH = re.compile(
    _NUMBER + r"(?i:([kmgt]?)(?:bit(?:/s)?|bps)|((?:[kmgt]i?)?)(?-i:B)(?:/s)?)\s*"
)
_MICROSECONDS = ("us", "\N{MICRO SIGN}s", "\N{GREEK SMALL LETTER MU}s")
_UNITS_PER_S = {"ns": 1e9, **dict.fromkeys(_MICROSECONDS, 1e6), "ms": 1e3, "s": 1.0}
_TIME = re.compile(_NUMBER + f"({'|'.join(_UNITS_PER_S)})\\s*")


def parse_bytes(text: str) -> int:
    """Read a size such as `3.9GiB`, `512M` or `2GB` as bytes.

    KB, MB, GB count in thousands; KiB, MiB, GiB and the bare letters K, M, G in 1,024s. Without a
    unit it is refused: 3.9 is not meant to be bytes.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _BYTE_UNITS:
        raise ValueError(f"{text!r} is not a size; write it like 512MiB, 3.9GiB or 2GB")
    return int(Fraction(match[1]) * _BYTE_UNITS[match[2].lower()])


def parse_bandwidth(text: str) -> float:
    """Read a bandwidth such as `25Gbit`, `100Mbit/s`, `10Gbps` or `10GB/s` as bytes a second."""
    match = _BANDWIDTH.fullmatch(text)
    bytes_per_s = 0.0
    if match is not None:
        bits, prefix = match[2] is not None, (match[2] or match[3] or "").lower()
        bytes_per_s = float(match[1]) * _BYTE_UNITS[f"{prefix}b"] / (8 if bits else 1)
    if not 0 < bytes_per_s < math.inf:
        raise ValueError(
            f"{text!r} is not a bandwidth above 0; write it like 25Gbit, 100Mbit/s or 10GB/s"
        )
    return bytes_per_s


def parse_duration(text: str) -> float:
    """Read a time such as `20us`, `1.5ms` or `2s` as seconds. Its unit is part of it."""
    match = _TIME.fullmatch(text)
    seconds = math.inf if match is None else float(match[1]) / _UNITS_PER_S[match[2]]
    if seconds == math.inf:
        raise ValueError(f"{text!r} is not a time with its unit; write it like 20us, 1.5ms or 2s")
    return seconds


def format_bandwidth(bytes_per_s: float) -> str:
    """Print a bandwidth in bits, as networks are sold: `25 Gbit/s`."""
    return _with_prefix(bytes_per_s * 8, "bit/s", "", "k", "M", "G")


def format_bytes(size: float) -> str:
    """Print a size with a binary unit: `1.5 GiB`."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        shown = f"{value:.0f}" if unit == "B" else f"{value:.1f}"
        if abs(float(shown)) < 1024:
            return f"{shown} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_duration(seconds: float) -> str:
    """Print a duration with the unit that suits its size: `850 µs`, `3.21 ms`, `12.3 s`, `4:05`."""
    if not math.isfinite(seconds):
        return "?"
    magnitude = abs(seconds)
    if magnitude == 0:
        return "0 s"
    if round(magnitude * 1e6) < 1000:
        return f"{seconds * 1e6:.0f} µs"
    if round(magnitude * 1e3) < 1000:
        return f"{seconds * 1e3:.3g} ms" if magnitude < 0.1 else f"{seconds * 1e3:.0f} ms"
    if magnitude < 100:
        return f"{seconds:.3g} s"
    return format_clock(seconds)


def duration_format(column_s: Iterable[float | None]) -> Callable[[float], str]:
    """Return how to print the durations of a column: all in the unit that suits the longest."""
    known = (abs(each) for each in column_s if each is not None and math.isfinite(each))
    longest_s = max(known, default=0.0)
    if longest_s >= 100:
        return format_clock
    units = (("µs", 1e6), ("ms", 1e3), ("s", 1.0))
    unit, times = next(each for each in units if longest_s * each[1] < 999.5)
    shown = longest_s * times
    digits = 0 if unit == "µs" or shown >= 99.95 else 1 if shown >= 9.995 else 2
    return lambda seconds: f"{seconds * times:.{digits}f} {unit}"


def format_clock(seconds: float) -> str:
    """Print a longer time as a clock does: `4:05`, `1:02:03`."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"


def format_count(count: int, what: str) -> str:
    """Print how many there are of something: `1 epoch`, `12 epochs`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def format_share(share: float) -> str:
    """Print a share of one as a percentage: `12.3 %`."""
    return f"{share * 100:.1f} %"


def format_joules(joules: float) -> str:
    """Print an energy: `3.21 J`, `1,250.0 J`, `12.3 kJ`."""
    if abs(joules) >= 1e4:
        return f"{joules / 1e3:,.1f} kJ"
    return f"{joules:,.1f} J" if abs(joules) >= 10 else f"{joules:.3g} J"


def format_known(value: T | None, form: Callable[[T], str]) -> str:
    """Print a figure, or `?` if it is unknown."""
    return "?" if value is None else form(value)


def format_range(
    low: float | None, high: float | None, form: Callable[[float], str], unknown: str = ""
) -> str:
    """Print an interval: `1.02 to 1.10`."""
    return unknown if low is None or high is None else f"{form(low)} to {form(high)}"


def format_flop_per_s(rate: float) -> str:
    """Print operations a second with a decimal unit: `41.3 GFLOP/s`."""
    return _with_prefix(rate, "FLOP/s", "", "k", "M", "G", "T", "P")


def _with_prefix(value: float, unit: str, *prefixes: str) -> str:
    for prefix in prefixes[:-1]:
        if abs(value) < 999.5:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:,.4g} {prefixes[-1]}{unit}"


def format_path(path: Path) -> str:
    """Return a path as it is typed in the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
