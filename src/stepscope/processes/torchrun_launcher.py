"""Run torchrun as a silent process that ends with its parent.

`python -m stepscope.processes.torchrun_launcher PARENT TORCHRUN-ARGUMENTS`
"""

from __future__ import annotations

import logging
import os
import signal
import sys

from stepscope.hardware.die_with_parent import die_with_parent

# A rank that is asked to stop finishes its step or evaluation and writes a checkpoint.
_TIME_TO_STOP_S = 600


def main(argv: list[str]) -> int:
    """Start the ranks and wait for them; return 1 if one failed, 130 after a stop request."""
    parent, *for_torchrun = argv
    die_with_parent(int(parent))
    # SIGUSR1 (memory is short) becomes SIGTERM, which torchrun forwards to the ranks.
    signal.signal(signal.SIGUSR1, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
