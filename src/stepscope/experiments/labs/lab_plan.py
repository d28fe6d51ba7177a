"""From a sheet and what was asked for to a plan: which settings, how much data, what is missing.

A user's flag wins over the sheet, also where the sheet varies that very setting: a value that the
sheet has picks those of its settings that have it, and another value takes the place of all. Where
that leaves nothing to compare, the request is refused, unless each setting counts for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stepscope.data.object_store.store_url import Address, is_store_url, parse_address
from stepscope.errors import DataError, MachineError, MissingExtraError, RequestError
from stepscope.experiments.labs.lab_sheet import Setting, Sheet
from stepscope.experiments.workload import dataset_of
from stepscope.records.types import LabPlanRecord, LabRequestRecord, MissingPart, SettingValue
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import with_changes
from stepscope.supervisor import preflight
from stepscope.units import format_count

_BUILT_IN = "shapes"
_LEAST_EPOCHS = 2  # the first is left out of every figure
_LEAST_BATCHES = 4

# They say where something lies or is recorded, not what the experiment is.
_PLACES = frozenset({"out", "name", "data_dir"})
_STORE = ("source", "endpoint_url")


@dataclass(frozen=True)
class LabRequest:
    """What the user asked of a lab. Flags are settings as given, not yet validated."""

    flags: Mapping[str, SettingValue] = field(default_factory=dict)
    scale: float = 1.0
    repeats: int | None = None

    def to_json(self) -> LabRequestRecord:
        """Return it as plain values, of which it can be made again."""
        return {"flags": dict(self.flags), "scale": self.scale, "repeats": self.repeats}

    @staticmethod
    def from_json(recorded: object) -> LabRequest | None:
        """Make it again of what was recorded; None where that is something else."""
        match recorded:
            case {
                "flags": dict() as flags,
                "scale": (int() | float()) as scale,
                "repeats": (int() | None) as repeats,
            }:
                return LabRequest(flags, scale, repeats)
        return None


@dataclass(frozen=True)
class Plan:
    """What a lab will do: `asked` are the settings of every trial, `settings` what is varied.

    `store` is the object store given for the lab.
    """

    sheet: Sheet
    asked: Mapping[str, SettingValue]
    settings: tuple[Setting, ...]
    repeats: int
    scale: float
    spec: RunSpec
    flagged: Mapping[str, SettingValue]
    missing: tuple[MissingPart, ...]
    whole_samples: int
    store: Address | None = None

    @property
    def picked(self) -> dict[str, SettingValue]:
        """The flags that only pick some of what the sheet has anyway."""
        own = [setting.values for setting in self.sheet.settings]
        if any(setting.values not in own for setting in self.settings):
            return {}
        return {
            key: value
            for key, value in self.flagged.items()
            if all(key in values for values in own)
        }

    @property
    def changed(self) -> dict[str, SettingValue]:
        """The settings that differ from the sheet because of the user's flags."""
        return {key: value for key, value in self.flagged.items() if key not in self.picked}

    def to_json(self) -> LabPlanRecord:
        """Return the description of the plan for the lab's record."""
        return {
            "subject": self._subject(),
            "scale": self.scale,
            "samples": self.spec.samples,
            "epochs": self.spec.epochs,
            "repeats": self.repeats or None,
            "changed": self.changed,
            "picked": self.picked,
            "note": self.note,
        }

    def _subject(self) -> str:
        varied = self.settings[0].values
        what = self.spec.data if "model" in varied else f"{self.spec.model} on {self.spec.data}"
        samples = "all samples" if self.spec.samples is None else f"{self.spec.samples:,} samples"
        epochs = format_count(self.spec.epochs, "epoch")
        subject = f"{what}, {samples}, {epochs}"
        return subject if self.repeats < 2 else f"{subject}, {self.repeats} rounds"

    @property
    def note(self) -> str | None:
        """How much of what the sheet asks for is run, where it is less."""
        whole = self.whole_samples
        taken = whole if self.spec.samples is None else self.spec.samples
        less = [
            f"{done:,} of {wanted:,} {what}"
            for done, wanted, what in (
                (taken, whole, "samples"),
                (self.spec.epochs, self.sheet.epochs, "epochs"),
            )
            if done < wanted
        ]
        return f"{', '.join(less)}: figures are of a short run" if less else None


