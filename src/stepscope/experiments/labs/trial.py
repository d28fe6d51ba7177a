"""A few real steps in a process of their own, which tells what memory they took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.experiments.asking import ask
from stepscope.spec import RunSpec


def try_steps(
    spec: RunSpec, options: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Have `train.memory_trial` take some steps of a spec, and return what it saw.

    Raises:
        StepscopeError: it cannot be done; a RequestError where the change does not apply.
    """
    asked = {"spec": spec.model_dump(mode="json"), "options": dict(options)}
    return ask("stepscope.train.memory_trial", asked, environment)
