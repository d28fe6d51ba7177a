"""`stepscope trace` as a person calls it: the script must not notice, and the folder must tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from polling import wait_until
from stepscope_command import ENVIRONMENT, Answer, Stepscope, closes

from stepscope.records.run_reader import Run, load_run
from stepscope.supervisor import script_child

# What most scripts here begin with: a net, an optimiser, six batches, and a step.
BEGIN = """
import os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

net = nn.Linear(4, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(24, 4), torch.zeros(24, dtype=torch.long)), 4)

def step(images, labels):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()

def epoch():
    for batch in loader:
        step(*batch)
"""


class Person:
    """A user with a folder of scripts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stepscope = Stepscope(folder)

    def write(self, code: str, name: str = "script.py") -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")
        return name

    def trace(self, *args: object, **options: Any) -> Answer:
        return self.stepscope("trace", *args, **options)

    def python(self, *args: object, **options: Any) -> Answer:
        done = subprocess.run(
            [sys.executable, *map(str, args)],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env={**ENVIRONMENT, **options.pop("env", {})},
            **options,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def latest(self, out: str = "runs") -> Run:
        return load_run(self.folder / out / "latest")


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


# the script does not notice

WHAT_A_SCRIPT_SEES = """
import json, os, sys
json.dump({
    "argv": sys.argv, "name": __name__, "file": __file__, "path": sys.path, "flags": str(sys.flags),
    "cwd": os.getcwd(), "environment": dict(os.environ), "stdin": sys.stdin.read(),
    "package": __package__, "main": sys.modules["__main__"].__dict__ is globals(),
    "first": sys.path[0], "excepthook": sys.excepthook is sys.__excepthook__,
    "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd") if int(n) < 3),
    "handlers": [str(__import__("signal").getsignal(n)) for n in (2, 15, 1, 13, 20)],
    "modules": sorted(m for m in sys.modules if m.split(".")[0] in ("torch", "numpy")),
}, sys.stdout, indent=1)
sys.stdout.flush()
os.write(1, b"\\xff\\x00 not text\\n")
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["script.py", "a b", "--json", "--out", "x", "--help", "--", "-m", "--max-steps=3", "--"],
        ["-m", "package.module", "--json", "-m", "--version"],
        ["folder", "--name", "ü"],
    ],
    ids=str,
)
def test_what_a_script_sees_and_says_is_what_python_would_give_it(
    person: Person, arguments: list[str]
) -> None:
    for name in ("script.py", "package/module.py", "folder/__main__.py"):
        person.write(WHAT_A_SCRIPT_SEES, name)
    options: dict[str, Any] = {
        "input": b"line one\nline two",
        "cwd": person.folder,
        "capture_output": True,
        "env": {**ENVIRONMENT, "PYTHONPATH": "/nowhere", "OWN": "ü <script>"},
    }
    plain = subprocess.run([sys.executable, *arguments], **options)
    watched = subprocess.run(person.stepscope.command("trace", *arguments), **options)
    assert watched.stdout == plain.stdout
    assert watched.returncode == 1, watched.stderr
    assert b"without a training step" in watched.stderr


def test_a_persons_own_sitecustomize_still_runs(person: Person) -> None:
    person.write("import builtins; builtins.mine = 'yes'", "site/sitecustomize.py")
    script = person.write("print(mine, __import__('sitecustomize').__file__)")
    environment = {"PYTHONPATH": str(person.folder / "site")}
    plain = person.python(script, env=environment)
    assert person.trace(script, env=environment, warm=False).out == plain.out
    assert plain.out.startswith("yes")


@pytest.mark.parametrize("path", [None, "", "/nowhere", ":/nowhere"])
def test_the_python_path_of_a_script_is_that_of_the_user(
    person: Person, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    script = person.write("import os; print(repr(os.environ.get('PYTHONPATH')))")
    environment = {} if path is None else {"PYTHONPATH": path}
    assert person.trace(script, env=environment, warm=False).out == f"{path!r}\n"


ENDINGS = {
    "raises": ("def f(): return {}['missing']\nf()", 1, "failed", "KeyError: 'missing'"),
    "says why": ("import sys; sys.exit('no data here')", 1, "failed", "code 1"),
    "code 3": ("raise SystemExit(3)", 3, "failed", "code 3"),
    "syntax": ("print('never')\ndef broken(:\n    pass\n", 1, "failed", "SyntaxError"),
    "import": ("import nothing_of_that_name", 1, "failed", "nothing_of_that_name"),
    "recursion": ("def f(n): return f(n + 1)\nf(0)", 1, "failed", "RecursionError"),
    "abort": ("import os; os.abort()", 134, "failed", "SIGABRT"),
    "killed": ("import os; os.kill(os.getpid(), 9)", 137, "failed", "SIGKILL"),
    "interrupted": ("raise KeyboardInterrupt", 130, "interrupted", "interrupted"),
    "memory": ("raise MemoryError('too much')", 1, "out_of_memory", "MemoryError"),
    "empty": ("", 1, "completed", "without a training step"),
    "leaves": ("import os; os._exit(0)", 1, "completed", "without a training step"),
    "latin": ("x = '\xe9'", 1, "failed", "SyntaxError"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_as_it_would_and_the_folder_says_how(person: Person, ending: str) -> None:
    code, exit_code, status, reason = ENDINGS[ending]
    (person.folder / "script.py").write_text(code, encoding="latin-1")
    plain, answer = person.python("script.py"), person.trace("script.py", warm=False)
    run = person.latest()
    assert (run.info["status"], answer.out) == (status, plain.out), answer.err
    assert reason in (run.info["reason"] or "")
    assert answer.code == exit_code
    assert answer.err.startswith(plain.err), "the same traceback, and then our own words"
    assert "stepscope" not in plain.err


def test_wrong_requests_are_refused_before_anything_runs(person: Person) -> None:
    script = person.write("print('ran')")
    (person.folder / "empty").mkdir()
    (person.folder / "file").write_text("")
    for arguments, words in (
        ([], "no script given"),
        (["nowhere.py"], "no such script: nowhere.py"),
        (["empty"], "without a __main__.py"),
        (["--out", "file/runs", script], "cannot make a run folder"),
        (["--max-steps", "0", script], "max_steps"),
        (["--max-steps", "many", script], "many"),
        (["--layers", "-1", script], "layers"),
        (["--nonsense", script], "nonsense"),
    ):
        answer = person.trace(*arguments)
        assert (answer.code, answer.out) == (2, ""), (arguments, answer.err)
        assert words in answer.err
        assert "Traceback" not in answer.err
    assert not (person.folder / "runs").exists()
    answer = person.trace("--json", "nowhere.py")
    assert answer.json["exit_code"] == answer.code == 2


@pytest.mark.skipif(os.getuid() == 0, reason="root may read and write anything")
def test_what_may_not_be_read_or_written_is_refused(person: Person) -> None:
    script = person.write("print('ran')")
    (person.folder / script).chmod(0)
    assert person.trace(script).code == 2
    (person.folder / script).chmod(0o600)
    (person.folder / "locked").mkdir(mode=0o500)
    assert person.trace("--out", "locked/runs", script).code == 2


def test_secrets_among_the_arguments_are_not_kept(person: Person) -> None:
    script = person.write("import sys; print(sys.argv[1:])")
    arguments = ["--api-key", "hunter2", "--token=hunter2", "--lr", "0.1", "--PASSWORD", "hunter2"]
    answer = person.trace(script, *arguments)
    assert answer.out.count("hunter2") == 3, "the script has them"
    for file in (person.folder / "runs" / "latest").iterdir():
        assert b"hunter2" not in file.read_bytes(), file
    assert person.latest().spec["arguments"][3:5] == ["--lr", "0.1"]


# what is recorded


def test_a_training_is_recorded_and_its_output_is_its_own(person: Person) -> None:
    code = BEGIN + "print('begin')\nfor _ in range(2): epoch()\nprint('done', file=sys.stderr)"
    script = person.write(code)
    answer = person.trace(script)
    assert (answer.code, answer.out) == (0, "begin\n"), answer.err
    assert answer.err.startswith("done\n")
    run = person.latest()
    assert run.info["status"] == "completed"
    assert [run.summary[key] for key in ("steps", "epochs", "samples")] == [12, 2, 48]
    assert closes(run)
    assert run.info["environment"]["torch"]
    assert 0 < run.info["instrument"]["beside_cpu_share"] < 1
    answer = person.trace("--json", "--name", "mine", "--out", "elsewhere", script)
    assert answer.json["name"] == "mine"
    assert "begin\n" in answer.err
    assert person.latest("elsewhere").summary["steps"] == 12


MAX_STEPS = {
    "loader": ("while True: epoch()", 8),
    "accumulation": (
        "while True:\n"
        "  for n, (x, y) in enumerate(loader):\n"
        "    net(x).sum().backward()\n"
        "    if n % 2: optimizer.step()",
        8,
    ),
    "no loader": ("while True: step(torch.ones(4, 4), torch.zeros(4, dtype=torch.long))", 8),
    "two optimisers": (
        "other = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "while True:\n"
        "  for batch in loader:\n"
        "    step(*batch)\n"
        "    net(batch[0]).sum().backward()\n"
        "    other.step()",
        8,
    ),
    "more than there are": ("epoch()", 6),
}


@pytest.mark.parametrize("kind", MAX_STEPS)
def test_a_script_ends_after_as_many_steps_as_were_wanted(person: Person, kind: str) -> None:
    code, steps = MAX_STEPS[kind]
    end = "\nimport atexit\natexit.register(print, 'cleaned up')\n"
    answer = person.trace("--max-steps", 8, person.write(BEGIN + end + code))
    assert (answer.code, answer.out) == (0, "cleaned up\n"), answer.err
    run = person.latest()
    assert run.summary["steps"] == steps
    assert run.info["status"] == "completed"
    assert closes(run)


# Rows come to disk now and then; what ends by itself leaves all of them.
WRITE_ROWS = "\nwhile len(open('runs/latest/steps.csv').readlines()) < 2: epoch()\n"


@pytest.mark.parametrize(
    ("code", "exit_code", "reason", "steps"),
    [
        ("epoch()\nos._exit(0)", 0, None, 6),
        ("os.mkdir('there')\nos.chdir('there')\nepoch()\nos.rmdir(os.getcwd())", 0, None, 6),
        ("epoch()\nnet(torch.ones(4, 5))", 1, "RuntimeError: mat1 and mat2", 6),
        (WRITE_ROWS + "os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL", None),
    ],
    ids=["leaves at once", "goes elsewhere", "raises", "killed"],
)
def test_however_a_script_ends_the_steps_before_that_are_recorded(
    person: Person, code: str, exit_code: int, reason: str | None, steps: int | None
) -> None:
    answer = person.trace(person.write(BEGIN + code))
    assert answer.code == exit_code, answer.err
    run = person.latest()
    assert run.info["status"] == ("failed" if reason else "completed")
    assert (reason or "") in (run.info["reason"] or "")
    assert run.summary["steps"] == steps if steps else run.summary["steps"] > 0


HARMLESS = """
import threading, warnings, multiprocessing
import torch, random
assert threading.active_count() == 1, threading.enumerate()
got = []
signal.signal(signal.SIGUSR1, lambda number, frame: got.append(threading.current_thread().name))
signal.signal(signal.SIGALRM, lambda number, frame: got.append("alarm"))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
epoch()
os.kill(os.getpid(), signal.SIGUSR1)
signal.setitimer(signal.ITIMER_REAL, 0.05)
time.sleep(0.3)
os.kill(os.getpid(), signal.SIGUSR2)
print(got, signal.sigtimedwait([signal.SIGUSR2], 5).si_signo)
child = os.fork()
if child == 0:
    print("child", threading.active_count(), flush=True)
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for batch in DataLoader(loader.dataset, 8, num_workers=1):
    step(*batch)
time.sleep(0.3)  # a thread of the loader's queue ends soon after it
random.seed(5)
print(threading.active_count(), random.random(), torch.rand(1).item() >= 0, flush=True)
os._exit(4)
"""


def test_threads_signals_forks_and_warnings_are_as_without_us(person: Person) -> None:
    script = person.write(BEGIN + HARMLESS)
    environment = {"PYTHONWARNINGS": "error"}
    plain = person.python(script, env=environment)
    traced = person.trace(script, env=environment, warm=False)
    assert plain.code == 4, plain.err
    assert (traced.code, traced.out) == (4, plain.out), traced.err
    assert person.latest().summary["steps"] == 9


def test_copies_of_the_process_do_not_disturb_the_records(person: Person) -> None:
    code = """
epoch()
child = os.fork()
if child == 0:
    epoch()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
import multiprocessing, subprocess
process = multiprocessing.get_context("fork").Process(target=epoch)
process.start()
process.join()
assert process.exitcode == 0
assert "STEPSCOPE_TRACE" not in os.environ
alone = "import sys; assert 'stepscope' not in sys.modules"
subprocess.run([sys.executable, "-c", alone], check=True)
epoch()
print("trained")
"""
    answer = person.trace(person.write(BEGIN + code))
    assert (answer.code, answer.out) == (0, "trained\n"), answer.err
    run = person.latest()
    assert [run.summary[key] for key in ("steps", "epochs")] == [12, 2]
    assert closes(run)


def test_what_is_set_before_torch_is_imported_counts(person: Person) -> None:
    code = """
import os, sys
assert "torch" not in sys.modules
os.environ["OMP_NUM_THREADS"] = "2"
os.environ["MKL_NUM_THREADS"] = "2"
"""
    code += BEGIN + "print(torch.get_num_threads())\ntorch.set_num_threads(1)\nepoch()"
    assert person.trace(person.write(code), warm=False).out == "2\n"


def test_a_script_that_closes_every_descriptor_goes_on_unharmed(person: Person) -> None:
    code = """
epoch()
os.closerange(3, 256)
own = [open(f"own {number}", "w") for number in range(16)]
time.sleep(0.6)
epoch()
for file in own: file.close()
print([open(file.name).read() for file in own] == [""] * 16)
"""
    answer = person.trace(person.write(BEGIN + code))
    assert answer.out == "True\n", "nothing of ours is in the files that took the numbers of ours"
    assert "Traceback" not in answer.err
    assert answer.code == 1
    assert "end of the script was not seen" in answer.err


def test_a_script_that_removes_its_run_folder_goes_on_unharmed(person: Person) -> None:
    remove = "import os, shutil\nwhile os.path.exists('runs'): shutil.rmtree('runs', True)\n"
    code = remove + BEGIN + "epoch()\nprint('trained')"
    answer = person.trace(person.write(code))
    assert (answer.code, answer.out) == (5, "trained\n"), answer.err
    assert "was removed" in answer.err
    assert "Traceback" not in answer.err


def test_a_script_that_becomes_another_program_is_said_to_have_done_so(person: Person) -> None:
    code = "import os, sys\nif sys.argv[1:]: sys.exit(print('again'))\n"
    code += "os.execv(sys.executable, [sys.executable, __file__, 'again'])"
    answer = person.trace(person.write(code))
    assert (answer.code, answer.out) == (1, "again\n")
    assert "end of the script was not seen" in answer.err


def test_a_disk_that_fills_up_ends_neither_script_nor_folder(person: Person) -> None:
    disk = person.folder / "small"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("may not mount a small file system")
    try:
        code = """
epoch()
with open("small/filler", "wb", buffering=0) as filler:
    try:
        while filler.write(b"0" * 4096): pass
    except OSError:
        pass
for _ in range(600): epoch()
print("trained")
"""
        answer = person.trace("--out", "small", person.write(BEGIN + code))
        info = json.loads((disk / "latest" / "run.json").read_text())
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    assert answer.out == "trained\n", answer.err
    assert answer.code == 5, answer.err
    assert info["status"] == "failed"
    assert "Traceback" not in answer.err


UNREADABLE_LOSS = """
class Odd(torch.Tensor):
    def item(self):
        raise ValueError("nobody reads me")

torch.autograd.backward(net(torch.ones(4, 4)).sum().as_subclass(Odd))
optimizer.step()
net(torch.ones(4, 4)).sum().backward()
optimizer.step()
"""


def test_a_loss_that_cannot_be_read_is_told_and_the_steps_are_recorded(person: Person) -> None:
    answer = person.trace(person.write(BEGIN + UNREADABLE_LOSS + "print('went on')"))
    assert answer.code == 0, answer.err
    assert answer.out.startswith("went on")
    info = json.loads((person.folder / "runs" / "latest" / "run.json").read_text())
    assert info["summary"]["steps"] == 2
    assert "nobody reads me" in info["summary"]["absent"]["loss"]


# signals

# As somebody else would.
SEND = "\nos.kill(int(os.environ['COMMAND']), signal.{})\n"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Tell a script which process watches it, as if it had been started in the background."""
    monkeypatch.setattr(script_child, "_in_foreground", lambda: False)
    return {"COMMAND": str(os.getpid())}


@pytest.mark.parametrize(
    ("name", "train"), [("SIGINT", "epoch()"), ("SIGTERM", WRITE_ROWS)], ids=["SIGINT", "SIGTERM"]
)
def test_a_request_to_stop_reaches_the_script(
    person: Person, command: dict[str, str], name: str, train: str
) -> None:
    code = BEGIN + train + SEND.format(name) + "while True: epoch()"
    answer = person.trace(person.write(code), env=command)
    assert answer.code == 130, answer.err
    run = person.latest()
    assert run.info["status"] == "interrupted"
    assert run.summary["steps"] > 0
    assert ("KeyboardInterrupt" in answer.err) == (name == "SIGINT")


def test_a_scripts_own_handler_decides_what_an_interrupt_means(
    person: Person, command: dict[str, str]
) -> None:
    code = BEGIN + "stop = []\nsignal.signal(signal.SIGINT, lambda *_: stop.append(1))"
    code += SEND.format("SIGINT") + "while not stop: epoch()\nprint('stopped well')"
    answer = person.trace(person.write(code), env=command)
    assert (answer.code, answer.out) == (0, "stopped well\n"), answer.err
    assert person.latest().info["status"] == "completed"


def test_a_script_does_not_outlive_whoever_watches_it(person: Person) -> None:
    code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    running = person.stepscope.start("trace", person.write(code))
    assert running.stdout is not None
    script = psutil.Process(int(running.stdout.readline()))
    running.kill()
    running.communicate(timeout=30)
    wait_until(lambda: not script.is_running() or script.status() == psutil.STATUS_ZOMBIE, 20)


RENAMES = """
import os
os.rename(os.path.realpath("runs/latest"), "runs/renamed")
import torch
network = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.ones(12, 3), batch_size=3):
    network(batch).sum().backward()
    optimizer.step()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the new name is read from /proc")
def test_a_script_whose_run_folder_is_renamed_is_recorded(person: Person) -> None:
    answer = person.stepscope("trace", person.write(RENAMES), warm=False)
    assert answer.code == 0, answer.err
    assert len(load_run(person.folder / "runs" / "renamed").steps) == 4
