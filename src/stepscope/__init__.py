"""stepscope: where every millisecond, megabyte and joule of a training run goes.

    import stepscope
    run = stepscope.load_run("runs/latest")
    run.summary["phases"]["data"]["share"]
    stepscope.what_if(run, "workers=4").speedup

    with stepscope.watch():     # or stepscope.Scope() for a loop of your own
        train()

Reading needs no torch, and nothing imports it before `watch` or `Scope` is asked for. The command
line is `stepscope.cli`.
"""

from typing import TYPE_CHECKING, Any

from stepscope.api.notebook import NotebookRun as Run
from stepscope.api.notebook import load_run, what_if

if TYPE_CHECKING:
    from stepscope.api.scope import Scope
    from stepscope.api.watch import watch

__all__ = ["Run", "Scope", "load_run", "watch", "what_if"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for."""
    if name == "Scope":
        from stepscope.api.scope import Scope

        return Scope
    if name == "watch":
        from stepscope.api.watch import watch

        return watch
    raise AttributeError(f"module 'stepscope' has no attribute {name!r}")
