"""Findings on how a user script computes, from its setup and its compilations.

The factors are the medians that `bench/setting_gains.py` measured on a CPU.
"""

from __future__ import annotations

from collections import Counter

from stepscope.analyze.findings.finding import WORTHWHILE, Finding, RunView, saving
from stepscope.analyze.step_model import batch_costs
from stepscope.errors import RequestError
from stepscope.records.types import Compilation, ScriptSetup
from stepscope.units import format_count, format_duration, format_share

# How much faster an update is with fused=True: 2.1 to 3.6 for AdamW, 1.0 to 1.9 for SGD, whose
# gain grows with the size of its tensors.
_FUSED_GAIN = {"Adam": 2.5, "AdamW": 2.5, "SGD": 1.5, "Adagrad": 1.5}
_SMALL_TENSOR = 10_000
_FUSED_GAIN_SMALL_SGD = 1.2
_CHANNELS_LAST_GAIN = 1.2  # 1.10 to 1.54
_SINGLE_GAIN, _SINGLE_CONVOLUTION_GAIN = 2.0, 4.0  # 2.9 to 6.3 with convolutions
_NO_ANOMALY_GAIN = 1.3  # 1.18 to 1.57
_NO_GRAD_GAIN = 1.05  # 1.00 to 1.30

_MUCH_OPTIMIZER = 0.05
_MOSTLY = 0.7
_LARGE_OPERATION_S = 100e-6
# A call of torch with next to no work, forward and backward.
_OPERATION_S = 20e-6
_SMALL_BATCH = 16
_LARGER = 8
_MUCH_FIXED = 0.5
_MOST_DESCRIBED = 3


def unfused_optimizer(view: RunView) -> Finding | None:
    """Report an optimiser that updates tensor by tensor, and takes long."""
    setup, share = _setup(view), view.share("optimizer")
    if setup is None or share < _MUCH_OPTIMIZER:
        return None
    slow = [
        each
        for each in setup["optimizers"]
        if not each["fused"]
        and not each["foreach"]
        and each["name"] in _FUSED_GAIN
        # On a device, torch updates many tensors at once unless told otherwise.
        and (view.on_cpu or each["foreach"] is False)
    ]
    if not slow:
        return None
    largest = max(slow, key=lambda each: each["tensors"])
    gain = _FUSED_GAIN[largest["name"]]
    size = setup["parameters"] / max(setup["parameter_tensors"], 1)
    if largest["name"] == "SGD" and size < _SMALL_TENSOR:
        gain = _FUSED_GAIN_SMALL_SGD
    return saving(
        view,
        "unfused_optimizer",
        f"The optimiser takes {format_share(share)} of the time: {largest['name']} updates "
        f"{largest['tensors']:,} tensors one by one.",
        view.of_a_step(view.mean("optimizer_s")),
        f"{setup['parameters']:,} parameters",
        saves_s=view.all_steps_s("optimizer") * (1 - 1 / gain),
        change=f"pass fused=True to {largest['name']}",
    )


def too_many_threads(view: RunView) -> Finding | None:
    """Report more threads than CPUs: they wait for each other in every operation."""
    setup = _setup(view)
    cpus = view.run.info.get("environment", {}).get("cpus_usable")
    if setup is None or not cpus or setup["threads"] <= cpus or not view.on_cpu:
        return None
    crowded = setup["threads"] / cpus
    return saving(
        view,
        "too_many_threads",
        f"torch uses {setup['threads']} threads on {format_count(cpus, 'CPU')}.",
        f"torch.get_num_threads() is {setup['threads']}; usable CPUs: {cpus}",
        saves_s=view.all_steps_s("forward", "backward", "optimizer") * (1 - 1 / crowded),
        change=f"call torch.set_num_threads({cpus}), or set OMP_NUM_THREADS={cpus}",
    )


def contiguous_convolutions(view: RunView) -> Finding | None:
    """Report convolutions in the contiguous format, where channels_last is faster."""
    setup = _setup(view)
    operations = setup and setup["operations"]
    if setup is None or not operations or setup["dtype"] == "float64":
        return None
    flops = view.run.summary.get("flops")
    is_single = flops is None or flops.get("precision", "fp32") == "fp32"
    if is_single and not view.on_cpu:  # only tensor cores want channels_last
        return None
    share, contiguous = operations["convolution_share"], operations["contiguous_share"]
    is_large = view.mean_s("forward", "backward") > _LARGE_OPERATION_S * operations["count"]
    if not share or not contiguous or share < _MOSTLY or contiguous < _MOSTLY or not is_large:
        return None
    return saving(
        view,
        "contiguous_convolutions",
        f"Convolutions do {format_share(share)} of the operations, in the contiguous format.",
        f"{format_share(contiguous)} of the convolutions have contiguous inputs",
        saves_s=view.all_steps_s("forward", "backward") * (1 - 1 / _CHANNELS_LAST_GAIN),
        change="use channels_last: model.to(memory_format=torch.channels_last), and the same for "
        "each batch of images",
    )


