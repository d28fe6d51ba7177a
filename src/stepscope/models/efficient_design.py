"""Designs of small image networks, each fully described by its name. Needs no torch.

    efficient:s2d4_w48-96-128_d1-2-1_k3_residual_max_drop20
    efficient:s2d2_w48-80-128_d0-2-2_skip_max_drop5-10-20

| part | means | default |
| --- | --- | --- |
| `s2d4`, `conv2` | stem: space-to-depth by 4, or a convolution of stride 2 | `conv1` |
| `w48-96` | width of each stage; every stage after the first halves the resolution | required |
| `d1-2` | blocks of each stage; the first stage may have none | one each |
| `k3` | kernel of the blocks: 1, 3, 5 or 7 | `k3` |
| `plain` | a block is a convolution | `plain` |
| `skip` | a convolution and a shortcut, if input and output have the same shape | |
| `residual` | a block is two convolutions and a shortcut | |
| `relu`, `silu` | the activation | `relu` |
| `se8` | squeeze-and-excitation in each block, with an eighth of the channels | none |
| `mirror` | channels in mirrored pairs (`FromPairs`); forbids strides | none |
| `stride`, `max`, `avg` | halve the resolution by a strided convolution or by pooling | `stride` |
| `mean`, `meanmax` | global pooling: the mean of each channel, or mean plus maximum | `mean` |
| `drop20`, `drop5-10-20` | dropout before the last layer, or after each stage, in percent | none |

Parts come in any order, each once. `Design.name` writes them in the order above, without defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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

_WORDS = ("stem", "block", "activation", "pool", "head")
_COUNTS = ("stem_factor", "kernel", "squeeze")
_MOST_STAGES, _WIDEST, _DEEPEST = 6, 4096, 32
_EXAMPLE = f"{PREFIX}s2d4_w48-96-128_d1-2-1"


@dataclass(frozen=True)
class EfficientDesign:
    """A stem, stages of blocks of decreasing resolution, global pooling, and a linear layer."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    stem: str = "conv"
    stem_factor: int = 1
    kernel: int = 3
    block: str = "plain"
    activation: str = "relu"
    squeeze: int = 0  # channels of a gate per hidden channel; 0 is no gate
    pool: str = "stride"
    head: str = "mean"
    mirror: bool = False
    dropout_percents: tuple[int, ...] = ()  # after each stage; empty is none

    @property
    def name(self) -> str:
        """The design as the name of a model."""
        parts = [f"{self.stem}{self.stem_factor}", f"w{'-'.join(map(str, self.widths))}"]
        parts.append(f"d{'-'.join(map(str, self.depths))}")
        written = {"kernel": "k{}", "block": "{}", "activation": "{}", "squeeze": "se{}"}
        written |= {"mirror": "mirror", "pool": "{}", "head": "{}"}
        for setting, form in written.items():
            value = getattr(self, setting)
            if value != getattr(EfficientDesign, setting):
                parts.append(form.format(value))
        if any(self.dropout_percents):
            *earlier, last = self.dropout_percents
            shown = self.dropout_percents if any(earlier) else (last,)
            parts.append(f"drop{'-'.join(map(str, shown))}")
        return PREFIX + "_".join(parts)


def is_design(name: str) -> bool:
    """Return whether the name of a model is a design."""
    return name.startswith(PREFIX)


def read_design(name: str) -> EfficientDesign:
    """Return the design of a model name."""
    found: dict[str, str] = {}
    for part in name.removeprefix(PREFIX).split("_"):
        matched = _PART.fullmatch(part)
        if matched is None:
            raise _wrong(name, f"{part!r} is not part of a design")
        for setting, text in matched.groupdict().items():
            if text is not None and setting in found:
                raise _wrong(name, f"{part!r} repeats the {setting}")
            if text is not None:
                found[setting] = text
    if "widths" not in found:
        raise _wrong(name, "there are no widths, such as w48-96")
    widths = _numbers(found["widths"])
    dropout_percents = _numbers(found.get("dropout_percents", "0"))
    if len(dropout_percents) == 1:  # before the last layer
        dropout_percents = (0,) * (len(widths) - 1) + dropout_percents
    settings: dict[str, Any] = {name: found[name] for name in _WORDS if name in found}
    settings |= {name: int(found[name]) for name in _COUNTS if name in found}
    design = EfficientDesign(
        widths,
        depths=_numbers(found["depths"]) if "depths" in found else (1,) * len(widths),
        mirror="mirror" in found,
        dropout_percents=dropout_percents if any(dropout_percents) else (),
        **settings,
    )
    for is_wrong, why in _faults(design):
        if is_wrong:
            raise _wrong(name, why)
    return design


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("-")))


_PART = re.compile(
    rf"(?P<stem>{'|'.join(STEMS)})(?P<stem_factor>[0-9])"
    r"|w(?P<widths>[0-9]{1,5}(?:-[0-9]{1,5})*)"
    r"|d(?P<depths>[0-9]{1,3}(?:-[0-9]{1,3})*)"
    r"|k(?P<kernel>[0-9])"
    rf"|(?P<block>{'|'.join(BLOCKS)})"
    rf"|(?P<activation>{'|'.join(ACTIVATIONS)})"
    r"|se(?P<squeeze>[1-9][0-9]?)"
    r"|(?P<mirror>mirror)"
    rf"|(?P<pool>{'|'.join(POOLS)})"
    rf"|(?P<head>{'|'.join(HEADS)})"
    r"|drop(?P<dropout_percents>[0-9]{1,2}(?:-[0-9]{1,2})*)"
)


def _faults(design: EfficientDesign) -> Iterator[tuple[bool, str]]:
    """Yield the rules of a design, each with whether it is broken."""
    widths, depths, drops = design.widths, design.depths, design.dropout_percents
    is_stem = design.stem_factor in STEM_FACTORS and (design.stem, design.stem_factor) != ("s2d", 1)
    yield not is_stem, "a stem is s2d2, s2d4, conv1, conv2 or conv4"
    kernels = ", ".join(map(str, KERNELS))
    yield design.kernel not in KERNELS, f"kernels are {kernels}, found {design.kernel}"
    is_strided = design.pool == "stride" or (design.stem == "conv" and design.stem_factor > 1)
    why = "mirror needs max or avg, because a stride treats left and right differently"
    yield design.mirror and is_strided, why
    why = "mirror needs even widths, because channels come in pairs"
    yield design.mirror and any(width % 2 for width in widths), why
    why = f"a stage has a width and a depth, found {len(widths)} widths and {len(depths)} depths"
    yield len(widths) != len(depths), why
    why = f"dropout is one number, or one per stage, found {len(drops)} for {len(widths)} stages"
    yield bool(drops) and len(drops) != len(widths), why
    why = f"there are at most {_MOST_STAGES} stages, found {len(widths)}"
    yield len(widths) > _MOST_STAGES, why
    yield not all(1 <= width <= _WIDEST for width in widths), f"a width is from 1 to {_WIDEST:,}"
    why = f"a stage has 1 to {_DEEPEST} blocks, and the first, which has the stem, may have 0"
    yield not all((place > 0) <= depth <= _DEEPEST for place, depth in enumerate(depths)), why


def _wrong(name: str, why: str) -> RequestError:
    return RequestError(
        f"cannot read the model name {name!r}: {why}. A design is written like {_EXAMPLE} "
        "(docs/how-to/accelerator.md)."
    )
