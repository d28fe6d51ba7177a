"""A layer as bounds of a loop nest: a convolution, or a linear layer with P = Q = R = S = 1."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from stepscope.errors import RequestError

_LARGEST = 10**9
_PAIR = re.compile(r"\s*([A-Za-z]+)\s*=\s*([0-9]+)\s*")


@dataclass(frozen=True)
class Layer:
    """Channels in (C) and out (M), output rows and columns (P, Q), kernel (R, S), and strides.

    Each group, and each sample of a batch, is estimated as a separate layer of C/groups and
    M/groups channels. That was not compared with Timeloop.
    """

    C: int
    M: int
    P: int = 1
    Q: int = 1
    R: int = 1
    S: int = 1
    stride: int = 1
    stride_q: int | None = None
    groups: int = 1
    batch: int = 1

    @property
    def macs(self) -> int:
        """The multiply-adds of the whole layer."""
        one = self.C // self.groups * self.M * self.P * self.Q * self.R * self.S
        return one * self.batch


def read_layer(text: str) -> Layer:
    """Read a layer as `C=64,M=64,P=32,Q=32,R=3,S=3,stride=1`."""
    known = {each.name for each in fields(Layer)}
    wanted = "C=…,M=…,P=…,Q=…,R=…,S=…,stride=…"
    found: dict[str, int] = {}
    for part in text.split(","):
        pair = _PAIR.fullmatch(part)
        name = pair[1] if pair else ""
        name = name if name in known else name.upper() if name.upper() in known else name.lower()
        if pair is None or name not in known or name in found:
            raise RequestError(f"layer: wanted {wanted}, found {part.strip()!r} in {text!r}.")
        found[name] = int(pair[2])
        if found[name] > _LARGEST:
            raise RequestError(
                f"layer: wanted bounds of at most {_LARGEST:,}, found {name}={found[name]}."
            )
    missing = [name for name in "CMPQRS" if name not in found]
    zero = [name for name, bound in found.items() if bound < 1]
    if missing or zero:
        said = f"no {', '.join(missing)}" if missing else f"{zero[0]}={found[zero[0]]}"
        raise RequestError(f"layer: wanted {wanted}, every bound 1 or more; found {said}.")
    layer = Layer(**found)
    if layer.C % layer.groups or layer.M % layer.groups:
        raise RequestError(
            f"layer: wanted groups that divide C and M, found groups={layer.groups} with "
            f"C={layer.C}, M={layer.M}."
        )
    return layer
