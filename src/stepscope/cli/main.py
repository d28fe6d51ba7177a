"""The entry point: finds the command, runs it, and turns every error into a message and a code.

A command's module is imported only when it is called, so that `stepscope --help` stays fast.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from stepscope import __version__
from stepscope.cli.streams import lost_output, prepare_streams
from stepscope.errors import (
    DISK_FULL_ERRNOS,
    MachineError,
    StepscopeError,
    disk_full,
    limit_reached,
)

# Each command by the need that it serves, the most used first: module and function, help.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Profile": {
        "trace": ("trace:trace", "Profile your training script, unchanged"),
        "run": ("run:run", "Train and record a built-in model, or your own"),
        "resume": ("resume:resume", "Continue a stopped run from its checkpoint"),
    },
    "Understand": {
        "report": ("report:report", "Write an HTML report: findings, tables, charts"),
        "compare": ("compare:compare", "Compare runs, with confidence intervals"),
        "serve": ("serve:serve", "Show runs in a browser, live"),
        "export": ("export:export", "Export a run to other tools"),
    },
    "Improve": {
        "workers": ("workers:workers", "Find the number of loader workers to use"),
        "max-batch": ("max_batch:max_batch", "Find the largest batch that fits in memory"),
        "bottleneck": (
            "bottleneck:bottleneck",
            "Find what limits a built-in model: compute or data",
        ),
        "memory": ("memory:memory", "Forecast the memory of a built-in model, item by item"),
    },
    "Experiment": {
        "sweep": ("sweep:sweep", "Try combinations of settings, each several times"),
        "lab": ("lab:lab", "Run an experiment of a course or paper by name"),
        "scale": ("scale:scale", "Predict the speed-up from more training processes"),
    },
    "Model": {
        "summary": ("summary:summary", "Show layers, shapes, parameters and multiply-adds"),
        "accel": ("accel:app", "Estimate energy and cycles on a modelled accelerator"),
    },
    "Set-up": {
        "doctor": ("doctor:doctor", "Check what stepscope can measure on this machine"),
        "data": ("data:app", "Get and verify data sets"),
        "completion": ("completion:completion", "Print a tab-completion script for your shell"),
    },
}
_RENAMED = {
    "fit": "max-batch",
    "stalls": "bottleneck",
    **{name: f"accel {name}" for name in ("estimate", "score", "search")},
}
_TAKE_A_SCRIPT = ("max-batch", "sweep", "workers")  # after --
_USAGE = {
    "workers": "Usage: stepscope workers [OPTIONS] [SPEC.toml]\n"
    "       stepscope workers [OPTIONS] -- SCRIPT [ARGS]",
    "sweep": "Usage: stepscope sweep [OPTIONS] [SPEC.toml] --over KEY=V1,V2,...\n"
    "       stepscope sweep [OPTIONS] --over KEY=V1,V2,... -- SCRIPT [ARGS]",
    "trace": "Usage: stepscope trace [OPTIONS] SCRIPT [ARGS]",
    "max-batch": "Usage: stepscope max-batch [OPTIONS] MODEL\n"
    "       stepscope max-batch [OPTIONS] -- SCRIPT [ARGS]",
}
# They take every setting of `run`, and list only their own flags.
_TAKE_SETTINGS = ("workers", "max-batch", "bottleneck", "memory", "sweep", "lab")
_SETTINGS_TOO = (
    "Also accepts the settings of `stepscope run`, such as --max-steps: see --help-settings."
)
_ABOUT = "See where PyTorch training spends time, memory and energy, and what to change."
_START = f"""{_ABOUT}

  Profile your script:            stepscope trace train.py
  Choose its number of workers:   stepscope workers -- train.py
  Try it without a script:        stepscope run

All commands: stepscope --help"""
_HOW_TO_SEE_MORE = "set STEPSCOPE_TRACEBACK=1 to see where"


def make_app() -> App:
    """Return the application with all commands; their modules are not imported here."""
    app = App(
        name="stepscope",
        help=_ABOUT,
        version=__version__,
        help_format="markdown",
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
        default_parameter=Parameter(allow_repeating=True),  # the last one wins
    )
    for commands in COMMANDS.values():
        for name, (function, about) in commands.items():
            # `accel` and `data` are applications with subcommands, which take no usage.
            usage = {"usage": _USAGE[name]} if name in _USAGE else {}
            also = f"\n\n{_SETTINGS_TOO}" if name in _TAKE_SETTINGS else ""
            app.command(f"stepscope.cli.{function}", name=name, help=f"{about}.{also}", **usage)
    return app


def overview() -> str:
    """Return the help of `stepscope` itself: all commands, by need, on one screen."""
    usage = "Usage: stepscope COMMAND [OPTIONS]; stepscope COMMAND --help lists the options"
    lines = [_ABOUT, "", usage, ""]
    for need, commands in COMMANDS.items():
        for place, (name, (_, about)) in enumerate(commands.items()):
            lines.append(f"  {'' if place else need:12}{name:12}{about}")
    return "\n".join(lines)


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
    if not arguments or arguments[0] in ("--help", "-h"):
        print(overview() if arguments else _START)
        return 0
    if arguments[0] in _RENAMED:
        now = shlex.join(["stepscope", *_RENAMED[arguments[0]].split(), *arguments[1:]])
        return _fail(f"`{arguments[0]}` is now `{_RENAMED[arguments[0]]}`. Type: {now}", 2)
    if "--help-settings" in _ours(arguments):
        arguments = ["run", "--help"]
    if arguments[0] == "trace":
        from stepscope.cli.script_arguments import mark_script

        arguments = mark_script(arguments)
    elif arguments[0] in _TAKE_A_SCRIPT:
        from stepscope.cli.script_arguments import keep_mark

        arguments = keep_mark(arguments)
    as_json = any(word == "--json" or word.startswith("--json=") for word in _ours(arguments))
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
        if (limit := limit_reached(error)) is not None:
            return _fail(str(limit), limit.exit_code, as_json)
        reason = f"internal error: {type(error).__name__}: {error}; {_HOW_TO_SEE_MORE}"
        return _fail(reason, 70, as_json)


def _ours(arguments: list[str]) -> list[str]:
    """Return the words before `--`, behind which a script and its arguments stand."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _fail(message: str, exit_code: int, as_json: bool = False) -> int:
    """Print an error on standard error, with `--json` also as the JSON object."""
    print(f"stepscope: {message}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": message, "exit_code": exit_code}))
    return exit_code
