"""What a run that does not fit is told to try."""

from __future__ import annotations

from stepscope.supervisor.train_child import what_would_help

MIB = 2**20


def remedy(fits, pool="host", **settings):
    return {"settings": settings, "pool": pool, "pool_bytes": 300 * MIB, "fits": fits}


def test_what_fits_is_told_apart_from_what_only_takes_less():
    forecast = {
        "remedies": [remedy(True, batch_size=64), remedy(False, checkpoint_activations=True)]
    }
    assert what_would_help(forecast) == (
        "What would help, by forecast: --batch-size 64 (300.0 MiB); not enough by itself: "
        "--checkpoint-activations (300.0 MiB)."
    )


def test_where_all_of_it_fits_nothing_is_called_too_little():
    assert "not enough" not in what_would_help({"remedies": [remedy(True, batch_size=64)]})


def test_where_nothing_fits_more_room_is_named_for_the_pool_that_is_full():
    said = what_would_help({"remedies": [remedy(False, batch_size=1)]})
    assert "None of these would fit either" in said
    assert "A larger --memory-limit is needed" in said
    said = what_would_help({"remedies": [remedy(False, "device", batch_size=1)]})
    assert "A device with more memory is needed" in said


def test_without_a_forecast_there_is_general_advice():
    assert what_would_help(None) == "Try a smaller --batch-size or fewer --workers."
