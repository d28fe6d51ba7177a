"""Designs of small networks for images, each with a name that says all of it. Needs no torch.

    efficient:s2d4_w48-96-128_d1-2-1_k3_residual_max_drop20
    efficient:s2d2_w48-80-128_d0-2-2_skip_max_drop5-10-20

| part | means | where it is left out |
| --- | --- | --- |
| `s2d4`, `conv2` | stem: space-to-depth by 4, or a convolution of stride 2 | `conv1` |
| `w48-96` | width of each stage; every stage after the first halves both sides | wanted |
| `d1-2` | blocks in each stage; the first may have none beside the stem | one each |
| `k3` | kernel of the blocks: 1, 3, 5 or 7 | `k3` |
| `plain` | a block is a convolution | `plain` |
| `skip` | the same, beside a shortcut where input and output have one shape | |
| `residual` | a block is two convolutions beside a shortcut | |
| `relu`, `silu` | what follows a convolution | `relu` |
| `se8` | each block weighs its channels by their means, through an eighth as many (`gate`) | none |
| `mirror` | channels come in mirrored pairs (`mirrored`), which no stride may part | none |
| `stride`, `max`, `avg` | sides are halved by a strided convolution or by pooling | `stride` |
| `mean`, `meanmax` | the last layer sees each channel's mean, or mean and largest, added | `mean` |
| `drop20`, `drop5-10-20` | dropout before the last layer, or after each stage, in percent | none |

Parts come in any order, each once. `Design.name` writes them in the order above, without defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.errors import RequestError

PREFIX = "efficient:"
STEMS = ("s2d", "conv")
STEM_FACTORS = (1, 2, 4)
KERNELS = (1, 3, 5, 7)
BLOCKS = ("plain", "skip", "residual")
ACTIVATIONS = ("relu", "silu")
POOLS = ("stride", "max", "avg")
HEADS = ("mean", "meanmax")

_MOST_STAGES, _WIDEST, _DEEPEST = 6, 4096, 32
_EXAMPLE = f"{PREFIX}s2d4_w48-96-128_d1-2-1"


@dataclass(frozen=True)
class EfficientDesign:
    """A stem, stages of blocks that grow narrower in space, each channel pooled, one layer."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    stem: str = "conv"
    stem_factor: int = 1
    kernel: int = 3
    block: str = "plain"
    activation: str = "relu"
    squeeze: int = 0  # how many channels of a gate share one; 0 is no gate
    pool: str = "stride"
    head: str = "mean"
    mirror: bool = False
    dropout_percents: tuple[int, ...] = ()  # after each stage; empty is none

    @property
    def name(self) -> str:
        """Write the design as a model's name."""
        parts = [f"{self.stem}{self.stem_factor}", f"w{'-'.join(map(str, self.widths))}"]
        parts.append(f"d{'-'.join(map(str, self.depths))}")
        if self.kernel != EfficientDesign.kernel:
            parts.append(f"k{self.kernel}")
        parts += [self.block] if self.block != EfficientDesign.block else []
        parts += [self.activation] if self.activation != EfficientDesign.activation else []
        parts += [f"se{self.squeeze}"] if self.squeeze else []
        parts += ["mirror"] if self.mirror else []
        parts += [self.pool] if self.pool != EfficientDesign.pool else []
        parts += [self.head] if self.head != EfficientDesign.head else []
        if any(self.dropout_percents):
            *earlier, last = self.dropout_percents
            shown = self.dropout_percents if any(earlier) else (last,)
            parts.append(f"drop{'-'.join(map(str, shown))}")
        return PREFIX + "_".join(parts)


def is_design(name: str) -> bool:
    """Say whether a model's name is of this family."""
    return name.startswith(PREFIX)