def double_precision(view: RunView) -> Finding | None:
    """Report a model in float64."""
    setup = _setup(view)
    if setup is None or setup["dtype"] != "float64":
        return None
    operations = setup["operations"]
    convolutions = operations["convolution_share"] if operations else None
    gain = _SINGLE_CONVOLUTION_GAIN if (convolutions or 0.0) >= _MOSTLY else _SINGLE_GAIN
    return saving(
        view,
        "double_precision",
        f"The model computes in float64, with {setup['parameters']:,} parameters.",
        "most parameters are torch.float64",
        saves_s=view.all_steps_s("forward", "backward") * (1 - 1 / gain),
        change="use float32: model.float(), and images.float()",
    )


def anomaly_detection(view: RunView) -> Finding | None:
    """Report autograd's anomaly detection, which is for debugging."""
    setup = _setup(view)
    if setup is None or not setup["anomaly_detection"]:
        return None
    return saving(
        view,
        "anomaly_detection",
        "Anomaly detection is on: autograd records a stack for every operation and checks every "
        "gradient.",
        "torch.is_anomaly_enabled() is True during training",
        saves_s=view.all_steps_s("forward", "backward") * (1 - 1 / _NO_ANOMALY_GAIN),
        change="leave out torch.autograd.set_detect_anomaly(True)",
    )


def gradients_in_evaluation(view: RunView) -> Finding | None:
    """Report evaluations that record gradients. It costs memory more than time."""
    setup, wall_s = _setup(view), view.run.summary.get("wall_s")
    if setup is None or not wall_s:
        return None
    took_s = setup["evaluation_with_gradients_s"]
    share = took_s / wall_s
    if share < WORTHWHILE:
        return None
    return Finding(
        "gradients_in_evaluation",
        f"Evaluation runs with gradients enabled, {format_share(share)} of the run: it keeps "
        "activations for a backward pass that never comes.",
        (f"{format_duration(took_s)} of evaluation with gradients",),
        weight=share,
        saves_s=took_s * (1 - 1 / _NO_GRAD_GAIN),
        change="evaluate inside torch.no_grad() or torch.inference_mode()",
    )


def unused_gradients(view: RunView) -> Finding | None:
    """Report gradients of weights that no optimiser updates, as of a backbone that is not frozen.

    Without them, the backward pass ends where the updated layers begin. Their share of the work is
    that of the tensors or of the parameters, whichever is larger; where other layers come before
    them, only half of their work is saved.
    """
    setup = _setup(view)
    unused = setup.get("unused_gradients", 0) if setup else 0
    if setup is None or not unused:
        return None
    share = max(unused / setup["parameter_tensors"], setup.get("unused_gradients_share", 0.0))
    saved = share if setup.get("unused_gradients_first") else share / 2
    backward_s = view.mean_s("backward")
    return saving(
        view,
        "unused_gradients",
        f"The backward pass computes gradients for {unused} of {setup['parameter_tensors']} weight "
        "tensors that no optimiser updates.",
        view.of_a_step(backward_s),
        saves_s=saved * backward_s * len(view.run.steps),
        change="freeze them: requires_grad_(False) before training",
    )


def tiny_batch(view: RunView) -> Finding | None:
    """Report batches so small that the fixed cost of a step dominates."""
    if view.device is not None and view.device["bound_by"] != "launch":
        return None
    setup = _setup(view)
    operations = setup and setup["operations"]
    try:
        fixed_s, _, size = batch_costs(view)
    except RequestError:  # the samples are unknown
        return None
    if operations:
        calls_s = min(view.mean_s("forward", "backward"), _OPERATION_S * operations["count"])
        fixed_s = max(fixed_s, view.mean_s("optimizer") + calls_s)
    training_s = view.mean_step_s - view.mean_s("data")
    if size > _SMALL_BATCH or not training_s or fixed_s < _MUCH_FIXED * training_s:
        return None
    larger = round(size * _LARGER)
    share = min(1.0, fixed_s / training_s)
    return saving(
        view,
        "tiny_batch",
        f"{format_share(share)} of a step does not depend on the size of its batch, "
        f"{format_count(int(size), 'sample')}: calling operations and updating weights.",
        view.of_a_step(fixed_s),
        *([f"{operations['count']} operations in a step"] if operations else []),
        saves_s=fixed_s * (1 - 1 / _LARGER) * len(view.run.steps),
        change=f"use a larger batch, such as batch_size={larger}, and adapt the learning rate",
    )