def make_plan(sheet: Sheet, request: LabRequest) -> Plan:
    """Combine a sheet with what was asked for, and look what of it this machine has.

    Raises:
        RequestError: a flag is wrong, wanting, or leaves nothing to compare.
        DataError: the sheet uses the user's data, which is missing or wrong.
    """
    if not 0 < request.scale <= 1:
        raise RequestError(f"scale: wanted a share above 0 and up to 1, found {request.scale:g}.")
    if request.repeats is not None and sheet.repeats == 0:
        raise RequestError(f"repeats: lab {sheet.name} needs none of them told. Leave it out.")
    if request.repeats is not None and request.repeats < 1:
        raise RequestError(f"repeats: wanted 1 or more, found {request.repeats}.")
    for flag, what in sheet.needs.items():
        if flag not in request.flags:
            raise RequestError(f"lab {sheet.name} wants {_dashed(flag)}: {what}")
    flags, store = _without_store(sheet, request.flags)
    settings = _varied(sheet, flags)
    epochs = max(min(_LEAST_EPOCHS, sheet.epochs), round(sheet.epochs * request.scale))
    asked: dict[str, SettingValue] = {**sheet.run, "epochs": epochs, **flags}
    specs = [with_changes(asked, setting.values) for setting in settings]
    whole = dataset_of(specs[0]).count("train") if sheet.samples is None else sheet.samples
    if "samples" not in flags and request.scale < 1:
        batch = max(spec.batch_size * spec.accumulate for spec in specs)
        asked["samples"] = min(whole, max(round(whole * request.scale), _LEAST_BATCHES * batch))
    missing = list(sheet.missing)
    replaceable = "data" not in flags and sheet.samples is not None
    if replaceable and (reason := _no_data(with_changes(asked, settings[0].values))):
        instead = f"{_BUILT_IN} was used instead"
        missing.append({"name": str(asked["data"]), "reason": f"{instead}: {reason}"})
        asked["data"] = _BUILT_IN
    spec = with_changes(asked, settings[0].values)
    return Plan(
        sheet=sheet,
        asked=asked,
        settings=settings,
        repeats=sheet.repeats if request.repeats is None else request.repeats,
        scale=request.scale,
        spec=spec,
        flagged=_flagged(sheet, flags, spec),
        missing=tuple(missing),
        whole_samples=whole,
        store=store,
    )


def _without_store(
    sheet: Sheet, flags: Mapping[str, SettingValue]
) -> tuple[Mapping[str, SettingValue], Address | None]:
    """Take the lab's own object store out of the flags."""
    named = {key: flags[key] for key in _STORE if key in flags}
    if not sheet.store or not named:
        return flags, None
    source, endpoint = named.get("source"), named.get("endpoint_url")
    if source is None or not is_store_url(str(source)):
        found = "no --source" if source is None else repr(source)
        raise RequestError(
            f"source: lab {sheet.name} reads from memory and from local disk anyway, and wants an "
            f"object store beside them, such as s3://BUCKET/PREFIX; found {found}."
        )
    others = {key: value for key, value in flags.items() if key not in _STORE}
    return others, parse_address(str(source), None if endpoint is None else str(endpoint))


def _varied(sheet: Sheet, flags: Mapping[str, SettingValue]) -> tuple[Setting, ...]:
    """Return the sheet's settings that match the user's flags, or replace their values by them.

    What is then the same is tried once.
    """
    found: dict[str, Setting] = {}
    for setting in _picked(sheet.settings, flags):
        values = {
            key: value if _is(value, flags.get(key, value)) else flags[key]
            for key, value in setting.values.items()
        }
        shown = dict(setting.shown)
        if (same := found.get(str(values))) is not None:
            for name, word in same.shown.items():
                shown[name] = word if word == shown[name] else f"{word} and {shown[name]}"
        found[str(values)] = Setting(values, shown)
    if len(found) == 1 < len(sheet.settings) and not sheet.each_counts:
        given = ", ".join(map(_dashed, sheet.settings[0].values))
        raise RequestError(
            f"lab {sheet.name} compares settings of {given}, and with the value given nothing is "
            "left to compare. Leave the flag out, or use `stepscope run`."
        )
    return tuple(found.values())


def _picked(settings: Sequence[Setting], flags: Mapping[str, SettingValue]) -> Sequence[Setting]:
    """Return the settings that have the user's values of what all of them set, where some do."""
    for key, given in flags.items():
        if all(key in setting.values for setting in settings):
            having = [setting for setting in settings if _is(setting.values[key], given)]
            settings = having or settings
    return settings


def _is(value: object, given: object) -> bool:
    """Return whether a value given by the user, perhaps as text, equals this one."""
    return str(value) == str(given)


def _dashed(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def _no_data(spec: RunSpec) -> str | None:
    """Say why the data of a spec cannot be had; None where it can."""
    try:
        preflight.check(spec)
    except DataError as error:
        return str(error)
    except MissingExtraError:
        raise
    except MachineError:
        pass  # too little room is for the trial to find: it is a result
    return None


def _flagged(
    sheet: Sheet, flags: Mapping[str, SettingValue], spec: RunSpec
) -> dict[str, SettingValue]:
    """Return the settings of the user's flags that differ from the sheet."""
    resolved = spec.model_dump(mode="json")
    whole = {**sheet.run, "samples": None, "epochs": sheet.epochs}
    return {
        key: resolved[key]
        for key in flags
        if key not in _PLACES and (key not in whole or whole[key] != resolved[key])
    }