def read_design(name: str) -> EfficientDesign:
    """Read a model's name.

    Raises:
        RequestError: a part is unknown, missing, doubled, or out of bounds.
    """
    found: dict[str, Any] = {}
    for part in name.removeprefix(PREFIX).split("_"):
        for setting, value in _read_part(name, part).items():
            if setting in found:
                raise _wrong(name, f"{part!r} says again what was said: {setting}")
            found[setting] = value
    if "widths" not in found:
        raise _wrong(name, "there are no widths, such as w48-96")
    stages = len(found["widths"])
    found.setdefault("depths", (1,) * stages)
    if len(found.get("dropout_percents", ())) == 1:  # before the last layer
        found["dropout_percents"] = (0,) * (stages - 1) + found["dropout_percents"]
    if not any(found.get("dropout_percents", ())):
        found["dropout_percents"] = ()
    design = EfficientDesign(**found)
    _check(name, design)
    return design


def _read_part(name: str, part: str) -> Mapping[str, Any]:
    for pattern, settings in _PARTS:
        matched = pattern.fullmatch(part)
        if matched is not None:
            return settings(matched)
    raise _wrong(name, f"{part!r} is no part of one")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("-")))


_PARTS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Mapping[str, Any]]], ...] = (
    (
        re.compile(f"({'|'.join(STEMS)})([0-9])"),
        lambda m: {"stem": m[1], "stem_factor": int(m[2])},
    ),
    (re.compile(r"w([0-9]{1,5}(?:-[0-9]{1,5})*)"), lambda m: {"widths": _numbers(m[1])}),
    (re.compile(r"d([0-9]{1,3}(?:-[0-9]{1,3})*)"), lambda m: {"depths": _numbers(m[1])}),
    (re.compile(r"k([0-9])"), lambda m: {"kernel": int(m[1])}),
    (re.compile("|".join(BLOCKS)), lambda m: {"block": m[0]}),
    (re.compile("|".join(ACTIVATIONS)), lambda m: {"activation": m[0]}),
    (re.compile(r"se([1-9][0-9]?)"), lambda m: {"squeeze": int(m[1])}),
    (re.compile("mirror"), lambda m: {"mirror": True}),
    (re.compile("|".join(POOLS)), lambda m: {"pool": m[0]}),
    (re.compile("|".join(HEADS)), lambda m: {"head": m[0]}),
    (
        re.compile(r"drop([0-9]{1,2}(?:-[0-9]{1,2})*)"),
        lambda m: {"dropout_percents": _numbers(m[1])},
    ),
)


def _check(name: str, design: EfficientDesign) -> None:
    if design.stem_factor not in STEM_FACTORS or (design.stem, design.stem_factor) == ("s2d", 1):
        raise _wrong(name, "a stem is s2d2, s2d4, conv1, conv2 or conv4")
    if design.kernel not in KERNELS:
        raise _wrong(name, f"kernels are {', '.join(map(str, KERNELS))}, found {design.kernel}")
    if design.mirror and (design.pool == "stride" or _is_strided(design)):
        raise _wrong(name, "a stride treats left and right differently: mirror wants max or avg")
    if design.mirror and any(width % 2 for width in design.widths):
        raise _wrong(name, "mirror wants even widths, since channels come in pairs")
    if len(design.widths) != len(design.depths):
        counts = f"{len(design.widths)} widths and {len(design.depths)} depths"
        raise _wrong(name, f"every stage has a width and a depth, found {counts}")
    if design.dropout_percents and len(design.dropout_percents) != len(design.widths):
        counts = f"{len(design.dropout_percents)} for {len(design.widths)} stages"
        raise _wrong(name, f"dropout is one number, or one a stage, found {counts}")
    if len(design.widths) > _MOST_STAGES:
        raise _wrong(name, f"there are at most {_MOST_STAGES} stages, found {len(design.widths)}")
    if not all(1 <= width <= _WIDEST for width in design.widths):
        raise _wrong(name, f"a width is from 1 to {_WIDEST:,}")
    least = (0, *(1 for _ in design.depths[1:]))
    if not all(low <= depth <= _DEEPEST for low, depth in zip(least, design.depths, strict=True)):
        raise _wrong(
            name,
            f"a stage has 1 to {_DEEPEST} blocks, and the first, which has the stem, may have 0",
        )


def _is_strided(design: EfficientDesign) -> bool:
    return design.stem == "conv" and design.stem_factor > 1


def _wrong(name: str, why: str) -> RequestError:
    return RequestError(
        f"cannot read the model name {name!r}: {why}. A design is written like {_EXAMPLE} "
        "(docs/search.md)."
    )
