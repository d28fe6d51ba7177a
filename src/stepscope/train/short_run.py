"""Shorten a training that only measures its peak memory.

    test, train, test, train a few steps, test

An epoch keeps as many full batches as the workers prefetch, at least two, and the last batch, which
may be smaller and fragment the memory differently. The second epoch starts with the memory that a
test and a checkpoint left behind. All samples stay in memory. A training without tests stays
without.
"""

from __future__ import annotations

from dataclasses import replace

from stepscope.data.sample_order import EpochOrder
from stepscope.train.epoch_plan import plan_stages
from stepscope.train.training_setup import Job

_FULL_BATCHES = 2  # from the second on, the optimiser has its state


def shorten(job: Job) -> Job:
    """Return the job with short epochs; shorten the orders of its loaders in place."""
    spec = job.spec
    ready_at_once = spec.workers * spec.prefetch
    steps = -(-max(_FULL_BATCHES, ready_at_once + 1) // spec.accumulate)
    _cut(job.train.order, spec.batch_size * spec.accumulate, steps)
    if job.test is not None:
        _cut(job.test.order, spec.batch_size, 1)
    per_epoch = -(-len(job.train.order) // spec.accumulate)
    again = -(-_FULL_BATCHES // spec.accumulate)
    stages = plan_stages(2, per_epoch, per_epoch + again, judged_on=spec.judged_on)
    return replace(job, stages=stages)


def _cut(order: EpochOrder, full: int, times: int) -> None:
    """Keep `times` full portions of an epoch, and the remainder at its end."""
    order.samples = min(order.samples, full * times + order.samples % full)
