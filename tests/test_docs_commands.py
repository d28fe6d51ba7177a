"""What the docs tell one to do works: commands are taken and run, the code in them too."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App, CycloptsError
from docs_pages import PAGES, ROOT, Block, blocks_of, name_of, shown_commands
from stepscope_command import Stepscope

from stepscope.api.scope import Scope
from stepscope.cli.main import make_app
from stepscope.cli.script_arguments import mark_script
from stepscope.errors import StepscopeError
from stepscope.settings.load_settings import resolve_request
from stepscope.supervisor import machine_peaks

# What makes any documented command take seconds. Each flag has one value.
SHORTER = {
    "run": shlex.split("--samples 128 --batch-size 8 --max-steps 12 --epochs 1 --threads 1"),
    "bottleneck": shlex.split("--samples 128 --batch-size 16"),
    "sweep": shlex.split("--repeats 1"),
    "trace": shlex.split("--max-steps 20"),
}
# A network, 180 MB of data or a folder of photographs would be needed; a server runs until Ctrl-C;
# `workers` takes a minute, and has tests of its own.
ONLY_PARSED = ("cifar10", "photos", "serve", "workers")


def shortened(arguments: list[str]) -> list[str]:
    """Give a command with less to do: what it says of that itself is left out."""
    command, *rest = arguments
    shorter = SHORTER.get(command, [])
    replaced = {at for at, word in enumerate(rest) if word in shorter[::2]}
    kept = [word for at, word in enumerate(rest) if not {at, at - 1} & replaced]
    return [command, *shorter, *("lenet" if word == "resnet18" else word for word in kept)]


def refused(arguments: list[str]) -> str | None:
    """Say what the parser has against a command."""
    ours = mark_script(arguments) if arguments[0] == "trace" else arguments
    try:
        _, bound, _ = make_app().parse_args(ours, exit_on_error=False, print_error=False)
        if arguments[0] == "run":
            resolve_request(None, bound.arguments.get("settings") or {})
    except (CycloptsError, StepscopeError) as complaint:
        return str(complaint)
    return None


def test_every_command_in_the_docs_is_one_that_the_parser_takes():
    assert [
        f"{name_of(page)}: {shlex.join(arguments)}: {complaint}"
        for page, arguments in shown_commands("stepscope")
        if (complaint := refused(arguments))
    ] == []


def test_a_command_that_the_parser_does_not_take_is_seen():
    for mistaken in ("run --batchsize 8", "run --batch-size many", "trian", "run --mode fast"):
        assert refused(mistaken.split()), mistaken


def kind_of(arguments: list[str], files: Mapping[str, str]) -> frozenset[str]:
    """Give what tells a command from others: its flags, the files it uses, where it writes."""
    command, _, _ = make_app().parse_commands(arguments)
    flags = {word for word in arguments if word.startswith("-")}
    written = {after for word, after in pairwise(arguments) if word in ("--out", "--output")}
    named = {word.partition(":")[0] for word in arguments}
    used = {text for file, text in files.items() if {file, Path(file).stem} & named}
    return frozenset({" ".join(command), *flags, *written, *used})


def is_run(words: list[str]) -> bool:
    return words[0] == "stepscope" and not any(word in words for word in ONLY_PARSED)


def is_to_do(block: Block) -> bool:
    return block.language == "python" or any(map(is_run, block.commands))


PAGES_WITH_RUNS = [page for page in PAGES if any(map(is_to_do, blocks_of(page)))]


@dataclass
class Reader:
    """Somebody who does what the pages say in one folder, and each kind of command once."""

    stepscope: Stepscope
    files: dict[str, str] = field(default_factory=dict)
    done: set[frozenset[str]] = field(default_factory=set)

    def is_done(self, words: list[str]) -> bool:
        return kind_of(shortened(words[1:]), self.files) in self.done

    def do(self, words: list[str]) -> None:
        self.done.add(kind_of(shortened(words[1:]), self.files))
        answer = self.stepscope(*shortened(words[1:]))
        # With as few runs as here, the gate cannot tell.
        expected = 6 if "--fail-if-slower" in words else 0
        assert answer.code == expected, f"{shlex.join(words)}: {answer.err}"

    def write(self, file: str, text: str) -> None:
        (self.stepscope.folder / file).write_text(text, encoding="utf-8")
        self.files[file] = text

    def run_python(self, text: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.stepscope.folder)
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(text, names)
            for scope in names.values():
                if isinstance(scope, Scope):
                    scope.close()  # as at the end of a program


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    reader = Reader(Stepscope(tmp_path_factory.mktemp("docs")))
    folder = reader.stepscope.folder
    (folder / "tests").symlink_to(ROOT / "tests")  # pages name scripts as from a checkout
    shutil.copy(ROOT / "tests" / "scripts" / "plain_cifar.py", folder / "your_script.py")
    reader.do(["stepscope", "run"])  # every page may speak of runs/latest
    with pytest.MonkeyPatch.context() as patch:  # of large matrices a peak takes seconds
        patch.setattr(machine_peaks, "MATRIX_SIZES", (256,))
        patch.setattr(machine_peaks, "ARRAY_BYTES", 2**20)
        yield reader


@pytest.mark.parametrize("page", PAGES_WITH_RUNS, ids=name_of)
def test_what_a_page_tells_one_to_do_works(reader, page):
    for block in blocks_of(page):
        if block.file:
            reader.write(block.file, block.text)
        elif block.language == "python":
            reader.run_python(block.text)
        commands = list(filter(is_run, block.commands))
        # `resume` goes on with what the same block began.
        goes_on = any("resume" in words and not reader.is_done(words) for words in commands)
        for words in commands:
            if goes_on or not reader.is_done(words):
                reader.do(words)


def test_make_targets_in_the_docs_exist():
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


def test_every_command_is_documented():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [command for command in commands_of(make_app()) if command not in text] == []
