"""Forecast a training without training: `python -m stepscope.train.forecast_child`.

Takes a spec as JSON on standard input, builds its network, tries a few small steps and prints one
JSON object: the forecast, or the error. A process of its own, like the training's, so that what it
measures of itself is what the training's would be.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from stepscope.errors import MissingExtraError, StepscopeError
from stepscope.measure.lifetime import die_with_parent


def main() -> None:
    """Answer on what was standard output; whatever a network prints goes to standard error."""
    die_with_parent(os.getppid())
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        answer.write(json.dumps(_answer(json.load(sys.stdin))))
    sys.stderr.flush()
    os._exit(0)  # a thread that a person's model left running would keep the process alive


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        try:
            from stepscope.train.device import resolve
            from stepscope.train.foretell import foretell
            from stepscope.train.job import build_model
        except ImportError as error:
            raise MissingExtraError(f"a forecast ({error})", "torch", "train") from error
        from stepscope.spec.load import validate

        spec = resolve(validate(asked))
        return {"spec": spec.model_dump(mode="json"), **foretell(spec, build_model(spec)).to_json()}
    except StepscopeError as error:
        return {"error": str(error), "exit_code": error.exit_code}


if __name__ == "__main__":
    main()
