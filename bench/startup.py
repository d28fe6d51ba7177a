"""How long `stepscope --help` takes, against a Python that does nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from _alternate import alternate, report

ROUNDS = 20
MOST_S = 0.25


def main() -> int:
    script = Path(sys.executable).with_name("stepscope")
    compared = alternate(
        lambda: subprocess.run([script, "--help"], check=True, capture_output=True),
        lambda: subprocess.run([sys.executable, "-c", ""], check=True, capture_output=True),
        ROUNDS,
    )
    return report(
        "stepscope --help / python -c ''",
        compared,
        f"{MOST_S} s at most for the first",
        compared.first_s <= MOST_S,
    )


if __name__ == "__main__":
    sys.exit(main())
