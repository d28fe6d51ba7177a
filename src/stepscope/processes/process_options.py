"""Options of a training process that are set by its parent and are not settings of the run."""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessOptions:
    """Options of a training process.

    force: start even if the forecast exceeds the available memory.
    forecast: forecast the memory first, which takes seconds.
    checkpoint: write checkpoints; without them a stopped run starts again.
    distributed: join other ranks, with the environment variables of torchrun.
    """

    force: bool = False
    forecast: bool = True
    checkpoint: bool = True
    distributed: bool = False

    def switches(self) -> list[str]:
        """Return the options as command-line switches."""
        wanted = {
            "--force": self.force,
            "--no-forecast": not self.forecast,
            "--no-checkpoint": not self.checkpoint,
            "--distributed": self.distributed,
        }
        return [switch for switch, on in wanted.items() if on]

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Add the switches to a parser."""
        everything = ProcessOptions(force=True, forecast=False, checkpoint=False, distributed=True)
        for switch in everything.switches():
            parser.add_argument(switch, action="store_true")

    @staticmethod
    def of(arguments: argparse.Namespace) -> ProcessOptions:
        """Return the options of parsed arguments."""
        return ProcessOptions(
            force=arguments.force,
            forecast=not arguments.no_forecast,
            checkpoint=not arguments.no_checkpoint,
            distributed=arguments.distributed,
        )
