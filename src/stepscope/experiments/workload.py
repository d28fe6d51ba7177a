"""What an experiment runs with other settings: a built-in training or a user's script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from stepscope.analyze.sweep_summary import start_up_steps, whole_turns
from stepscope.data import dataset_registry
from stepscope.errors import MachineError, MissingExtraError, RequestError
from stepscope.experiments.script_trial import run_script, with_argument
from stepscope.hardware.procfs import system_root
from stepscope.processes.training_process import ProcessOptions
from stepscope.records import run_folder, schema
from stepscope.records.types import (
    LoaderArguments,
    RecordedSpec,
    ScriptCall,
    SettingValue,
    WorkloadRecord,
)
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import with_changes
from stepscope.supervisor import preflight
from stepscope.supervisor.child_supervisor import Outcome, RunListener
from stepscope.supervisor.memory_guard import holding
from stepscope.supervisor.required_conditions import check_requirements
from stepscope.supervisor.run_lifecycle import run_to_end
from stepscope.supervisor.script_child import TraceRequest, check_script, hide_secrets
from stepscope.supervisor.start_run import training_of
from stepscope.supervisor.warm_start import ForkServer
from stepscope.train.source_settings import data_source_of

if TYPE_CHECKING:
    from stepscope.data.dataset import DataSet

Mode = Literal["train", "load"]
ARGUMENT = "arg:"  # a setting that is a flag of the user's script
# Our names of DataLoader arguments, and torch's.
LOADER_SETTINGS = {
    "workers": "num_workers",
    "prefetch": "prefetch_factor",
    "pin_memory": "pin_memory",
    "persistent_workers": "persistent_workers",
    "batch_size": "batch_size",
}


def dataset_of(spec: RunSpec) -> DataSet:
    """Return the data set of a spec."""
    return dataset_registry.find(spec.data, data_source_of(spec))


def training_samples_of(spec: RunSpec) -> int:
    """Return the training samples of an epoch, without held-out ones."""
    return dataset_of(spec).count("train", spec.samples) - spec.validation


def lack_of_room(spec: RunSpec) -> MachineError | None:
    """Refuse a spec that could only fail; return an error if memory or disk is too small."""
    try:
        preflight.check(spec)
    except MissingExtraError:
        raise
    except MachineError as error:
        return error
    return None


@dataclass(frozen=True)
class TrialRequest:
    """How to run one trial; a built-in training is forked from the `fork_server`, if any."""

    path: Path
    listener: RunListener
    time_limit_s: float | None = None
    fork_server: ForkServer | None = None


class Workload(Protocol):
    """Something that can be run repeatedly with other settings."""

    def check(self, values: Mapping[str, SettingValue]) -> None:
        """Refuse values that could only fail, before anything starts."""

    def run(self, values: Mapping[str, SettingValue], trial_request: TrialRequest) -> Outcome:
        """Run it once, recorded in a new folder."""

    def to_json(self) -> WorkloadRecord:
        """Return the record that `workload_of` reads."""


@dataclass(frozen=True)
class TrainingWorkload:
    """A built-in training. `asked` holds only the settings given by the user.

    A quick one makes no memory forecast, which takes seconds. `choice` records how the settings
    were chosen.
    """

    asked: Mapping[str, SettingValue] = field(default_factory=dict)
    mode: Mode = "train"
    quick: bool = False
    choice: RecordedSpec | None = None

    def spec(self, values: Mapping[str, SettingValue]) -> RunSpec:
        """Return the validated settings with some of them changed."""
        return with_changes(self.asked, values)

    def check(self, values: Mapping[str, SettingValue]) -> None:
        """Refuse what could only fail; too little memory or disk is a result of the trial."""
        spec = self.spec(values)
        check_requirements(spec.require, system_root())
        if self.mode == "load":
            preflight.require_one_process(spec, "loading without training")
        lack_of_room(spec)

    def run(self, values: Mapping[str, SettingValue], trial_request: TrialRequest) -> Outcome:
        """Train, or only load, in a child process."""
        spec = self.spec(values)
        if (lacking := lack_of_room(spec)) is not None:
            return Outcome(schema.FAILED, str(lacking), lacking.exit_code)
        kind = "run" if self.mode == "train" else "load"
        asked = spec.model_dump(mode="json")
        made = run_folder.create_at(trial_request.path, spec.run_name, kind, asked, self.choice)
        with holding(spec.memory_limit) as limit:
            options = ProcessOptions(forecast=not self.quick, checkpoint=False)
            supervised = training_of(
                made, spec, limit, options, trial_request.time_limit_s, trial_request.fork_server
            )
            return run_to_end(made, supervised, trial_request.listener)

    def to_json(self) -> WorkloadRecord:
        """Return the settings as the user gave them."""
        return {"spec": dict(self.asked), "mode": self.mode, "quick": self.quick, "script": None}


_SHORT_STEPS = 30  # after start-up


def short_training(
    asked: Mapping[str, SettingValue], spec: RunSpec, *, quick: bool = True
) -> TrainingWorkload:
    """Return a training of a few steps, unless the user chose its length, without evaluation."""
    steps = start_up_steps(spec.model_dump()) + whole_turns(_SHORT_STEPS, spec.workers)
    short: dict[str, SettingValue] = {"epochs": 1, "max_steps": steps}
    return TrainingWorkload({**short, **asked, "evaluate": False}, quick=quick)


@dataclass(frozen=True)
class ScriptWorkload:
    """A user's script, unchanged except for its DataLoaders' arguments and its own flags."""

    request: TraceRequest

    def request_with(self, values: Mapping[str, SettingValue]) -> TraceRequest:
        """Return the request with some values changed."""
        loader = dict(self.request.loader or {})
        arguments, max_steps = list(self.request.arguments), self.request.max_steps
        for name, value in values.items():
            if name == "max_steps":
                max_steps = int(str(value))
            elif name.startswith(ARGUMENT):
                arguments = with_argument(arguments, name.removeprefix(ARGUMENT), str(value))
            else:
                loader[LOADER_SETTINGS[name]] = value
        return replace(
            self.request,
            arguments=tuple(arguments),
            loader=cast("LoaderArguments", loader) if loader else None,
            max_steps=max_steps,
        )

    def check(self, values: Mapping[str, SettingValue]) -> None:
        """Refuse a missing script, and values that no loader accepts."""
        check_script(self.request)
        for name, value in values.items():
            if name.startswith(ARGUMENT):
                continue
            least = 1 if name in ("batch_size", "prefetch") else 0
            is_switch = name in ("pin_memory", "persistent_workers")
            is_count = type(value) is int and value >= least
            if not (isinstance(value, bool) if is_switch else is_count):
                wanted = "true or false" if is_switch else f"a whole number of {least} or more"
                raise RequestError(f"over: {name} wants {wanted}, found {value!r}.")

    def run(self, values: Mapping[str, SettingValue], trial_request: TrialRequest) -> Outcome:
        """Run the script; its output goes into the trial's folder."""
        return run_script(
            self.request_with(values),
            trial_request.path,
            trial_request.listener,
            time_limit_s=trial_request.time_limit_s,
        )

    def to_json(self) -> WorkloadRecord:
        """Return how the script is called."""
        arguments = hide_secrets(self.request.arguments)
        return {
            "spec": None,
            "mode": "train",
            "script": cast(ScriptCall, {**asdict(self.request), "arguments": arguments}),
        }


def workload_of(info: WorkloadRecord) -> Workload:
    """Return the workload of a recorded sweep; refuse one whose secret was not recorded."""
    try:
        if info["script"] is None:
            return TrainingWorkload(info["spec"] or {}, info["mode"], info.get("quick", False))
        called = info["script"]
        request = TraceRequest(**cast("Any", {**called, "arguments": tuple(called["arguments"])}))
    except (KeyError, TypeError) as error:
        raise RequestError(f"sweep.json does not record what was run: {error!r}.") from error
    if any("***" in argument for argument in request.arguments):
        raise RequestError(
            "the script was called with a secret, which is not recorded: this sweep cannot be "
            "resumed. Start it again, with the secret in an environment variable."
        )
    return ScriptWorkload(request)
