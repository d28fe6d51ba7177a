"""Make a training short that only wants to know its memory: few batches, each kind of them.

    test, train, test, train a little, test

An epoch keeps some full batches, as many as workers have ready at once and two at least, and its
last one, which may be smaller and leave holes of its own. The second epoch begins on what a test
and a checkpoint left. All samples are in memory as ever. Where the training has no tests, neither
has this.
"""

from __future__ import annotations

from dataclasses import replace

from stepscope.data.sample_order import EpochOrder
from stepscope.train.epoch_plan import plan_stages
from stepscope.train.training_setup import Job

_FULL_BATCHES = 2  # in the second, gradients meet the state that the first step made


def shorten(job: Job) -> Job:
    """Return the job with short epochs; the orders of its loaders are changed in place."""
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
    """Keep so many full portions of an epoch, and the rest at its end."""
    order.samples = min(order.samples, full * times + order.samples % full)
