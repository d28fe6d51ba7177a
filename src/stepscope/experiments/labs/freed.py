"""When the memory of a training goes, and which call lets it go: in words that name the code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepscope.spec import RunSpec

_NEVER = "not before the training ends"


def what_frees(bill: dict[str, Any], spec: RunSpec) -> list[dict[str, Any]]:
    """List the kinds of memory, each with its bytes at the peak and what ends it.

    `bytes` are counted: tensors as they are alive at the peak of a step, the rest from the bill.
    """
    return [
        {"kind": kind, "bytes": size, "when": when, "by": by}
        for kind, size, when, by in _kinds(bill, spec)
        if size
    ]


def _kinds(bill: dict[str, Any], spec: RunSpec) -> Iterator[tuple[str, int, str, str]]:
    alive, items = bill["at_peak"], bill["items"]
    yield (
        "activations",
        alive["activations"],
        "in the backward pass, layer by layer, the last layer's first",
        "loss.backward(); loss.detach() lets go of what is left of the graph",
    )
    yield (
        "temporaries",
        alive["temporaries"],
        "within the backward pass, as soon as the layer before has used them",
        "loss.backward()",
    )
    yield (
        "gradients",
        alive["gradients"],
        "after the step, all at once",
        "optimizer.zero_grad(), which sets them to None",
    )
    yield (
        "batch",
        alive["batch"],
        "in the next step, when the next batch is there",
        "images, labels = ... bound again; outputs and loss likewise, by the next forward",
    )
    yield ("parameters", alive["parameters"], _NEVER, "the end of the process")
    yield (
        "optimizer state",
        items["optimizer_state"]["bytes"],
        f"{_NEVER}; made by the first step()",
        "the end of the process",
    )
    yield ("data set", items["dataset"]["bytes"], _NEVER, "the end of the process")
    if spec.persistent_workers:
        ended = (_NEVER, "persistent workers live until the loader goes")
    else:
        ended = ("at the end of every epoch and test", "the loader's iterator, when it goes")
    yield ("workers", items["workers"]["bytes"], *ended)
    yield (
        "batches made ahead",
        items["prefetch"]["bytes"],
        "one by one, as the loop takes them",
        "next(batches); the rest with the loader's iterator",
    )
    yield (
        "kept by the allocator",
        items["slack"]["bytes"],
        "when it is told to, which the loop does before every epoch",
        "malloc_trim(0), or the end of the process",
    )
    yield ("runtime", items["runtime"]["bytes"], _NEVER, "the end of the process")
