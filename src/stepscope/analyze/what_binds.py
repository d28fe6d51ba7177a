"""What binds a training on an asynchronous device: the device, data, the host's work or launching?

The device works through a queue that the host fills. Both timelines of a step are recorded as
durations between the same marks, so how far the device lags behind the host is their difference,
summed since the epoch began, where the queue is empty. The offset of the device's clock does not
matter, and its drift is found from the sums of both. A wait for data tells the lag anew: it is gone
if the device idled then, and at least as long as the wait if it did not.

The device is idle in a part of a step as long as the host takes more than that lag, provided that
the lag is gone when the part ends. What the host did meanwhile is what the device waited for. Host
time within the lag costs nothing: the host works ahead, or waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, groupby, islice
from typing import NamedTuple

from stepscope.analyze.phase_shares import counted_steps, distribution
from stepscope.records import schema
from stepscope.records.table import Table
from stepscope.records.types import DeviceTime, HiddenTime, StackTime
from stepscope.units import format_share

LOADING = "loading"  # the activity of a script that makes its batches itself

# The order of the phases in most loops, for the lag. What is in no phase, such as `loss.item()` or
# the check of a GradScaler, mostly waits for the backward pass.
_ORDER = ("data", "transfer", "forward", "backward", "other", "optimizer")
_OTHER_FIRST = ("data", "other", "transfer", "forward", "backward", "optimizer")
_LAUNCHING = ("forward", "backward", "optimizer")
_BINDS_FROM = 0.2  # of the device's time, spent idle
_CAUGHT_UP_S, _CAUGHT_UP = 50e-6, 0.05  # of the host's time: a lag below either is none
_IDLED = 0.1  # of a wait for data, from which on the device has no work left
_MOST_DRIFT = 1e-3  # of a clock: a larger difference is a queue that grows
_MOST_STEPS = 100_000  # that are looked at
_MUCH_HIDDEN = 0.3  # of the host's time
_LITTLE = 0.05  # of the device's time: a wait that is not worth a word


class _PhaseInStep(NamedTuple):
    """The times of a phase in one step."""

    phase: str
    host_s: float
    device_s: float
    idle_s: float
    hidden_s: float  # of the host's, while the device had work
    drained: bool  # the device had nothing left to do when it ended


@dataclass(slots=True)
class _Queue:
    """How far the device lags behind the host, followed through an epoch."""

    lag_s: float = 0.0

    def follow(self, phase: str, host_s: float, device_s: float) -> _PhaseInStep:
        """Return what a phase took of both, and of that the device's idle time."""
        least_s = _no_lag_s(host_s)
        waits = phase == "data" and device_s <= host_s + least_s
        if waits and device_s > _IDLED * host_s:  # until the batch came
            self.lag_s = host_s - min(host_s, device_s)
        elif waits:  # the device had work all the time
            self.lag_s = max(self.lag_s, host_s)
        after_s, idle_s = self.lag_s + device_s - host_s, 0.0
        # A copy may take the time of both.
        if after_s <= least_s and phase != "transfer":
            idle_s = min(device_s, max(0.0, host_s - self.lag_s))
        hidden_s, drained = min(host_s, self.lag_s), after_s - device_s <= least_s
        part = _PhaseInStep(phase, host_s, device_s, idle_s, hidden_s, drained)
        self.lag_s = max(0.0, after_s)
        return part

    def step(self, times_s: Mapping[str, tuple[float, float]]) -> list[_PhaseInStep]:
        """Return the parts of a step, by the host's and the device's time of each phase."""
        data = self.follow("data", *times_s["data"])
        host_s, device_s = times_s["other"]
        # A loader of the script's own comes first: then the lag ends there.
        is_first = abs(self.lag_s + device_s - host_s) <= _no_lag_s(host_s)
        order = (_OTHER_FIRST if is_first else _ORDER)[1:]
        return [data, *(self.follow(phase, *times_s[phase]) for phase in order)]


def _no_lag_s(host_s: float) -> float:
    """Return the lag at the end of a phase that is none."""
    return max(_CAUGHT_UP_S, _CAUGHT_UP * host_s)


def _steps_on_device(steps: Table) -> Iterator[tuple[int, list[_PhaseInStep]]]:
    """Yield the place and the parts of each step with times of the device."""
    host = [steps[f"{phase}_s"] for phase in schema.PHASES]
    device = [steps[f"{phase}_device_s"] for phase in schema.DEVICE_PHASES]
    rows = zip(steps["epoch"], zip(*host, strict=True), zip(*device, strict=True), strict=True)
    numbered = islice(enumerate(rows), _MOST_STEPS)
    # The device has finished everything when an epoch is written.
    for _, epoch in groupby(numbered, key=lambda each: each[1][0]):
        known = [(at, h, d) for at, (_, h, d) in epoch if None not in h and None not in d]
        faster = 1 + _drift([(sum(h), sum(d)) for _, h, d in known])
        queue = _Queue()
        for at, h, d in known:
            scaled = zip(h, (each / faster for each in d), strict=True)
            yield at, queue.step(dict(zip(schema.PHASES, scaled, strict=True)))


