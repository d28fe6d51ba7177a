"""Attach the tracer before a script: Python imports a module of this name when it starts.

The script is run by Python itself, so `__main__`, `sys.argv`, tracebacks and the exit code are the
same as without a trace. This module leaves nothing in the environment or on the path: processes
that the script starts are not traced. The user's own `sitecustomize`, if any, is imported next.
"""

import os
import sys


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if entry != here]
    request = os.environ.pop("STEPSCOPE_TRACE", None)
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = os.environ.pop("STEPSCOPE_PYTHONPATH", None)
    if rest is None:  # not set, unless it was set for a process that is not traced
        rest = os.pathsep.join(entry for entry in path if entry != here) or None
    if rest is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = rest
    if request is not None:
        from stepscope.trace.bootstrap import attach

        attach(request)


def _import_next() -> None:
    """Import the user's own `sitecustomize`, if there is one."""
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


_begin()
_import_next()
