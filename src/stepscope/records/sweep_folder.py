"""The sweep folder: its trials, their order and their results.

`sweep.json` is written before and after every trial, so that it is complete if the sweep is killed.
Each trial is a run folder in `trials/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from stepscope.errors import RequestError
from stepscope.records import schema
from stepscope.records.run_folder import RecordFolder, read_record, slug
from stepscope.records.types import SettingValue, SweepPlan, SweepRecord, TrialMetrics, TrialRecord


@dataclass(frozen=True)
class Trial:
    """One run of one setting. `repeat` is its round, `run` its folder within the sweep's.

    `node` is the machine that ran it, if it was not the sweep's own or not the only one;
    `node_kind` is the same for machines whose trials can be compared.
    """

    index: int
    values: dict[str, SettingValue]
    repeat: int
    status: str = schema.PENDING
    reason: str | None = None
    exit_code: int | None = None
    run: str | None = None
    metrics: TrialMetrics = field(default_factory=TrialMetrics)
    node: str | None = None
    node_kind: str | None = None

    def to_json(self) -> TrialRecord:
        """Return its entry in `sweep.json`."""
        return cast(TrialRecord, asdict(self))

    @property
    def is_missing(self) -> bool:
        """Whether it is still to be run: an interrupted trial has no result either."""
        return self.status in (schema.PENDING, schema.RUNNING, schema.INTERRUPTED)


EMPTY_SWEEP: dict[str, object] = {"mode": "train"}


@dataclass(frozen=True)
class Sweep:
    """A recorded sweep."""

    path: Path
    info: SweepRecord = field(repr=False)
    left_out: Sequence[str] = field(default=(), repr=False, compare=False)

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order of execution."""
        known = {each.name for each in fields(Trial)}
        recorded = cast("list[dict[str, Any]]", self.info["trials"])
        return [Trial(**{name: each[name] for name in known & each.keys()}) for each in recorded]

    def folder_of(self, trial: Trial) -> Path:
        """Return the path of a trial's run folder, which may not exist yet."""
        named = "-".join(f"{key}-{value}" for key, value in trial.values.items())
        made = f"{schema.TRIALS}/{trial.index:03}-{slug(named)}-round-{trial.repeat}"
        return self.path / (trial.run or made)


class SweepFolder(RecordFolder[SweepRecord]):
    """A sweep folder on disk, open for writing."""

    INFO = schema.SWEEP

    def put(self, trial: Trial) -> None:
        """Replace a trial's entry."""
        info = self.read_info()
        info["trials"][trial.index] = trial.to_json()
        self.write_info(info)


def create_sweep(out: Path, name: str, asked: SweepPlan, trials: Sequence[Trial]) -> SweepFolder:
    """Make `out/<time>-<name>/` with its `sweep.json`, and point `out/latest` to it."""
    if (out / schema.SWEEP).exists():
        raise RequestError(
            f"{out} is the folder of a sweep. Choose a parent folder for sweeps with --out, or "
            f"continue that one: stepscope sweep --resume {out}"
        )

    planned = {"trials": [trial.to_json() for trial in trials]}
    known = {"name": name, "kind": "sweep", "process": None}
    return SweepFolder.make_latest(out, name, {**known, **asked, **planned})


def is_sweep(path: Path) -> bool:
    """Return whether a folder is a sweep's."""
    return (path / schema.SWEEP).is_file()


def load_sweep(path: str | Path) -> Sweep:
    """Open a sweep folder."""
    folder, info, left_out = read_record(path, schema.SWEEP, SweepRecord, EMPTY_SWEEP)
    for place, each in enumerate(info["trials"]):
        run = each.get("run")  # a path outside is not the sweep's to write or remove
        inside = run is None or (run.startswith(f"{schema.TRIALS}/") and ".." not in run)
        if not 0 <= each["index"] < len(info["trials"]) or not inside:
            raise RequestError(f"{folder / schema.SWEEP} is damaged: trials[{place}] is not valid.")
    return Sweep(folder, info, left_out)


def command_of(kind: str) -> str:
    """Return the command that makes sweeps of a kind."""
    return {"search": "accel search", "stalls": "bottleneck"}.get(kind, kind)


def load_sweep_of(path: str | Path, kind: str) -> Sweep:
    """Open a sweep folder of one kind, which is named like the command that makes it."""
    sweep = load_sweep(path)
    found = sweep.info["kind"]
    if found != kind:
        raise RequestError(
            f"{sweep.path} was made by `stepscope {command_of(found)}`, "
            f"not by `stepscope {command_of(kind)}`."
        )
    return sweep
