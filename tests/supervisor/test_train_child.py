"""What a run that does not fit is told to try."""

from __future__ import annotations

import pytest

from stepscope.supervisor.train_child import what_would_help

MIB = 2**20


def remedy(fits, pool="host", **settings):
    return {"settings": settings, "pool": pool, "pool_bytes": 300 * MIB, "fits": fits}


def test_what_fits_is_listed_apart_from_what_only_takes_less():
    forecast = {
        "remedies": [remedy(True, batch_size=64), remedy(False, checkpoint_activations=True)]
    }
    fitting, not_enough = what_would_help(forecast).split("; not enough alone: ")
    assert "--batch-size 64 (300.0 MiB)" in fitting
    assert "--checkpoint-activations (300.0 MiB)" in not_enough


@pytest.mark.parametrize(
    ("forecast", "advice"),
    [
        (None, "Try a smaller --batch-size or fewer --workers."),
        ({"remedies": [remedy(True, batch_size=64)]}, "--batch-size 64 (300.0 MiB)."),
        ({"remedies": [remedy(False, batch_size=1)]}, "a larger --memory-limit"),
        ({"remedies": [remedy(False, "device", batch_size=1)]}, "a device with more memory"),
    ],
    ids=["no forecast", "all fit", "no host memory", "no device memory"],
)
def test_the_advice_follows_the_forecast(forecast, advice):
    assert advice in what_would_help(forecast)
    assert "not enough" not in what_would_help(forecast)
