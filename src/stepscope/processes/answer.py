"""A process that is asked one thing: JSON on standard input, one JSON object on standard output.

A process of its own, like the training's, so that what it measures of itself is what the training's
would be. `supervisor.ask_process` is the side that asks.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from stepscope.errors import StepscopeError
from stepscope.hardware.die_with_parent import die_with_parent


def answer_once(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer on what was standard output; whatever a network prints goes to standard error."""
    die_with_parent(os.getppid())
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        try:
            said = answer(json.load(sys.stdin))
        except StepscopeError as error:
            said = {"error": str(error), "exit_code": error.exit_code}
        answers.write(json.dumps(said))
    sys.stderr.flush()
    os._exit(0)  # a thread that a person's model left running would keep the process alive
