"""A lab's sheet, combined with the user's flags into a plan: which settings, how much data.

A sheet is a TOML file in `sheets` with the question, the settings, the table and the plots. Its
`[over]` gives every combination of values, each combined with every one of its `[[settings]]`. A
flag overrides the sheet. For a setting that the sheet varies, a value of the sheet selects the
settings that have it; any other value replaces them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Literal

from stepscope.data.object_store.store_url import Address, is_store_url, parse_address
from stepscope.errors import DataError, RequestError
from stepscope.experiments.trial_order import grid
from stepscope.experiments.workload import dataset_of, lack_of_room
from stepscope.files import parse_toml
from stepscope.records.types import LabPlanRecord, LabPlot, MissingPart, SettingValue
from stepscope.settings import RunSpec
from stepscope.settings.load_settings import with_changes
from stepscope.units import format_count

_SHEETS = resources.files(__package__).joinpath("sheets")


@dataclass(frozen=True)
class Setting:
    """One thing to try; `shown` are columns of the table that are no settings."""

    values: Mapping[str, SettingValue]
    shown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sheet:
    """A lab as its sheet describes it."""

    name: str
    about: str
    question: str
    published: str
    run: Mapping[str, SettingValue]  # the settings of every trial
    settings: tuple[Setting, ...]
    columns: Mapping[str, str]  # headings, by the figure of a row
    epochs: int
    samples: int | None = None  # None: all of the user's data
    repeats: int = 1  # 0: the procedure decides
    needs: Mapping[str, str] = field(default_factory=dict)  # required flags, described
    each_counts: bool = False  # a single setting also has an answer
    store: bool = False  # --source names a store for the lab, and is no setting of every trial
    procedure: str = "sweep"
    answer: str = ""  # of a sweep: a function of `lab_answers`
    rows: Literal["settings", "epochs"] = "settings"
    figures: tuple[str, ...] = ()  # of the trials
    counted: tuple[str, ...] = ()  # of the network
    by_epoch: Mapping[str, str] = field(default_factory=dict)
    board_protocol: bool = False  # also check the machine against the protocol for small boards
    plots: tuple[LabPlot, ...] = ()
    missing: tuple[MissingPart, ...] = ()  # parts of the experiment that this version cannot do


def read_sheet(name: str) -> Sheet:
    """Read the sheet of a lab."""
    written = parse_toml(_SHEETS.joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    combinations = grid(written.pop("over", {}))
    settings = tuple(
        Setting({**values, **listed}, shown)
        for listed in written.pop("settings", [{}])
        for shown in [listed.pop("shown", {})]
        for values in combinations
    )
    for many in ("figures", "counted", "plots", "missing"):
        written[many] = tuple(written.get(many, ()))
    return Sheet(name=name, settings=settings, **written)


def sheet_names() -> list[str]:
    """List the labs that have a sheet."""
    files = _SHEETS.iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


_BUILT_IN = "shapes"
_LEAST_EPOCHS = 2  # the first is excluded from every figure
_LEAST_BATCHES = 4

# Where data and records are, not what the experiment is.
_PLACES = frozenset({"out", "name", "data_dir"})
_STORE = ("source", "endpoint_url")


@dataclass(frozen=True)
class LabRequest:
    """What the user requested of a lab; flags are not yet validated."""

    flags: Mapping[str, SettingValue] = field(default_factory=dict)
    scale: float = 1.0
    repeats: int | None = None


@dataclass(frozen=True)
class Plan:
    """What a lab will do: `settings` are varied, `base` is the same in every trial.

    `picked` are flags that select some of the sheet's settings, `changed` those that differ from
    the sheet. `store` is the user's object store, for a lab that fills one.
    """

    sheet: Sheet
    base: Mapping[str, SettingValue]
    settings: tuple[Setting, ...]
    repeats: int
    scale: float
    spec: RunSpec
    picked: dict[str, SettingValue]
    changed: dict[str, SettingValue]
    missing: tuple[MissingPart, ...]
    whole_samples: int
    store: Address | None = None

    def to_json(self) -> LabPlanRecord:
        """Return the description of the plan for the lab's record."""
        spec = self.spec
        network = "" if "model" in self.settings[0].values else f"{spec.model} on "
        samples = "all samples" if spec.samples is None else f"{spec.samples:,} samples"
        subject = f"{network}{spec.data}, {samples}, {format_count(spec.epochs, 'epoch')}"
        return {
            "subject": subject if self.repeats < 2 else f"{subject}, {self.repeats} rounds",
            "scale": self.scale,
            "samples": spec.samples,
            "epochs": spec.epochs,
            "repeats": self.repeats or None,
            "changed": self.changed,
            "picked": self.picked,
            "note": self.note,
        }

    @property
    def note(self) -> str | None:
        """How much of the sheet's samples and epochs is run, if less than all."""
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
        return f"a short run: {', '.join(less)}" if less else None


