"""`stepscope memory`: the memory bill of a run, before it runs."""

from __future__ import annotations

from json import dumps
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from stepscope.cli.settings_flags import SpecFlags
from stepscope.report.terminal.run_tables import print_forecast
from stepscope.settings.load_settings import resolve_request
from stepscope.supervisor.ask_process import forecast


def memory(
    model: str,
    /,
    *,
    settings: Annotated[SpecFlags | None, Parameter(name="*")] = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Forecast the memory that a run takes, item by item.

    Exits with 1 where it does not fit.

    Parameters
    ----------
    model
        A network of the zoo, or package.module:factory for your own.
    json
        Print one JSON object, and nothing else, on standard output.
    """
    spec = resolve_request(None, {**(settings or {}), "model": model})
    bill = forecast(spec)
    if json:
        print(dumps({"model": spec.model, "batch_size": spec.batch_size, **bill}))
    else:
        print_forecast(Console(), bill)
    return 0 if bill["fits"] else 1
