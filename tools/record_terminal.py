"""Record docs/pictures/trace.svg: a real `stepscope trace` of the quickstart's slow script.

    .venv/bin/python tools/record_terminal.py

The script is the `train.py` of docs/quickstart.md, so that the picture and the page agree. What the
command prints is recorded with its colours and drawn by rich. Run it on a quiet machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "quickstart.md"
PICTURE = ROOT / "docs" / "pictures" / "trace.svg"
COLUMNS = 82
SCRIPT = "train.py"


def main() -> int:
    """Run the command and save the picture."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / SCRIPT).write_text(script_of(PAGE), encoding="utf-8")
        printed = run_trace(Path(folder))
    PICTURE.write_text(draw(f"$ stepscope trace {SCRIPT}\n{printed}"), encoding="utf-8")
    print(f"{PICTURE}: written")
    return 0


def script_of(page: Path) -> str:
    """Return the block of a page that is the file `train.py`."""
    found = re.search(rf"```python\n(# {SCRIPT}\n.*?)```", page.read_text("utf-8"), re.DOTALL)
    if found is None:
        sys.exit(f"{page}: wanted a python block that begins with `# {SCRIPT}`, found none")
    return found[1]


def run_trace(folder: Path) -> str:
    """Return what the command prints, as if to a terminal of this width."""
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", "trace", SCRIPT],
        cwd=folder,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"stepscope trace exited with {done.returncode}:\n{done.stdout}")
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def draw(printed: str) -> str:
    """Return the picture of a terminal; without the fonts that it would fetch from the network."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(printed))
        picture = console.export_svg(title="stepscope")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in picture.splitlines()) + "\n"


if __name__ == "__main__":
    sys.exit(main())
