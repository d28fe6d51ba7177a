"""The tables of a run: phases, epochs, layers and memory bill, before and after the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from stepscope.analyze.memory_use import pools_of
from stepscope.analyze.run_summary import evaluation_split, evaluations
from stepscope.analyze.verdict import about_accounted_share
from stepscope.analyze.what_binds import about_device
from stepscope.records import schema
from stepscope.records.run_reader import Run
from stepscope.records.types import (
    EnergyFigures,
    Instrument,
    LayerTime,
    MemoryAnswer,
    MemoryBill,
    MemoryForecast,
    PhaseTime,
    PoolUse,
    Summary,
    ThrottlingFigures,
)
from stepscope.report.terminal.table_style import (
    FigureList,
    print_figures,
    print_rows,
    printable,
    say,
)
from stepscope.settings.load_settings import as_flags
from stepscope.units import (
    duration_format,
    format_bytes,
    format_count,
    format_duration,
    format_flop_per_s,
    format_joules,
    format_known,
    format_path,
    format_range,
    format_share,
)

# --- Memory bill


def print_forecast(console: Console, bill: MemoryAnswer) -> None:
    """Print the memory bill that was forecast before the run."""
    spec = bill["spec"]
    say(
        console,
        f"{spec['model']} on {spec['data']}, {spec['device']}, batch {spec['batch_size']:,}, "
        f"{spec['optimizer']}, {format_count(spec['workers'], 'worker')}",
        style="bold",
    )
    columns = ("memory", "forecast", "how", "what")
    print_rows(console, columns, _forecast_rows(bill), left=(0, 2, 3))
    rows = [
        [
            name,
            *(format_bytes(phase["peak_bytes"]), format_bytes(phase["end_bytes"])),
            "<- highest" if name == bill["peak_phase"] else "",
        ]
        for name, phase in bill["phases"].items()
    ]
    print_rows(console, ("tensors in", "peak", "at the end", ""), rows, left=(0, 3))
    say(console, *_verdict(bill))


def _forecast_rows(bill: MemoryForecast) -> Iterator[list[str]]:
    """Yield the forecast items pool by pool: size, method and description, then the total."""
    pools = pools_of(bill["items"])
    for pool in pools:
        items = {name: item for name, item in bill["items"].items() if item["pool"] == pool}
        for name, item in items.items():
            if item["bytes"]:
                size = format_bytes(item["bytes"])
                yield [name.replace("_", " "), size, item["how"], item["note"]]
        yield []
        total = "total" if len(pools) == 1 else f"total, {pool}"
        yield [total, format_bytes(sum(item["bytes"] for item in items.values()))]
        yield []


def print_bill(console: Console, bill: MemoryBill) -> None:
    """Print the items of a finished run: forecast, and measured if possible."""
    several = _pools(bill)
    where = ["pool"] if several else []
    rows = []
    for name, item in bill["items"].items():
        if item["bytes"] or item["measured_bytes"]:
            where_it_is = [item["pool"]] if several else []
            sizes = map(known_size, (item["bytes"], item["measured_bytes"]))
            rows.append([name.replace("_", " "), *sizes, *where_it_is, item["how"]])
    totals = {
        f"total, {pool}": (each["total_bytes"], each["peak_bytes"])
        for pool, each in several.items()
    }
    totals = totals or {"total": (bill["total_bytes"], bill["peak_memory_bytes"])}
    rows += [[], *([name, *map(known_size, sizes)] for name, sizes in totals.items())]
    print_rows(console, ("memory", "forecast", "measured", *where, ""), rows, left=(0, 3, 4))


def about_forecast(bill: MemoryBill) -> str:
    """Return one line on the error of the forecast, for each pool if there are several."""
    several = _pools(bill)
    if not several:
        return f"memory forecast {_how_good(bill, 'the peak')}"
    said = (f"{pool} {_how_good(each, 'its peak')}" for pool, each in several.items())
    return f"memory forecast: {'; '.join(said)}"


def _how_good(compared: MemoryBill | PoolUse, peak: str) -> str:
    error, unexplained = compared.get("error_share"), compared.get("unexplained_share")
    said = format_bytes(compared["total_bytes"])
    if error is None or unexplained is None:
        return said
    return f"{said}, off by {error * 100:+.1f} %; unexplained {format_share(unexplained)} of {peak}"


def _pools(bill: MemoryBill) -> dict[str, PoolUse]:
    """Return the figures of each pool, if there are several."""
    pools = bill.get("pools") or {}
    return pools if len(pools) > 1 else {}


def _verdict(bill: MemoryForecast) -> Iterator[str]:
    """List the remedies, then answer whether the run fits and, if not, what to change."""
    for remedy in bill["remedies"]:
        fits = "fits" if remedy["fits"] else "does not fit"
        size = format_bytes(remedy["pool_bytes"])
        yield f"with {as_flags(remedy['settings'])}: {size}, {fits}"
    limit = f"{format_bytes(bill['limit_bytes'])} ({bill['limit_of']})"
    needed_bytes = bill["limits"][bill["limit_pool"]]["needed_bytes"]
    needed = f"the run needs {format_bytes(needed_bytes)}"
    if bill["fits"]:
        yield f"Fits: {needed}, {format_share(needed_bytes / bill['limit_bytes'])} of {limit}."
        return
    best = next((each for each in bill["remedies"] if each["fits"]), None)
    yield f"Does not fit: {needed}, the limit is {limit}."
    yield "Try a smaller model." if best is None else f"Use {as_flags(best['settings'])}."


def known_size(size_bytes: int | None) -> str:
    """Return a size, or nothing if it is unknown."""
    return "" if size_bytes is None else format_bytes(size_bytes)


# --- Run


_BAR_WIDTH = 18  # the widest figures and a full bar take 80 columns
_MOST_LAYERS = 10


def print_run(console: Console, run: Run) -> None:
    """Print the tables of a run and the path of its folder."""
    summary = run.summary
    say(console, _headline(run), style="bold")
    if phases := summary.get("phases"):
        _print_phases(console, "phase", phases)
    if device := summary.get("device"):
        _print_phases(console, "on the device", device["phases"])
    if layers := summary.get("layers"):
        _print_layers(console, layers)
    if len(run.epochs):
        print_figures(console, epoch_figures(run))
    if bill := summary.get("memory_bill"):
        print_bill(console, bill)
    say(console, *map(printable, _closing_lines(run)))


_ENDINGS = {
    schema.FAILED: "Failed",
    schema.INTERRUPTED: "Interrupted",
    schema.OUT_OF_MEMORY: "Out of memory",
}


def about_ending(run: Run) -> str | None:
    """Return how far a run came that did not complete, or that took no step; else None."""
    steps, wall_s = run.summary.get("steps") or 0, run.summary.get("wall_s")
    took = "" if wall_s is None else format_duration(wall_s)
    ending = _ENDINGS.get(run.status)
    if ending is not None:
        after = f"{ending} after {took}" if took else ending
        if not steps:
            return f"{after}, before the first training step."
        return f"{after}: the figures are those of {format_count(steps, 'step')}."
    if steps or run.status != schema.COMPLETED:
        return None
    return f"No training step was recorded{f' in {took}' if took else ''}."


def _headline(run: Run) -> str:
    summary, spec = run.summary, run.spec
    if run.info.get("kind") == "trace":
        device = run.info.get("environment", {}).get("device", "no device seen")
        what = f"{spec.get('module') or spec.get('script')}, {device}"
    else:
        what = f"{spec.get('model', '?')} on {spec.get('data', '?')}, {spec.get('device', '?')}"
    how_far = f"{summary.get('steps', 0):,} steps in {format_duration(summary.get('wall_s') or 0)}"
    return f"\n{printable(what)}: {run.status}, {how_far}"


def _print_phases(console: Console, title: str, phases: dict[str, PhaseTime]) -> None:
    of_step = duration_format(seen["p99_s"] for seen in phases.values())
    of_run = duration_format(seen["total_s"] for seen in phases.values())
    rows = [
        [
            phase,
            format_share(seen["share"]),
            *map(of_step, (seen["median_s"], seen["p95_s"], seen["p99_s"])),
            of_run(seen["total_s"]),
            "█" * round(seen["share"] * _BAR_WIDTH),
        ]
        for phase, seen in phases.items()
    ]
    columns = (title, "share", "median", "p95", "p99", "total", "")
    print_rows(console, columns, rows, left=(0, 6))


def _print_layers(console: Console, layers: list[LayerTime]) -> None:
    """Print the slowest layers, with the rate of the forward pass if it is known."""
    all_s = sum(layer["forward_s"] + layer["backward_s"] for layer in layers)
    layers = layers[:_MOST_LAYERS]
    shown = duration_format(max(layer["forward_s"], layer["backward_s"]) for layer in layers)
    rows = []
    for layer in layers:
        forward_s, macs = layer["forward_s"], layer["multiply_adds"]
        rows.append(
            [
                *(layer["name"], layer["kind"], shown(forward_s), shown(layer["backward_s"])),
                format_share((forward_s + layer["backward_s"]) / all_s) if all_s else "?",
                f"{macs * 1e-6:,.1f} M" if macs else format_known(macs, str),
                format_bytes(layer["bytes"]),
                f"{macs / forward_s * 1e-9:,.1f}" if macs and forward_s else "",
            ]
        )
    columns = ("layer", "kind", "forward", "backward", "share", "MACs", "bytes", "GMAC/s")
    print_rows(console, columns, rows, left=(0, 1))


def epoch_figures(run: Run) -> FigureList:
    """Return the table of the training epochs, with the evaluation after each."""
    columns = ["epoch", "loading", "training", "total", "samples/s", "loss"]
    knows_accuracy = run.info.get("kind") != "trace"  # a traced script does not report accuracy
    if knows_accuracy:
        columns += ["train", evaluation_split(run), "top-5"]
    tests = evaluations(run)
    rows = []
    trained: Sequence[Mapping[str, Any]] = run.epoch_rows("train")
    forms = {
        name: duration_format(row[name] for row in trained)
        for name in ("loading_s", "training_s", "total_s")
    }
    forms |= {"samples_per_s": "{:,.0f}".format, "loss": "{:.3f}".format}
    for row in trained:
        figures = [format_known(row[name], form) for name, form in forms.items()]
        cells = [str(row["epoch"]), *figures]
        if knows_accuracy:
            test = tests.get(row["epoch"])
            tested = (test["accuracy"], test["top5"]) if test else (None, None)
            cells += [format_known(share, format_share) for share in (row["accuracy"], *tested)]
        rows.append(cells)
    return FigureList("Epochs", columns, rows)


def _closing_lines(run: Run) -> Iterator[str]:
    summary, instrument = run.summary, run.info.get("instrument") or {}
    if dropped := summary.get("dropped_epochs"):
        first = "first epoch" if len(dropped) == 1 else f"first {len(dropped)} epochs"
        yield f"{first} excluded from medians and shares (warm-up)"
    if layers := summary.get("layers"):
        yield _about_layers(run, layers)
    yield from about_accounted_share(summary)
    yield from _about_cost(instrument)
    if device := summary.get("device"):
        yield about_device(device)
    if bad := summary.get("bad_samples"):
        yield f"{format_count(bad, 'image')} could not be read, see events.jsonl"
    if peak_bytes := summary.get("peak_memory_bytes"):
        line = f"peak memory {format_bytes(peak_bytes)}"
        if device_peak_bytes := summary.get("device_peak_memory_bytes"):
            line += f", {format_bytes(device_peak_bytes)} on the device"
        yield line
    if (energy := summary.get("energy")) and energy["joules"] is not None:
        yield _about_energy(energy)
    if (throttling := summary.get("throttling")) and throttling["steps"]:
        yield f"throttled: {about_throttling(throttling)}"
    if (flop_per_s := summary.get("flop_per_s")) is not None:
        yield about_limit(flop_per_s, summary)
    if bill := summary.get("memory_bill"):
        yield about_forecast(bill)
    yield f"run folder: {format_path(run.path)}"


def _about_layers(run: Run, layers: list[LayerTime]) -> str:
    steps = run.steps["detail"].count(schema.LAYERS)
    asked = run.spec.get("layers")
    more = f"; {asked} were requested" if asked and asked != steps else ""
    shown = f"the largest {_MOST_LAYERS} of {len(layers)}" if len(layers) > _MOST_LAYERS else "all"
    return f"layers: {shown}, mean of {format_count(steps, 'step')} timed with hooks{more}"


def _about_cost(instrument: Instrument) -> Iterator[str]:
    share, cost_s = instrument.get("overhead_share"), instrument.get("overhead_per_step_s")
    if share is not None and cost_s is not None:
        line = f"profiling overhead {format_duration(cost_s)} per step ({format_share(share)})"
        if (of_a_core := instrument.get("beside_cpu_share")) is not None:
            line += f", and {format_share(of_a_core)} of one core for sampling"
        yield line
    if blocks := instrument.get("off_blocks"):
        cost, share = format_duration(blocks["overhead_per_step_s"]), blocks["overhead_share"]
        quartiles = format_range(blocks["low_s"], blocks["high_s"], format_duration)
        yield (
            f"compared with {blocks['blocks']} blocks of steps without detail: {cost} per step "
            f"({format_share(share)}), quartiles {quartiles}"
        )


def _about_energy(energy: EnergyFigures) -> str:
    joules = format_known(energy["joules"], format_joules)
    domains, idle_w = energy["domains"], energy["idle_w"]
    by = ", ".join(f"{domain} ({domains[domain]['sensor']})" for domain in energy["covers"])
    before = "" if idle_w is None else f", {idle_w:.1f} W before the run"
    return f"energy {joules}, {energy['mean_w']:.1f} W on average{before}: {by}"


def about_throttling(throttling: ThrottlingFigures) -> str:
    """Return one line on the throttled steps and their slowdown, from the summary."""
    if not throttling["steps"]:
        return f"none detected ({', '.join(throttling['watched'])})"
    text = f"{throttling['steps']:,} steps"
    if (share := throttling["share_of_time"]) is not None:
        text += f", {format_share(share)} of the time"
    if (cost := throttling["slowdown"]) is not None:
        text += f", take {cost['ratio']:.2f} times as long as the others"
        if cost["low"] is not None:
            text += f" (95 %: {cost['low']:.2f} to {cost['high']:.2f})"
    return text


def about_limit(flop_per_s: float, summary: Summary) -> str:
    """Return one line on the achieved rate, and its share of the peak."""
    share = summary.get("share_of_peak")
    if share is None:
        limit = (summary.get("absent") or {}).get("share_of_peak", "no peak is known")
    elif share > 1:
        limit = (
            f"{format_share(share)} of the saved peak, which was measured on a busy machine; "
            "measure it again: stepscope doctor --peaks"
        )
    else:
        limit = f"{format_share(share)} of this machine's peak"
    return f"achieved {format_flop_per_s(flop_per_s)}: {limit}"
