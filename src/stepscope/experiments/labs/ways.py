"""Ways to make a training hold less: which there are for a spec, and how each is tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepscope.spec import RunSpec

PARTS = 4

# glibc's own first value, in bytes. Set by hand it stays: otherwise it rises to the largest block
# that was ever freed, up to 32 MiB, and what is below comes from the heap.
_MAP_FROM_BYTES = 131072


@dataclass(frozen=True)
class Way:
    """One change: of settings, of what the loop does, or of the process's environment."""

    name: str
    how: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def ways_for(spec: RunSpec) -> Iterator[Way]:
    """Go through what may save memory in a training. Whether it does is for a trial to show."""
    yield Way(
        "gradients freed earlier",
        "step and clear inside backward(), by register_post_accumulate_grad_hook",
        options={"step_in_backward": True},
    )
    yield Way(
        "outputs and batch dropped",
        "del outputs, images, labels before backward()",
        options={"drop_early": True},
    )
    yield Way("allocator trimmed", "malloc_trim(0) after every step", options={"trim": True})
    yield Way(
        "large blocks mapped",
        f"environment MALLOC_MMAP_THRESHOLD_={_MAP_FROM_BYTES}",
        environment={"MALLOC_MMAP_THRESHOLD_": str(_MAP_FROM_BYTES)},
    )
    if not spec.checkpoint_activations:
        yield Way(
            "activations recomputed",
            "--checkpoint-activations",
            settings={"checkpoint_activations": True},
        )
    if spec.batch_size % PARTS == 0:
        size, times = spec.batch_size // PARTS, spec.accumulate * PARTS
        yield Way(
            "smaller batch, accumulated",
            f"--batch-size {size} --accumulate {times}",
            settings={"batch_size": size, "accumulate": times},
        )
    if spec.workers:
        yield from _of_workers(spec)


def _of_workers(spec: RunSpec) -> Iterator[Way]:
    kept = not spec.persistent_workers
    flag = "--persistent-workers" if kept else "--no-persistent-workers"
    name = "workers kept between epochs" if kept else "workers ended between epochs"
    yield Way(name, flag, settings={"persistent_workers": kept})
    fewer = spec.workers // 2
    if fewer:
        yield Way("fewer workers", f"--workers {fewer}", settings={"workers": fewer})
    none = {"workers": 0, "persistent_workers": False}
    yield Way("no workers", "--workers 0", settings=none)
