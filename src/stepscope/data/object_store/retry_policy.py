"""How long a request may take, and how often and how long it is retried."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class RetryPolicy:
    """Timeouts and limits of one request.

    answer_within_s: the timeout of an attempt.
    first_wait_s, longest_wait_s: the back-off between attempts.
    give_up_after_s: the total time for all attempts.
    wrong_answers: the number of objects that may fail their check before giving up.
    """

    answer_within_s: float = 30.0
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0
    give_up_after_s: float = 60.0
    wrong_answers: int = 4

    def waits_s(self) -> Iterator[float]:
        """Yield the wait after each failure: exponential back-off with jitter."""
        longest = self.first_wait_s
        while True:
            yield longest * random.uniform(0.5, 1.0)
            longest = min(2 * longest, self.longest_wait_s)
