"""Timers placed by hand in a training: seconds by phase, in a row for each update.

In a script a comment is where a timer would be, as in `loss.backward()  # timer: backward`. The
tests put them in when they trace it (`with_timers` in tests/trace/test_scripts.py).
"""

import json
import time
from contextlib import contextmanager

PHASES = ("data", "transfer", "forward", "backward", "optimizer")
row = dict.fromkeys(PHASES, 0.0)
rows = []


@contextmanager
def timed(phase):
    start = time.perf_counter()
    try:
        yield
    finally:
        row[phase] += time.perf_counter() - start


def fetched(batches):
    """Give the batches; the time until each is there is `data`."""
    batches = iter(batches)
    while True:
        with timed("data"):
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield batch


def end_step():
    rows.append(dict(row))
    row.update(dict.fromkeys(PHASES, 0.0))


def tell():
    print("timers=" + json.dumps(rows))
