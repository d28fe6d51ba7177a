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

# Name, module and function, help.
_COMMANDS = (
    ("run", "run:run", "Train and record."),
    ("resume", "resume:resume", "Go on with a stopped run."),
    ("export", "export:export", "Write a run for other tools."),
    ("trace", "trace:trace", "Watch your own training script, unchanged."),
    ("summary", "summary:summary", "Show what is in a model."),
    (
        "estimate",
        "accel:estimate",
        "Estimate energy, cycles and peak activation on an accelerator.",
    ),
    ("score", "accel:score_command", "Give points for an efficient network."),
    ("memory", "memory:memory", "Forecast the memory that a run takes."),
    ("fit", "max_batch:fit", "Find the largest batch that fits."),
    ("sweep", "sweep:sweep", "Try settings, in rounds."),
    ("search", "accel:search", "Search efficient networks."),
    ("workers", "workers:workers", "Find how many workers."),
    ("stalls", "bottleneck:stalls", "Say what a run waits for."),
    ("scale", "scale:scale", "Say what more processes bring."),
    ("compare", "compare:compare", "Say which is faster."),
    ("report", "report:report", "Show a run as a page."),
    ("serve", "serve:serve", "Show runs in a browser, live."),
    ("lab", "lab:lab", "Do an experiment by name; list them."),
    ("doctor", "doctor:doctor", "Say what this machine can measure."),
    ("data", "data:app", "Get and verify data sets."),
)
_USAGE = {
    "trace": "Usage: stepscope trace [OPTIONS] SCRIPT [ARGS]",
    "fit": "Usage: stepscope fit [OPTIONS] MODEL, or fit [OPTIONS] -- SCRIPT [ARGS]",
}
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
    for name, function, about in _COMMANDS:
        # Only where there is one: `data` is an application of its own, which takes none.
        usage = {"usage": _USAGE[name]} if name in _USAGE else {}
        app.command(f"stepscope.cli.{function}", name=name, help=about, **usage)
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
