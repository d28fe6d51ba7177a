"""Forecast a training without training: `python -m stepscope.train.forecast_child`.

Takes a spec, builds its network and tries a few small steps.
"""

from __future__ import annotations

from typing import Any

from stepscope.errors import MissingExtraError
from stepscope.spec.load import validate
from stepscope.train.answering import answer_once


def forecast(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the forecast of a spec."""
    try:
        from stepscope.train.device import resolve
        from stepscope.train.foretell import foretell
        from stepscope.train.job import build_model
    except ImportError as error:
        raise MissingExtraError(f"a forecast ({error})", "torch", "train") from error
    spec = resolve(validate(asked))
    return {"spec": spec.model_dump(mode="json"), **foretell(spec, build_model(spec)).to_json()}


if __name__ == "__main__":
    answer_once(forecast)
