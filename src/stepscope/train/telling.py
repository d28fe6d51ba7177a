"""What the training process tells: events into its folder, messages to its parent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from stepscope.data.crew import Fallback
from stepscope.data.notices import Notice
from stepscope.measure.clock import now_ns, seconds
from stepscope.models.pretrained import Taken
from stepscope.records.folder import RunFolder
from stepscope.spec import RunSpec
from stepscope.train.device import describe_torch
from stepscope.train.lifetime import Send


@dataclass(frozen=True)
class Telling:
    """Tell of a run that began at `origin_ns`."""

    folder: RunFolder
    origin_ns: int
    send: Send

    def elapsed_s(self) -> float:
        """Return how long the run has lived."""
        return seconds(now_ns() - self.origin_ns)

    def event(self, kind: str, **detail: Any) -> None:
        """Write down what happened just now."""
        self.folder.add_event(kind, self.elapsed_s(), **detail)

    def fallback(self, fallback: Fallback) -> None:
        """Tell that a loader goes on with fewer workers."""
        told = asdict(fallback)
        told["from"], told["to"] = told.pop("before"), told.pop("after")
        self.event("workers_fallback", **told)
        self.send({"type": "workers", **told})

    def notice(self, notice: Notice) -> None:
        """Tell what was noticed while a batch was made."""
        self.event(notice.event, path=notice.path, reason=notice.reason)

    def weights(self, taken: Taken, has_vocabulary: bool) -> None:
        """Tell what a network took of the checkpoint that it starts from."""
        told = {**asdict(taken), "has_vocabulary": has_vocabulary}
        self.event("weights", **told)
        self.send({"type": "weights", **told})

    def ready(self, spec: RunSpec, began_ns: int, more: dict[str, Any] | None = None) -> None:
        """Tell that all is built which was begun at `began_ns`; `more` tells of where it runs."""
        self.send(
            {
                "type": "ready",
                "spec": spec.model_dump(mode="json"),
                "environment": {**describe_torch(torch.device(spec.device)), **(more or {})},
                "preparation_s": seconds(now_ns() - began_ns),
            }
        )
