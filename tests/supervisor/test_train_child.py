"""What a run that does not fit is told to try."""

import pytest

from stepscope.supervisor.train_child import what_would_help

MIB = 2**20


def remedy(fits, pool="host", **settings):
    return {"settings": settings, "pool": pool, "pool_bytes": 300 * MIB, "fits": fits}


SMALLER, RECOMPUTED = "--batch-size 64 (300.0 MiB)", "--checkpoint-activations (300.0 MiB)"


@pytest.mark.parametrize(
    ("remedies", "advice"),
    [
        (None, "Try a smaller --batch-size or fewer --workers."),
        ([remedy(True, batch_size=64)], f"{SMALLER}."),
        (
            [remedy(True, batch_size=64), remedy(False, checkpoint_activations=True)],
            f"{SMALLER}; not enough alone: {RECOMPUTED}.",
        ),
        ([remedy(False, batch_size=1)], "a larger --memory-limit or a smaller network."),
        (
            [remedy(False, "device", batch_size=1)],
            "a device with more memory or a smaller network.",
        ),
    ],
    ids=["no forecast", "all fit", "one does not", "no host memory", "no device memory"],
)
def test_the_advice_follows_the_forecast(remedies, advice):
    assert what_would_help(remedies and {"remedies": remedies}).endswith(advice)
