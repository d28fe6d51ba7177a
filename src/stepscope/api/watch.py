"""`with stepscope.watch():` the hooks of `stepscope trace` around a part of a program."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from stepscope.analyze.run_summary import Measured, summarize
from stepscope.hardware.host import describe_host
from stepscope.meter.clock import now_ns, seconds
from stepscope.records import run_folder, run_reader, schema
from stepscope.records.types import SamplerResult, SettingValue, TraceOutcome
from stepscope.report.terminal.run_tables import print_run
from stepscope.trace.tracer import Tracer

_NOT_SAMPLED = "the process that samples memory exited without reporting a result"


class Session:
    """An open run folder and the process that samples this one."""

    def __init__(
        self, out: str | Path, name: str, spec: Mapping[str, SettingValue], quiet: bool
    ) -> None:
        program = {"script": sys.argv[0] or "interactive", "directory": str(Path.cwd())}
        # Absolute: the program may change its working directory before the folder is closed.
        self.made = run_folder.create(Path(out).absolute(), name, "trace", {**program, **spec})
        self.origin_ns = now_ns()
        self._quiet = quiet
        self._process = os.getpid()
        self._held = ExitStack()
        self._held.enter_context(self.made.held())
        self.made.update_info(process=self._process, environment=describe_host())
        sampler = (sys.executable, "-m", "stepscope.telemetry.sampler_process")
        program_of = ("--process", str(self._process), "--origin-ns", str(self.origin_ns))
        self._sampler = subprocess.Popen(
            [*sampler, str(self.made.path), *program_of],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # the program handles Ctrl-C
        )

    def end(self, error: BaseException | None, outcome: TraceOutcome) -> None:
        """Write the last fields and close the folder; do nothing in a fork of the program."""
        if os.getpid() != self._process:
            return
        sampled, device_memory = self._end_sampler(), outcome.get("device_memory")
        not_sampled = {} if sampled else {"peak_memory_bytes": _NOT_SAMPLED}
        measured = Measured(
            wall_s=seconds(now_ns() - self.origin_ns),
            peak_memory_bytes=sampled["peak_memory_bytes"] if sampled else None,
            device_peak_memory_bytes=device_memory["peak_bytes"] if device_memory else None,
            layers=outcome.get("layers"),
            script=outcome.get("script") or {},
            absent=outcome.get("absent", {}) | not_sampled,
        )
        info = self.made.read_info()
        summary = summarize(run_reader.load_run(self.made.path), measured)
        status, reason = _status_of(error)
        self.made.close(
            status=status,
            reason=reason,
            process=None,
            environment={**info["environment"], **outcome["environment"]},
            instrument={
                **outcome["instrument"],
                "beside_cpu_share": sampled["beside_cpu_share"] if sampled else None,
                "off_blocks": summary["off_blocks"],
            },
            summary=summary,
        )
        self._held.close()
        if not self._quiet:
            print_run(Console(file=sys.stderr), run_reader.load_run(self.made.path))

    def _end_sampler(self) -> SamplerResult | None:
        """Return the sampler's result; None if it ended without one."""
        output, _ = self._sampler.communicate()  # closes its input, on which it ends
        try:
            found: SamplerResult = json.loads(output.strip().rpartition(b"\n")[2])
        except ValueError:
            return None
        return found


def _status_of(error: BaseException | None) -> tuple[str, str | None]:
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return schema.COMPLETED, None
    if isinstance(error, KeyboardInterrupt):
        return schema.INTERRUPTED, "interrupted"
    first_line = str(error).strip().partition("\n")[0]
    return schema.FAILED, f"{type(error).__name__}: {first_line}".rstrip(": ")


@contextlib.contextmanager
def watch(
    name: str = "watch", *, out: str | Path = "runs", layers: int = 0, quiet: bool = False
) -> Iterator[Path]:
    """Profile the training inside the `with` block by hooks; yields the run folder.

    Only the thread that enters the block is profiled.

    Args:
        name: the name of the run.
        out: the folder for run folders.
        layers: time every layer during this many steps.
        quiet: print no table at the end.
    """
    session = Session(out, name, {"layers": layers}, quiet)
    tracer = Tracer(session.made.path, session.origin_ns, layers_steps=layers)
    tracer.start()
    raised: BaseException | None = None
    try:
        yield session.made.path
    except BaseException as error:
        raised = error
        raise
    finally:
        result = tracer.final_message()
        if not result["steps"] and not quiet:
            print(
                "stepscope: no training step found: this thread called no optimizer.step()",
                file=sys.stderr,
            )
        session.end(raised or tracer.trouble, result)
