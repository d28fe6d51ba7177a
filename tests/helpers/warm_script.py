"""Run a user's script in a forked process that has torch imported, nearly as `python` would.

    python -m warm_script STDOUT STDERR TESTS (SCRIPT | -m MODULE) [ARGS]

The first two are descriptors, the third is this folder. `stepscope trace` is attached as by the
`sitecustomize` of `trace.autostart`; torch is there already, so that watching begins at once.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import runpy
import sys
import threading

from stepscope.trace.bootstrap import _AfterTorch, attach


def main(stdout: str, stderr: str, tests: str, *command: str) -> int:
    for number, descriptor in enumerate((stdout, stderr), 1):
        os.dup2(int(descriptor), number)
        os.close(int(descriptor))
    request = os.environ.pop("STEPSCOPE_TRACE")
    del os.environ["PYTHONPATH"]
    if (path := os.environ.pop("STEPSCOPE_PYTHONPATH", None)) is not None:
        os.environ["PYTHONPATH"] = path
    attach(request)
    waiting = next(each for each in sys.meta_path if isinstance(each, _AfterTorch))
    sys.meta_path.remove(waiting)
    waiting._call()
    sys.path[:] = [entry for entry in sys.path if entry != tests]
    code = _run(list(command))
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does
    atexit._run_exitfuncs()
    return code


def _run(command: list[str]) -> int:
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            sys.path.insert(0, os.getcwd())  # noqa: PTH109
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = command
            sys.path.insert(0, os.path.dirname(os.path.realpath(command[0])))  # noqa: PTH120
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
