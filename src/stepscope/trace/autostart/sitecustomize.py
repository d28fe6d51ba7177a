"""Python imports a module of this name before a script; `stepscope trace` puts this one in its way.

So the script is run by Python itself, and everything about it (`__main__`, `sys.argv`, tracebacks,
exit code) is as it would be. This module leaves nothing in the environment or on the path: what the
script starts is not watched. A module of the same name that the person has is imported in its turn.
"""

import os
import sys


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if entry != here]
    request = os.environ.pop("STEPSCOPE_TRACE", None)
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = os.pathsep.join(entry for entry in path if entry != here)
    if rest:
        os.environ["PYTHONPATH"] = rest
    else:
        os.environ.pop("PYTHONPATH", None)
    if request is not None:
        from stepscope.trace.bootstrap import attach

        attach(request)


def _hand_on() -> None:
    """Import the person's own sitecustomize, if there is one."""
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


_begin()
_hand_on()
