"""What hooks in a foreign script note down: what happened, and when.

An event is `(kind, time_ns, subject, detail, mark)`, because noting its fields is all that happens
inside the script's loop; `trace.detect.steps` makes sense of them later. Those in pairs are opened
and closed, and may lie inside each other.

| kind | subject | detail |
| --- | --- | --- |
| ITERATE | the iteration: a number | the other clock, in nanoseconds, and which loader, or None |
| ITERATED | the iteration | fields of `Iteration` |
| FETCH | the iteration | |
| FETCHED | the iteration | samples of the batch or None, fields of `LoadTiming` or None |
| EXHAUSTED, DROPPED | the iteration | the other clock |
| MOVE, MOVED | | |
| CALL | the outermost module's id | fields of `Call` |
| CALLED | whether gradients were on | |
| BACKWARD | | |
| BACKWARD_DONE | | the loss, or what reads it later, or None |
| STEP | the optimiser's id | |
| STEPPED | the optimiser's id | the other clock |
| ZERO, ZEROED | | |
| MADE | the id of an optimiser that was just made | |
| CLOCKS | | the other clock, before anything else |
| OWN, OWN_DONE | | our own work |
| DETAIL | `full`, `off` or `layers`, from the next step on | |

EXHAUSTED closes a FETCH, DROPPED stands alone. The other clock is read where an epoch begins or may
end; between two readings it goes like the first.

`mark` is a point in the queue of an asynchronous device, or None.
"""

from __future__ import annotations

from typing import Any, NamedTuple

(
    ITERATE,
    ITERATED,
    FETCH,
    FETCHED,
    EXHAUSTED,
    DROPPED,
    MOVE,
    MOVED,
    CALL,
    CALLED,
    BACKWARD,
    BACKWARD_DONE,
    STEP,
    STEPPED,
    ZERO,
    ZEROED,
    OWN,
    OWN_DONE,
    DETAIL,
    MADE,
    CLOCKS,
) = range(21)

Event = tuple[int, int, Any, Any, Any]
FIELDS = ("kind", "time_ns", "subject", "detail", "mark")


class Iteration(NamedTuple):
    """What is iterated over: how many batches there are, and which loader it is, if known."""

    length: int | None
    loader: int | None


class Call(NamedTuple):
    """How the outermost module was called."""

    grad: bool
    training: bool
    samples: int | None
