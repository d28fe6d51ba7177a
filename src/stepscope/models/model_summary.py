"""Count the layers, parameters, multiply-adds and memory of a network.

The counts come from one forward pass in training mode on the CPU, with two samples, because batch
norm may refuse to train on one; figures are half of what was measured. The figures of a module
exclude those of its children, so every column adds up to the total.

`kept_bytes` is the memory that autograd saved for the backward pass, without parameters and
buffers; a storage counts once, for the module that saved it first. `forward_backward_mb` is
torchsummary's figure, which is often published: 2 x 4 bytes x the output values of every leaf with
parameters and of every block (a composite module other than a container and the network itself).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import nn, optim
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode

from stepscope.errors import RequestError
from stepscope.models.multiply_adds import (
    convolves,
    first_names,
    multiply_adds,
    multiply_adds_of_operation,
    tensors_in,
)
from stepscope.models.step_tensors import measure_optimizer
from stepscope.models.user_model import describe_user_error
from stepscope.records.types import LayerCounts, NetworkCounts, OptimizerCounts


def eagerly() -> contextlib.AbstractContextManager[object]:
    """Return a context in which torch compiles nothing."""
    if hasattr(torch.compiler, "set_stance"):  # from torch 2.6 on
        stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
        return stance
    return contextlib.nullcontext()


@contextlib.contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put all modules into training or evaluation mode; restore the mode of each at the end."""
    before = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, was_training in before.items():
            module.training = was_training


@dataclass(slots=True, eq=False)
class ModuleCalls:
    """The calls of one module, over the whole batch, without those of its children."""

    name: str
    module: nn.Module
    calls: int = 0
    output: torch.Size | None = None
    values_made: int = 0
    kept_bytes: int = 0
    convolves: bool = False
    uncounted: set[str] = field(default_factory=set)
    layer_macs: int | None = 0
    operation_macs: int = 0

    @property
    def macs(self) -> int | None:
        """Multiply-adds from the layer's shapes, else from its operations; None if unknown."""
        if self.layer_macs is not None:
            return self.layer_macs
        return None if self.uncounted else self.operation_macs

    @property
    def label(self) -> str:
        """The name and class of the module, for messages."""
        return f"{self.name} ({type(self.module).__name__})"


