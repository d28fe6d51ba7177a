"""How much of a second core a second process makes use of: ResNet-18, a batch for each."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from stepscope.hardware.host import cpu_model

LEAST = 1.6
ASKED = (
    "--model resnet18 --data shapes --samples 512 --batch-size 32 --threads 1 --processes 1,2 "
    "--max-steps 8 --repeats 3 --json"
)


def main() -> int:
    script = Path(sys.executable).with_name("stepscope")
    with tempfile.TemporaryDirectory() as folder:
        command = [script, "scale", *ASKED.split(), "--out", folder]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    rows = json.loads(done.stdout)["measured"]
    strong, weak = (row for row in rows if row["processes"] == 2)
    met = weak["speedup"] >= LEAST
    for row, wanted in ((strong, "told beside it"), (weak, f"at least {LEAST}")):
        print(
            f"2 processes / 1, {row['mode']}: {row['speedup']:.3f} ({row['low']:.3f} to "
            f"{row['high']:.3f} in {row['rounds']} rounds), wanted {wanted}"
        )
    print(f"{'met' if met else 'MISSED'}, efficiency {weak['efficiency']:.1%}")
    print(f"  on {cpu_model()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