def _drift(times_s: Sequence[tuple[float, float]]) -> float:
    """Return how much faster the device's clock is, if the queue is as long all the time."""
    later = times_s[len(times_s) // 2 :]
    host_s = sum(each for each, _ in later)
    drift = sum(each for _, each in later) / host_s - 1 if host_s else 0.0
    return drift if abs(drift) <= _MOST_DRIFT else 0.0


def binding_steps(steps: Table) -> Table:
    """Return the steps in the time that binds: an asynchronous device's, if there is one.

    A phase then costs what it takes on the device, `data` what the device idles meanwhile, and a
    step their sum. On the host's clock, the first steps only fill the queue.
    """
    on_device = {
        f"{phase}_s": steps[f"{name}_device_s"]
        for phase, name in zip(schema.PHASES, schema.DEVICE_PHASES, strict=True)
    }
    if all(each is None for each in on_device["other_s"]):
        return steps
    rows = zip(steps["step_s"], *on_device.values(), strict=True)
    step_s = [host_s if None in device_s else sum(device_s) for host_s, *device_s in rows]
    columns = {**steps.columns, **on_device, "step_s": step_s}
    return Table(columns, steps.cut_lines, steps.computed)


# --- The answer


def device_time(
    steps: Table, dropped: Sequence[int], stacks: Sequence[StackTime] = ()
) -> DeviceTime | None:
    """Return the device's time by phase, what it waits for, and what the host waits for.

    None without an asynchronous device. `stacks` are the samples of a script: they tell a loader of
    its own from its other work, and name the line where the host waits for the device.
    """
    counted = [
        is_counted and forward_s is not None
        for is_counted, forward_s in zip(
            counted_steps(steps, dropped), steps["forward_device_s"], strict=True
        )
    ]
    if not any(counted):
        return None
    # Of folders older than this column, the time of `other` is in `forward`.
    times_s = {
        phase: [each or 0.0 for each in compress(steps[f"{phase}_device_s"], counted)]
        for phase in schema.DEVICE_PHASES
    }
    whole_s = sum(map(sum, times_s.values()))
    found: DeviceTime = {
        "phases": {
            phase: {"total_s": sum(each_s), **distribution(each_s, whole_s)}
            for phase, each_s in times_s.items()
        },
        "issue_s": sum(
            sum(compress(steps[f"{phase}_s"], counted)) for phase in ("transfer", *_LAUNCHING)
        ),
        "bound_by": None,
        "waits": None,
        "hidden": None,
    }
    parts = [part for at, step in _steps_on_device(steps) if counted[at] for part in step]
    if not parts or not whole_s:
        return found
    idle_s = {phase: sum(p.idle_s for p in parts if p.phase == phase) for phase in _ORDER}
    loading_s = idle_s["other"] * _loading_share(stacks)
    waits = {
        "data": (idle_s["data"] + loading_s) / whole_s,
        "host": (idle_s["other"] - loading_s) / whole_s,
        "launch": sum(idle_s[phase] for phase in _LAUNCHING) / whole_s,
    }
    found["waits"] = waits
    found["bound_by"] = "device"
    if sum(waits.values()) >= _BINDS_FROM:
        found["bound_by"] = max(waits, key=waits.__getitem__)
    found["hidden"] = _hidden(parts, stacks)
    return found


def _loading_share(stacks: Sequence[StackTime]) -> float:
    """Return the share of a script's own loader in its time outside the phases."""
    outside = [each for each in stacks if each["where"] == "other"]
    total_s = sum(each["total_s"] for each in outside)
    loading_s = sum(each["total_s"] for each in outside if each["activity"] == LOADING)
    return loading_s / total_s if total_s else 0.0


def _hidden(parts: Sequence[_PhaseInStep], stacks: Sequence[StackTime]) -> HiddenTime | None:
    """Return the phase in which the host spends most time that the device is busy anyway."""
    host_s = sum(part.host_s for part in parts)
    by_phase = {
        phase: sum(part.hidden_s for part in parts if part.phase == phase) for phase in _ORDER
    }
    phase = max(by_phase, key=by_phase.__getitem__)
    if by_phase[phase] < _MUCH_HIDDEN * host_s:
        return None
    mine = [part for part in parts if part.phase == phase]
    drained_s = sum(part.hidden_s for part in mine if part.drained)
    lines = [each for each in stacks if each["where"] == phase and each["line"]]
    first = max(lines, key=lambda each: each["total_s"], default=None)
    return {
        "phase": phase,
        "share": by_phase[phase] / host_s,
        "drained": 2 * drained_s >= by_phase[phase],
        "line": first["line"] if first else None,
        "code": first["code"] if first else None,
    }


_WAITS = {
    "data": "for data",
    "host": "for the host's other work between the phases",
    "launch": "for the host to launch the next operation",
}
_WAITING = {"transfer": "copying batches waits for it", "other": "the host waits for it"}
_HIDDEN = {
    "data": "loading is hidden behind it",
    "transfer": "copying batches is hidden behind it",
    "other": "the host's other work is hidden behind it",
}


def about_device(device: DeviceTime) -> str:
    """Return a sentence on what binds a training on a device; empty if that is unknown."""
    waits, hidden = device.get("waits"), device.get("hidden")  # not in folders before 0.2
    if waits is None or device["bound_by"] is None:
        return ""
    if device["bound_by"] != "device":
        said = ", ".join(
            f"{format_share(share)} {_WAITS[name]}"
            for name, share in sorted(waits.items(), key=lambda each: -each[1])
            if share >= _LITTLE
        )
        return f"{device['bound_by'].capitalize()}-bound: the device waits {said}."
    text = f"Device-bound: the device is busy {format_share(1 - sum(waits.values()))} of the time"
    if hidden is not None:
        said = _HIDDEN.get(hidden["phase"], "launching waits for it")
        if hidden["drained"]:
            said = _WAITING.get(hidden["phase"], said)
        text += f", and {said}"
        if hidden["line"] and hidden["phase"] != "data":
            text += f" at {hidden['line']}" + (f" (`{hidden['code']}`)" if hidden["code"] else "")
    return f"{text}."