def make_plan(sheet: Sheet, request: LabRequest) -> Plan:
    """Combine a sheet with a request, and check that its data is available."""
    if not 0 < request.scale <= 1:
        raise RequestError(f"scale: wanted a share above 0 and up to 1, found {request.scale:g}.")
    if request.repeats is not None and sheet.repeats == 0:
        raise RequestError(f"repeats: lab {sheet.name} does not take it. Leave it out.")
    if request.repeats is not None and request.repeats < 1:
        raise RequestError(f"repeats: wanted 1 or more, found {request.repeats}.")
    for flag, what in sheet.needs.items():
        if flag not in request.flags:
            raise RequestError(f"lab {sheet.name} needs {_dashed(flag)}: {what}")
    flags, store = _without_store(sheet, request.flags)
    settings = _varied(sheet, flags)
    epochs = max(min(_LEAST_EPOCHS, sheet.epochs), round(sheet.epochs * request.scale))
    base: dict[str, SettingValue] = {**sheet.run, "epochs": epochs, **flags}
    specs = [with_changes(base, setting.values) for setting in settings]
    whole = dataset_of(specs[0]).count("train") if sheet.samples is None else sheet.samples
    if "samples" not in flags and request.scale < 1:
        batch = max(spec.batch_size * spec.accumulate for spec in specs)
        base["samples"] = min(whole, max(round(whole * request.scale), _LEAST_BATCHES * batch))
    missing = list(sheet.missing)
    replaceable = "data" not in flags and sheet.samples is not None
    if replaceable and (reason := _no_data(with_changes(base, settings[0].values))):
        missing.append({"name": str(base["data"]), "reason": f"used {_BUILT_IN} instead: {reason}"})
        base["data"] = _BUILT_IN
    spec = with_changes(base, settings[0].values)
    picked, changed = _effects(sheet, flags, settings, spec)
    return Plan(
        sheet=sheet,
        base=base,
        settings=settings,
        repeats=sheet.repeats if request.repeats is None else request.repeats,
        scale=request.scale,
        spec=spec,
        picked=picked,
        changed=changed,
        missing=tuple(missing),
        whole_samples=whole,
        store=store,
    )


def _without_store(
    sheet: Sheet, flags: Mapping[str, SettingValue]
) -> tuple[Mapping[str, SettingValue], Address | None]:
    """Take the lab's object store out of the flags."""
    source, endpoint = (flags.get(key) for key in _STORE)
    if not sheet.store or source is endpoint is None:
        return flags, None
    if source is None or not is_store_url(str(source)):
        found = "no --source" if source is None else repr(source)
        raise RequestError(
            f"source: lab {sheet.name} tries memory and local disk anyway. Wanted an object store "
            f"such as s3://BUCKET/PREFIX, found {found}."
        )
    others = {key: value for key, value in flags.items() if key not in _STORE}
    return others, parse_address(str(source), None if endpoint is None else str(endpoint))


def _varied(sheet: Sheet, flags: Mapping[str, SettingValue]) -> tuple[Setting, ...]:
    """Return the settings that the flags leave, each once."""
    settings: Sequence[Setting] = sheet.settings
    for key, given in flags.items():
        if all(key in setting.values for setting in settings):
            having = [each for each in settings if _equal(each.values[key], given)]
            settings = having or settings
    found: dict[str, Setting] = {}
    for setting in settings:
        values = {
            key: value if _equal(value, flags.get(key, value)) else flags[key]
            for key, value in setting.values.items()
        }
        shown = dict(setting.shown)
        if (same := found.get(str(values))) is not None:
            for name, word in same.shown.items():
                shown[name] = word if word == shown[name] else f"{word} and {shown[name]}"
        found[str(values)] = Setting(values, shown)
    if len(found) == 1 < len(sheet.settings) and not sheet.each_counts:
        compared = ", ".join(map(_dashed, sheet.settings[0].values))
        raise RequestError(
            f"lab {sheet.name} compares values of {compared}, and a single value leaves nothing to "
            "compare. Leave the flag out, or use `stepscope run`."
        )
    return tuple(found.values())


def _equal(value: object, given: object) -> bool:
    """Compare a value with one of a flag, which may be text."""
    return str(value) == str(given)


def _dashed(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def _no_data(spec: RunSpec) -> str | None:
    """Return why the data of a spec is not available, or None."""
    try:
        lack_of_room(spec)
    except DataError as error:
        return str(error)
    return None


def _effects(
    sheet: Sheet, flags: Mapping[str, SettingValue], settings: Sequence[Setting], spec: RunSpec
) -> tuple[dict[str, SettingValue], dict[str, SettingValue]]:
    """Return the flags that only select settings of the sheet, and those that differ from it."""
    resolved = spec.model_dump(mode="json")
    whole = {**sheet.run, "samples": None, "epochs": sheet.epochs}
    given = {
        key: resolved[key]
        for key in flags
        if key not in _PLACES and (key not in whole or whole[key] != resolved[key])
    }
    own = [setting.values for setting in sheet.settings]
    selected = all(setting.values in own for setting in settings)
    picked = [key for key in given if selected and all(key in values for values in own)]
    changed = {key: value for key, value in given.items() if key not in picked}
    return {key: given[key] for key in picked}, changed
