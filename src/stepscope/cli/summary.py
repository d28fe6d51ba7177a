"""`stepscope summary`: the counts of a model."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import Annotated, get_args

from cyclopts import Parameter

from stepscope.cli.settings_flags import layout_of
from stepscope.cli.streams import AsJson, print_answer
from stepscope.errors import OutOfMemoryError
from stepscope.models import registry
from stepscope.records.types import NetworkAnswer, OptimizerCounts
from stepscope.report.terminal.model_table import print_network
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import validate
from stepscope.settings.run_settings import Optimizer


def summary(
    model: str,
    /,
    *,
    shape: Annotated[str | None, Parameter(name="--input")] = None,
    classes: str | None = None,
    norm: Annotated[str | None, Parameter(negative_none="no-")] = "batch",
    json: AsJson = False,
) -> int:
    """Count the layers, parameters, multiply-adds and memory of a model.

    Parameters
    ----------
    model
        A network of the zoo, or package.module:factory for your own.
    shape
        Shape of one sample, like 3,32,32, or the length of a text [default: the usual input of the
        network].
    classes
        Number of classes [default: that of the zoo, 10 for your own model].
    norm
        none removes the batch-norm layers.
    """
    asked = validate({"model": model, "norm": norm})
    sample_shape, wanted_classes = layout_of(model, shape, classes)
    try:
        # Output of a user's model must not reach standard output.
        with contextlib.redirect_stdout(sys.stderr):
            found = _count(asked, sample_shape, wanted_classes)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        first_line = str(error).strip().partition("\n")[0]
        raise OutOfMemoryError(
            f"model {model} with an input of {'x'.join(map(str, sample_shape))} and "
            f"{wanted_classes:,} classes does not fit: {first_line}. "
            "Choose a smaller --input or fewer --classes."
        ) from error
    print_answer(found, print_network, as_json=json)
    return 0


def _count(asked: RunSpec, sample_shape: tuple[int, ...], classes: int) -> NetworkAnswer:
    model = registry.build(asked.model, classes=classes, norm=asked.norm)
    from stepscope.models.model_summary import count_network, optimizer_state
    from stepscope.train.optimizers import make_optimizer

    entry = registry.ZOO.get(asked.model)
    tokens = entry.tokens if entry else None
    network = count_network(model, sample_shape, asked.model, tokens)
    states: dict[str, OptimizerCounts] = {}
    for name in get_args(Optimizer):
        # Only some optimisers have momentum; where it changes nothing, one row suffices.
        specs = (validate({"optimizer": name, "momentum": momentum}) for momentum in (0.0, 0.9))
        plain, moved = (
            optimizer_state(partial(make_optimizer, spec), network["gradients"]) for spec in specs
        )
        states[name] = plain
        if moved != plain:
            states[f"{name} with momentum"] = moved
    return {
        "model": asked.model,
        "input": list(sample_shape),
        "norm": asked.norm,
        "classes": classes,
        **network,
        "optimizer_state": states,
    }
