"""How many workers a limit holds beside the training, by forecast, and what is refused."""

from __future__ import annotations

import pytest

from stepscope.errors import OutOfMemoryError
from stepscope.memory_forecast.fit_check import (
    WORKERS_STAY_BELOW,
    check_fit,
    require_fit,
)
from stepscope.settings.load_settings import validate
from stepscope.train.device import resolve
from stepscope.train.training_setup import build_model

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

# Large batches made ahead: what the workers hold is then far more than this process drifts by.
MANY = {"samples": 4000, "batch_size": 256, "workers": 4, "prefetch": 8, "threads": 1}


@pytest.fixture(scope="module")
def foretold():
    spec = resolve(validate({**MANY, "device": "cpu"}))
    model = build_model(spec)
    return lambda limit: check_fit(spec.model_copy(update={"memory_limit": limit}), model)


def test_a_limit_between_training_and_workers_holds_some_of_them_and_is_no_refusal(foretold):
    free = foretold(None)
    assert free.to_json()["workers_that_fit"] == 4
    items = free.bill.items
    of_workers = items["workers"].bytes + items["prefetch"].bytes
    alone = free.bill.total_bytes - of_workers
    some = foretold(round((alone + 0.6 * of_workers) / WORKERS_STAY_BELOW))
    assert 0 < some.workers_that_fit < 4
    require_fit(some)
    none = foretold(round((alone + 0.1 * of_workers) / WORKERS_STAY_BELOW))
    assert none.workers_that_fit == 0
    require_fit(none)
    too_little = foretold(alone // 2)
    assert too_little.workers_that_fit is None
    with pytest.raises(OutOfMemoryError, match="would take"):
        require_fit(too_little)
