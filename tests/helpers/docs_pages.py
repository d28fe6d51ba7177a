"""The pages of the docs, and what their blocks of code are.

How the blocks of a page are read is told in CONTRIBUTING.md, under Tests.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "bench" / "README.md"],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that this block is, when its first line is a comment with a file name."""
        found = re.match(r"# (\S+\.(?:py|toml))\n", self.text)
        return found[1] if found else None

    @property
    def commands(self) -> list[list[str]]:
        """The commands of a shell block, each as its words; in `console`, those after a `$`."""
        if self.language not in ("sh", "console"):
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [words for line in lines if (words := shlex.split(line, comments=True))]


def blocks_of(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [Block(*each) for each in found]


def shown_commands(program: str) -> list[tuple[Path, list[str]]]:
    return [
        (page, words[1:])
        for page in PAGES
        for block in blocks_of(page)
        for words in block.commands
        if words[0] == program
    ]
