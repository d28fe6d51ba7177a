"""How a training process goes about its run: what its parent decides, and no setting of the run."""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessOptions:
    """`force` begins also what is forecast not to fit; a forecast takes seconds.

    Without checkpoints, what is stopped begins again from nothing. A distributed one is one of
    several processes of its training, connected as torchrun's variables tell.
    """

    force: bool = False
    forecast: bool = True
    checkpoint: bool = True
    distributed: bool = False

    def switches(self) -> list[str]:
        """Write them for the command line of the process."""
        wanted = {
            "--force": self.force,
            "--no-forecast": not self.forecast,
            "--no-checkpoint": not self.checkpoint,
            "--distributed": self.distributed,
        }
        return [switch for switch, on in wanted.items() if on]

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Let a parser read the switches."""
        everything = ProcessOptions(force=True, forecast=False, checkpoint=False, distributed=True)
        for switch in everything.switches():
            parser.add_argument(switch, action="store_true")

    @staticmethod
    def of(arguments: argparse.Namespace) -> ProcessOptions:
        """Return what was read."""
        return ProcessOptions(
            force=arguments.force,
            forecast=not arguments.no_forecast,
            checkpoint=not arguments.no_checkpoint,
            distributed=arguments.distributed,
        )
