"""Commands that start processes of their own are not for a launcher of several processes."""

from __future__ import annotations

from stepscope.errors import RequestError
from stepscope.experiments.ranks import find_place


def refuse_launcher(command: str) -> None:
    """Refuse a command that torchrun has started several times: each would do all of the work.

    Raises:
        RequestError: it has.
    """
    place = find_place()
    if place is not None:
        raise RequestError(
            f"{command}: wanted one process, which starts its trials itself; found {place.world}, "
            f"started by torchrun. Call it without torchrun: stepscope {command} ..."
        )