class ForwardWatch(TorchDispatchMode):
    """Record one forward pass of a network; `running` is the stack of modules being called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        self.seen: dict[nn.Module, ModuleCalls] = {}
        for name, module in model.named_modules():
            # Without wrappers of `torch.compile`.
            plain = ".".join(part for part in name.split(".") if part != "_orig_mod")
            self.seen[module] = ModuleCalls(plain or f"({type(module).__name__})", module)
        self.last_layer: ModuleCalls | None = None
        self.last_layer_input: torch.Size | None = None
        self.running: list[ModuleCalls] = []
        # Kept alive, so that no address is reused.
        self._saved: dict[int, tuple[torch.UntypedStorage, ModuleCalls]] = {}

    def call(self, make_batch: Callable[[], torch.Tensor]) -> Any:
        """Call the network in training mode, and return its output."""
        with contextlib.ExitStack() as hooked:
            for module in self.seen:
                if not isinstance(module, torch.jit.ScriptModule):  # it refuses hooks
                    enter = module.register_forward_pre_hook(self._enter, with_kwargs=True)
                    leave = module.register_forward_hook(self._leave, with_kwargs=True)
                    hooked.callback(enter.remove)
                    hooked.callback(leave.remove)
            saving = saved_tensors_hooks(self._save, lambda saved: saved)
            with in_mode(self.model, training=True), eagerly(), torch.enable_grad(), saving, self:
                output = self.model(make_batch())
        # Only now, because lazy layers have no parameters before the call.
        for own in (*self.model.parameters(), *self.model.buffers()):
            if own.layout == torch.strided:
                self._saved.pop(own.untyped_storage()._cdata, None)
        for storage, seen in self._saved.values():
            seen.kept_bytes += storage.nbytes()
        self._saved.clear()
        return output

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if self.running:
            caller = self.running[-1]
            found = multiply_adds_of_operation(func, args, made)
            if found is None:
                caller.uncounted.add(str(func._schema.name))
            caller.operation_macs += found or 0
            caller.convolves |= convolves(func)
        return made

    def _enter(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen = self.seen[module]
        self.running.append(seen)
        taken = next(tensors_in((args, named)), None)
        if taken is not None and next(module.parameters(recurse=False), None) is not None:
            self.last_layer, self.last_layer_input = seen, taken.shape

    def _leave(
        self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        seen = self.seen[module]
        while self.running and self.running.pop() is not seen:
            pass  # a call inside it failed, and the network caught the exception
        made = list(tensors_in(output))
        seen.calls += 1
        seen.output = made[0].shape if made else seen.output
        seen.values_made += sum(tensor.numel() for tensor in made)
        found = multiply_adds(module, (args, named), output)
        if found is None or seen.layer_macs is None:
            seen.layer_macs = None
        else:
            seen.layer_macs += found

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.running and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            self._saved.setdefault(storage._cdata, (storage, self.running[-1]))
        # Detached: a node that saves what it made itself would keep itself alive.
        return tensor.detach()


_SAMPLES = 2
_VALUE_BYTES = 4
_MB = 2**20

MakeOptimizer = Callable[[list[nn.Parameter]], optim.Optimizer]


def count_network(
    model: nn.Module, sample_shape: Sequence[int], name: str, tokens: int | None = None
) -> NetworkCounts:
    """Return the counts of a network for samples of a shape, or of `tokens` in the vocabulary.

    `name` is the model's name for messages.
    """
    watch = ForwardWatch(model)

    def samples() -> torch.Tensor:
        # Not constant: a network that divides by a deviation would fail.
        random = torch.Generator().manual_seed(0)
        if tokens is not None:
            return torch.randint(1, tokens, (_SAMPLES, *sample_shape), generator=random)
        return torch.rand(_SAMPLES, *sample_shape, generator=random)

    reached = _reached_by_gradients(_call(watch, samples, sample_shape, name))
    parameters = list(model.parameters())
    values = sum(each.numel() for each in parameters)
    layers = list(_layers(watch))
    input_mb = prod(sample_shape) * _VALUE_BYTES / _MB
    forward_backward_mb = 2 * _VALUE_BYTES * _values_of_torchsummary(watch) / _MB
    parameters_mb = values * _VALUE_BYTES / _MB
    return {
        "parameters": values,
        "trainable_parameters": sum(each.numel() for each in parameters if each.requires_grad),
        "gradients": sum(each.numel() for each in parameters if id(each) in reached),
        "convolutions": sum(isinstance(module, _ConvNd) for module in model.modules()),
        "last_layer": watch.last_layer.name if watch.last_layer else None,
        "last_layer_input": _without_batch(watch.last_layer_input),
        "macs": sum(layer["macs"] or 0 for layer in layers),
        "kept_bytes": sum(layer["kept_bytes"] for layer in layers),
        "input_mb": input_mb,
        "forward_backward_mb": forward_backward_mb,
        "parameters_mb": parameters_mb,
        "total_mb": input_mb + forward_backward_mb + parameters_mb,
        "layers": layers,
        "not_counted": list(_not_counted(watch, reached)),
    }


def optimizer_state(make: MakeOptimizer, gradients: int) -> OptimizerCounts:
    """Return the state of an optimiser, measured with a small parameter and scaled up."""
    values = measure_optimizer(make).state
    return {
        "values_per_parameter": int(values) if float(values).is_integer() else values,
        "bytes": round(values * gradients * _VALUE_BYTES),
    }


def _call(
    watch: ForwardWatch,
    make_samples: Callable[[], torch.Tensor],
    sample_shape: Sequence[int],
    name: str,
) -> Any:
    shape = "x".join(map(str, sample_shape))
    try:
        output = watch.call(make_samples)
    except (Exception, SystemExit) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise
        theirs = describe_user_error(error, name) if ":" in name else None
        reason = (theirs or f"{type(error).__name__}: {error}").strip().rstrip(".")
        where = f" in {watch.running[-1].label}" if watch.running else ""
        raise RequestError(
            f"model {name} fails on an input of {shape}{where}: {reason}. "
            "Give the shape of one sample with --input."
        ) from error
    if next(tensors_in(output), None) is None:
        raise RequestError(
            f"model {name} returns {type(output).__name__} for an input of {shape}; wanted a "
            "tensor or tensors in a list, a mapping or a dataclass."
        )
    return output


def _layers(watch: ForwardWatch) -> Iterator[LayerCounts]:
    """Yield the modules that were called or have parameters; a shared parameter counts once."""
    counted: set[int] = set()
    for module, seen in watch.seen.items():
        own = [each for each in module.parameters(recurse=False) if id(each) not in counted]
        counted.update(map(id, own))
        if seen.calls or own:
            yield {
                "name": seen.name,
                "kind": type(module).__name__,
                "calls": seen.calls,
                "output_shape": _without_batch(seen.output),
                "parameters": sum(each.numel() for each in own),
                "macs": None if seen.macs is None else seen.macs // _SAMPLES,
                "kept_bytes": seen.kept_bytes // _SAMPLES,
            }


def _without_batch(shape: torch.Size | None) -> list[int] | None:
    """Remove the batch dimension, if the first dimension is one."""
    if shape is None:
        return None
    return list(shape[1:] if shape and shape[0] == _SAMPLES else shape)


def _values_of_torchsummary(watch: ForwardWatch) -> int:
    total = 0
    for module, seen in watch.seen.items():
        if next(module.children(), None) is None:
            counts = next(module.parameters(), None) is not None
        else:
            holds = isinstance(module, nn.Sequential | nn.ModuleList)
            counts = not holds and module is not watch.model
        total += seen.values_made if counts else 0
    return total // _SAMPLES


def _reached_by_gradients(output: Any) -> set[int]:
    """Return the ids of the tensors that a backward pass would give gradients."""
    reached: set[int] = set()
    known: set[Any] = set()
    ahead: list[Any] = [tensor.grad_fn for tensor in tensors_in(output)]
    while ahead:
        node = ahead.pop()
        if node is None or node in known:
            continue
        known.add(node)
        ahead += [before for before, _ in node.next_functions]
        if hasattr(node, "variable"):  # the node that accumulates the gradients of a leaf
            reached.add(id(node.variable))
    return reached


def _not_counted(watch: ForwardWatch, reached: set[int]) -> Iterator[str]:
    for module, seen in watch.seen.items():
        if seen.macs is None:
            unknown = first_names(sorted(seen.uncounted))
            yield f"multiply-adds of {seen.label}: unknown for {unknown}"
        if seen.convolves and not isinstance(module, _ConvNd):
            yield f"{seen.label} calls a convolution as a function, which the total excludes"
        if isinstance(module, torch.jit.ScriptModule):
            yield f"{seen.label} is scripted: its operations count for the module that calls it"
    for module in dict.fromkeys(_never_called(watch, watch.model)):
        values = sum(each.numel() for each in module.parameters())
        if values:  # a dropout that the network calls as a function is not worth a line
            yield f"{watch.seen[module].label} was never called; it has {values:,} parameters"
    without = {
        name: each.numel()
        for name, each in watch.model.named_parameters()
        if each.requires_grad and id(each) not in reached
    }
    if without:
        yield (
            f"gradients of {sum(without.values()):,} trainable parameters: "
            f"the output does not depend on {first_names(without)}"
        )


def _never_called(watch: ForwardWatch, module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules that were never called, nor any part of them."""
    if isinstance(module, nn.MultiheadAttention):
        return  # it uses the weights of its children without calling them
    for child in module.children():
        called = any(watch.seen[below].calls for below in child.modules())
        if called or isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _never_called(watch, child)
        elif not isinstance(child, nn.ParameterList | nn.ParameterDict | torch.jit.ScriptModule):
            yield child
