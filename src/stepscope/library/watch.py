"""`with stepscope.watch():` the hooks of `stepscope trace` around a part of one's own program."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope.library.session import Session
from stepscope.measure.tracer import Tracer


@contextlib.contextmanager
def watch(
    name: str = "watch", *, out: str | Path = "runs", layers: int = 0, quiet: bool = False
) -> Iterator[Path]:
    """Watch the training inside of the `with` block; yields the run folder.

    Everything is found out by hooks, which are taken off at the end of the block. Only the thread
    that enters the block is watched.

    Args:
        name: what to call the run.
        out: the folder that run folders are made in.
        layers: look at every layer for so many steps in the middle.
        quiet: print no table at the end.
    """
    session = Session.begin(out, name, {"layers": layers}, quiet)
    tracer = Tracer(session.made.path, session.origin_ns, layers_steps=layers)
    tracer.start()
    raised: BaseException | None = None
    try:
        yield session.made.path
    except BaseException as error:
        raised = error
        raise
    finally:
        words: dict[str, Any] = tracer.last_words()
        if not words["steps"] and not quiet:
            print(
                "stepscope: no training step was seen: no step of a torch optimiser in this thread",
                file=sys.stderr,
            )
        session.end(
            raised or tracer.trouble,
            words["instrument"],
            words["environment"],
            words["layers"],
            words.get("absent"),
            words.get("device_memory"),
        )