def launch_bound(view: RunView) -> Finding | None:
    """Report a device that waits for the host to launch its operations."""
    device = view.device
    if device is None or device["bound_by"] != "launch" or device["waits"] is None:
        return None
    share = device["waits"]["launch"]
    return Finding(
        "launch_bound",
        f"The device keeps up with the host's launches {format_share(share)} of the time: its "
        "operations are too small. Use a larger batch, torch.compile or CUDA graphs.",
        (view.of_a_step(share * view.mean_step_s),),
        weight=share,
    )


# --- torch.compile


def recompilations(view: RunView) -> Finding | None:
    """Report code that torch.compile compiled again and again, and why."""
    compiled = view.run.summary.get("compilation")
    if not compiled:
        return None
    again = [each for each in compiled["compilations"] if each["reason"] and not _resumes(each)]
    if len(again) < 2:
        return None
    again_s = sum(each["took_s"] for each in again)
    reason = Counter(_general(str(each["reason"])) for each in again).most_common(1)[0][0]
    why, change = reason, "keep shapes, types and values of the compiled code constant"
    if "size mismatch" in reason or "stride mismatch" in reason:
        why, change = "batches differ in size", "pass dynamic=True to torch.compile"
        if _only_last_differs(view):
            why = "the last batch is smaller"
            change = "use drop_last=True in the DataLoader, or dynamic=True in torch.compile"
    stopped = ", until torch stopped compiling it" if compiled["limit_reached"] else ""
    return saving(
        view,
        "recompilations",
        f"torch.compile compiled code again {len(again)} times, which took "
        f"{format_duration(again_s)}{stopped}: {why}.",
        *(
            f"{each['line'] or each['function']}: {each['reason']}, "
            f"{format_duration(each['took_s'])}"
            for each in again[:_MOST_DESCRIBED]
        ),
        saves_s=again_s,
        change=change,
    )


def graph_breaks(view: RunView) -> Finding | None:
    """Report places where torch.compile splits its graph."""
    compiled = view.run.summary.get("compilation")
    if not compiled or not compiled["graph_breaks"]:
        return None
    first = [each for each in compiled["compilations"] if not each["reason"] or _resumes(each)]
    places = compiled["graph_breaks"]
    lines = list(dict.fromkeys(each["line"] for each in places if each["line"]))
    at = f" at {', '.join(lines[:_MOST_DESCRIBED])}" if lines else ""
    took_s = sum(each["took_s"] for each in first)
    return saving(
        view,
        "graph_breaks",
        f"torch.compile splits the code{at} and compiles {len(first)} parts, in "
        f"{format_duration(took_s)}.",
        *(f"{each['line'] or '?'}: {each['reason']}" for each in places[:_MOST_DESCRIBED]),
        saves_s=took_s * (1 - 1 / max(len(first), 1)),
        change="keep print, .item() and other calls of Python out of the compiled code",
    )


def _resumes(compilation: Compilation) -> bool:
    """Return whether this is the code after a graph break."""
    return compilation["function"].startswith("torch_dynamo_resume")


def _general(reason: str) -> str:
    """Return a reason without its numbers."""
    return "".join("n" if letter.isdecimal() else letter for letter in reason)


def _only_last_differs(view: RunView) -> bool:
    """Return whether only the last batch of an epoch has fewer samples."""
    steps = view.run.steps
    usual = Counter(steps["samples"]).most_common(1)[0][0]
    last = dict(zip(steps["epoch"], steps["step"], strict=True))
    rows = zip(steps["epoch"], steps["step"], steps["samples"], strict=True)
    others = [(epoch, step) for epoch, step, samples in rows if samples != usual]
    return bool(others) and all(last[epoch] == step for epoch, step in others)


def _setup(view: RunView) -> ScriptSetup | None:
    return view.run.summary.get("script_setup")
