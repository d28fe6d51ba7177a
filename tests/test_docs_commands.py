"""What the docs tell one to do works: commands are taken and run, the code in them too."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from as_a_person import ENVIRONMENT, Stepscope
from cyclopts import App
from pages import PAGES, ROOT, Block, blocks_of, name_of, shown_commands

from stepscope.cli.main import make_app
from stepscope.cli.trace_arguments import mark_script
from stepscope.spec.load import resolve_request

# What makes any documented command take seconds. Each flag has one value.
SHORTER = {
    "run": shlex.split("--samples 128 --batch-size 16 --max-steps 2 --epochs 1 --threads 1"),
    "stalls": shlex.split("--samples 128 --batch-size 16"),
    "sweep": shlex.split("--repeats 1"),
    "trace": shlex.split("--max-steps 20"),
}
# A network or 180 MB of data would be needed; a server goes on until Ctrl-C.
ONLY_PARSED = ("cifar10", "serve")


def shortened(arguments: list[str]) -> list[str]:
    """Give a command with less to do: what it says of that itself is left out."""
    command, *rest = arguments
    shorter = SHORTER.get(command, [])
    replaced = {at for at, word in enumerate(rest) if word in shorter[::2]}
    kept = [word for at, word in enumerate(rest) if not {at, at - 1} & replaced]
    return [command, *shorter, *kept]


def test_a_command_is_shortened_in_what_it_says_and_in_what_it_leaves_open() -> None:
    given = shlex.split("sweep --over workers=0,1 --repeats 5 --out x -- script.py")
    wanted = shlex.split("sweep --repeats 1 --over workers=0,1 --out x -- script.py")
    assert shortened(given) == wanted
    assert shortened(["trace", "script.py"]) == ["trace", "--max-steps", "20", "script.py"]
    assert shortened(["lab"]) == ["lab"]


def shown(case: object) -> str:
    return name_of(case) if isinstance(case, Path) else " ".join(map(str, case))  # type: ignore[call-overload]


@pytest.mark.parametrize(("page", "arguments"), shown_commands("stepscope"), ids=shown)
def test_a_command_in_the_docs_is_one_that_the_parser_takes(
    page: Path, arguments: list[str]
) -> None:
    ours = mark_script(arguments) if arguments[0] == "trace" else arguments
    _, bound, _ = make_app().parse_args(ours, exit_on_error=False, print_error=False)
    if arguments[0] == "run":
        resolve_request(None, bound.arguments.get("settings") or {})


def is_run(words: list[str]) -> bool:
    return words[0] == "stepscope" and not any(word in words for word in ONLY_PARSED)


def is_to_do(block: Block) -> bool:
    return block.language == "python" or any(map(is_run, block.commands))


PAGES_WITH_RUNS = [page for page in PAGES if any(map(is_to_do, blocks_of(page)))]


@dataclass
class Reader:
    """Somebody who does what the pages say, all in one folder, and nothing twice if need not be."""

    stepscope: Stepscope
    done: set[str] = field(default_factory=set)

    def do(self, words: list[str], *, again: bool = False) -> None:
        shorter = shortened(words[1:])
        if (command := shlex.join(shorter)) in self.done and not again:
            return
        self.done.add(command)
        answer = self.stepscope(*shorter)
        assert answer.code == 0, f"{shlex.join(words)}: {answer.err}"

    def run_python(self, text: str) -> None:
        command = [sys.executable, "-c", text]
        folder = self.stepscope.folder
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, env=ENVIRONMENT
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    reader = Reader(Stepscope(tmp_path_factory.mktemp("docs")))
    folder = reader.stepscope.folder
    (folder / "tests").symlink_to(ROOT / "tests")  # pages name scripts as from a checkout
    shutil.copy(ROOT / "tests" / "scripts" / "plain_cifar.py", folder / "your_script.py")
    reader.do(["stepscope", "run"])  # every page may speak of runs/latest
    return reader


@pytest.mark.parametrize("page", PAGES_WITH_RUNS, ids=name_of)
def test_what_a_page_tells_one_to_do_works(reader: Reader, page: Path) -> None:
    for block in blocks_of(page):
        if block.file:
            (reader.stepscope.folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            reader.run_python(block.text)
        commands = list(filter(is_run, block.commands))
        goes_on = any("resume" in words for words in commands)  # with what it began itself
        for words in commands:
            reader.do(words, again=goes_on)


def test_make_targets_in_the_docs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for page, arguments in shown_commands("make"):
        named = [word for word in arguments if "=" not in word]
        assert set(named) <= targets, name_of(page)


def commands_of(app: App, path: str = "stepscope") -> Iterator[str]:
    for name in app:
        if not name.startswith("-"):
            below = list(commands_of(app[name], f"{path} {name}"))
            yield from below or [f"{path} {name}"]


@pytest.mark.parametrize("command", list(commands_of(make_app())))
def test_every_command_is_documented(command: str) -> None:
    assert any(command in page.read_text(encoding="utf-8") for page in PAGES)
