"""Units: how a size is read and how a number is printed.

Everything is stored in SI base units (seconds, bytes, joules) and turned into something a person
reads only here.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

_BYTE_UNITS = {
    "": 1,
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
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str) -> int:
    """Read a size such as `3.9GiB`, `512M` or `2GB` as bytes.

    KB, MB, GB count in thousands; KiB, MiB, GiB and the bare letters K, M, G in 1,024s.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _BYTE_UNITS:
        raise ValueError(f"{text!r} is not a size; write it like 512MiB, 3.9GiB or 2GB")
    return int(Fraction(match[1]) * _BYTE_UNITS[match[2].lower()])


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


def format_clock(seconds: float) -> str:
    """Print a longer time as a clock does: `4:05`, `1:02:03`."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"


def format_share(share: float) -> str:
    """Print a share of one as a percentage: `12.3 %`."""
    return f"{share * 100:.1f} %"


def format_flop_per_s(rate: float) -> str:
    """Print operations a second with a decimal unit: `41.3 GFLOP/s`."""
    for unit in ("", "k", "M", "G"):
        if abs(rate) < 999.5:
            return f"{rate:.3g} {unit}FLOP/s"
        rate /= 1000
    return f"{rate:,.3g} TFLOP/s" if abs(rate) < 999.5 else f"{rate / 1000:,.3g} PFLOP/s"
