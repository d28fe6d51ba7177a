"""`stepscope memory`: the memory bill of a run, before it runs."""

from __future__ import annotations

from stepscope.cli.settings_flags import SettingsToo
from stepscope.cli.streams import AsJson, print_answer
from stepscope.records.types import MemoryAnswer
from stepscope.report.terminal.run_tables import print_forecast
from stepscope.settings.load_settings import resolve_request
from stepscope.supervisor.ask_process import forecast


def memory(model: str, /, *, settings: SettingsToo = None, json: AsJson = False) -> int:
    """Forecast the memory of a run, item by item.

    Exits with 1 if it does not fit.

    Parameters
    ----------
    model
        A network of the zoo, or package.module:factory.
    """
    spec = resolve_request(None, {**(settings or {}), "model": model})
    bill = forecast(spec)
    answer: MemoryAnswer = {"model": spec.model, "batch_size": spec.batch_size, **bill}
    print_answer(answer, print_forecast, as_json=json)
    return 0 if bill["fits"] else 1
