"""Torch's elastic launcher, as a process that ends with its parent and says nothing itself.

`python -m stepscope.processes.torchrun_launcher --parent PID TORCHRUN-ARGUMENTS`. What became of
the processes that it starts stands in their folders; they print what they have to say.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from types import FrameType

from stepscope.hardware.die_with_parent import die_with_parent

# A rank that is asked to stop ends its step, or its test, and writes a checkpoint.
_TIME_TO_STOP_S = 600


def main(argv: list[str]) -> int:
    """Start the processes and wait for them; 1 when one failed, 130 when told to stop."""
    parser = argparse.ArgumentParser(
        prog="stepscope.processes.torchrun_launcher", allow_abbrev=False
    )
    parser.add_argument("--parent", type=int, required=True)
    args, for_torchrun = parser.parse_known_args(argv)
    die_with_parent(args.parent)
    signal.signal(signal.SIGUSR1, _stop_as_told)
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_TIME_TO_STOP_S))

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    logging.disable(logging.CRITICAL)
    try:
        torchrun(for_torchrun)
    except ChildFailedError:
        return 1
    except SignalException:
        return 130
    return 0


def _stop_as_told(number: int, frame: FrameType | None) -> None:
    """Take the signal for short memory as a word to stop, the only one that torch passes on."""
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
