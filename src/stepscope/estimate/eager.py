"""Let a network run as it was written, whatever of it is compiled.

Under a dispatch mode `torch.compile` gives up on what it meets and remembers that: the training
that comes after a look ahead would then not be compiled.
"""

from __future__ import annotations

import contextlib

import torch


def eagerly() -> contextlib.AbstractContextManager[object]:
    """Return a context in which nothing is compiled, or remembered as not to be compiled."""
    if hasattr(torch.compiler, "set_stance"):  # from torch 2.6 on
        stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
        return stance
    return contextlib.nullcontext()
