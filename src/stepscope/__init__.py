"""stepscope: where every millisecond, megabyte and joule of a training run goes.

    import stepscope
    run = stepscope.load_run("runs/latest")
    run.summary["phases"]["data"]["share"]

Reading needs no torch. The command line is `stepscope.cli`.
"""

from stepscope.records.reader import Run, load_run

__all__ = ["Run", "load_run"]

__version__ = "0.1.0"
