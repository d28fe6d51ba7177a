"""The entry point: finds the command, runs it, and turns every error into a message and a code.

A command's module is imported only when it is called, so that `stepscope --help` stays fast.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from stepscope import __version__
from stepscope.cli.streams import lost_output, prepare_streams
from stepscope.errors import DISK_FULL_ERRNOS, MachineError, StepscopeError, disk_full

_TAKE_A_SCRIPT = ("fit", "sweep", "workers")  # after --
_HOW_TO_SEE_MORE = "set STEPSCOPE_TRACEBACK=1 to see where"


def make_app() -> App:
    """Return the application with all commands; their modules are not imported here."""
    app = App(
        name="stepscope",
        help="Where every millisecond, megabyte and joule of a training run goes.",
        version=__version__,
        help_format="plaintext",
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
        default_parameter=Parameter(allow_repeating=True),  # the last one wins
    )
    app.command("stepscope.cli.run:run", name="run", help="Train and record.")
    app.command("stepscope.cli.resume:resume", name="resume", help="Go on with a stopped run.")
    app.command("stepscope.cli.export:export", name="export", help="Write a run for other tools.")
    app.command(
        "stepscope.cli.trace:trace",
        name="trace",
        usage="Usage: stepscope trace [OPTIONS] SCRIPT [ARGS]",
        help="Watch your own training script, unchanged.",
    )
    app.command("stepscope.cli.summary:summary", name="summary", help="Show what is in a model.")
    app.command(
        "stepscope.cli.accel:estimate",
        name="estimate",
        help="Estimate energy, cycles and peak activation on an accelerator.",
    )
    app.command(
        "stepscope.cli.accel:score_command",
        name="score",
        help="Give points for an efficient network.",
    )
    app.command(
        "stepscope.cli.memory:memory", name="memory", help="Forecast the memory that a run takes."
    )
    app.command(
        "stepscope.cli.max_batch:fit",
        name="fit",
        usage="Usage: stepscope fit [OPTIONS] MODEL, or fit [OPTIONS] -- SCRIPT [ARGS]",
        help="Find the largest batch that fits.",
    )
    app.command("stepscope.cli.sweep:sweep", name="sweep", help="Try settings, in rounds.")
    app.command("stepscope.cli.accel:search", name="search", help="Search efficient networks.")
    app.command("stepscope.cli.workers:workers", name="workers", help="Find how many workers.")
    app.command("stepscope.cli.bottleneck:stalls", name="stalls", help="Say what a run waits for.")
    app.command("stepscope.cli.scale:scale", name="scale", help="Say what more processes bring.")
    app.command("stepscope.cli.compare:compare", name="compare", help="Say which is faster.")
    app.command("stepscope.cli.report:report", name="report", help="Show a run as a page.")
    app.command("stepscope.cli.serve:serve", name="serve", help="Show runs in a browser, live.")
    app.command("stepscope.cli.lab:lab", name="lab", help="Do an experiment by name; list them.")
    app.command(
        "stepscope.cli.doctor:doctor", name="doctor", help="Say what this machine can measure."
    )
    app.command("stepscope.cli.data:app", name="data", help="Get and verify data sets.")
    return app


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    stdout, _ = prepare_streams()
    _end_as_by_ctrl_c()
    code = _run(arguments)
    lost = lost_output(stdout)
    if lost is not None and code == 0:
        code = _fail(f"cannot write to standard output: {lost.strerror}", MachineError.exit_code)
    sys.exit(code)


def _end_as_by_ctrl_c() -> None:
    """Handle every stop signal as Ctrl-C, so that a sweep between two trials closes its folder."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # keep the effect of nohup
            signal.signal(number, signal.default_int_handler)


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["trace"]:
        from stepscope.cli.script_arguments import mark_script

        arguments = mark_script(arguments)
    elif arguments[:1] and arguments[0] in _TAKE_A_SCRIPT:
        from stepscope.cli.script_arguments import keep_mark

        arguments = keep_mark(arguments)
    ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json = any(word == "--json" or word.startswith("--json=") for word in ours)
    try:
        return int(make_app()(arguments) or 0)
    except StepscopeError as error:
        return _fail(str(error), error.exit_code, as_json)
    except CycloptsError as error:
        return _fail(f"{error} See `stepscope --help`.", 2, as_json)
    except KeyboardInterrupt:
        return _fail("interrupted", 130, as_json)
    except Exception as error:
        if os.environ.get("STEPSCOPE_TRACEBACK"):
            raise
        if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
            full = disk_full(error, str(error.filename))
            return _fail(str(full), full.exit_code, as_json)
        reason = f"a fault of stepscope: {type(error).__name__}: {error}; {_HOW_TO_SEE_MORE}"
        return _fail(reason, 70, as_json)


def _fail(message: str, exit_code: int, as_json: bool = False) -> int:
    """Print an error on standard error, with `--json` also as the JSON object."""
    print(f"stepscope: {message}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": message, "exit_code": exit_code}))
    return exit_code
