"""The events that hooks record in a user's script.

An event is `(kind, time_ns, subject, detail, mark)`. Inside the script's loop the hooks only record
these fields; `trace.detect.steps` interprets them later. Paired kinds open and close a span, and
spans may be nested.

| kind | subject | detail |
| --- | --- | --- |
| ITERATE | the iteration: a number | the second clock in nanoseconds, the loader's number or None |
| ITERATED | the iteration | fields of `Iteration` |
| FETCH | the iteration | |
| FETCHED | the iteration | samples of the batch or None, fields of `LoadTiming` or None |
| EXHAUSTED, DROPPED | the iteration | the second clock |
| MOVE, MOVED | | |
| CALL | the outermost module's id | fields of `Call` |
| CALLED | whether gradients were enabled | |
| BACKWARD | | |
| BACKWARD_DONE | | the loss, or a function that reads it later, or None |
| STEP | the optimiser's id | |
| STEPPED | the optimiser's id | the second clock |
| ZERO, ZEROED | | |
| MADE | the id of a new optimiser | |
| CLOCKS | | the second clock, before any other event |
| OWN, OWN_DONE | | the tracer's own work |
| DETAIL | `full`, `off` or `layers`, from the next step on | |

EXHAUSTED closes a FETCH, DROPPED stands alone. The second clock is read where an epoch begins or
may end; between two readings it is assumed to advance like the first.

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
    """The number of batches and the loader of an iteration, where known."""

    length: int | None
    loader: int | None


class Call(NamedTuple):
    """The arguments of a call of the outermost module."""

    grad: bool
    training: bool
    samples: int | None
