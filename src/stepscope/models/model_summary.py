"""What is in the network? Its layers, counted while two samples go through it once.

The forward pass is a real one, in training mode and on the CPU. It takes two samples, since a batch
norm may refuse to train on one. Figures are for one sample, half of what was seen; what does not
grow with the batch, such as the means of a batch norm, is halved with the rest.

A layer's figures are its own, without those of its children, so that every column adds up.

- `macs`: multiply-adds of the forward pass, from the shapes of each call (`models.multiply_adds`).
  Where a module of another class calls functions, from the operations that torch then ran.
- `kept_bytes`: what autograd really saved for the backward pass. Every block of memory counts once,
  for the layer that saved it first; parameters and buffers are left out, the input is in.
- `forward_backward_mb`: torchsummary's figure, which people publish. It is 2 x 4 bytes x the values
  that come out of every leaf with parameters of its own and out of every block. A block is a
  composite module that is no `nn.Sequential` or `nn.ModuleList` and not the network itself.
  Activations, pools and identities are modules in our zoo, where the published networks call
  functions that torchsummary cannot see; they have no parameters and do not count.

Every `_mb` is in MiB (2**20 bytes), with 4 bytes a value and a batch of one.

Blind spot. What a network keeps by itself is not seen, such as what a `torch.autograd.Function`
puts on its context without saving it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
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
    multiply_adds,
    multiply_adds_of_operation,
    tensors_in,
)
from stepscope.models.step_tensors import weigh_optimizer
from stepscope.models.user_model import describe_their_failure
from stepscope.records.types import OptimizerCounts

# --- Let a network run as it was written, whatever of it is compiled


def eagerly() -> contextlib.AbstractContextManager[object]:
    """Return a context in which nothing is compiled, or remembered as not to be compiled."""
    if hasattr(torch.compiler, "set_stance"):  # from torch 2.6 on
        stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
        return stance
    return contextlib.nullcontext()


# --- One forward pass, watched: which module is running, what it multiplies, makes and keeps


@dataclass(slots=True, eq=False)
class Seen:
    """What was seen of one module in its own calls, over the whole batch."""

    name: str
    module: nn.Module
    calls: int = 0
    output: tuple[int, ...] | None = None
    values_made: int = 0
    kept_bytes: int = 0
    convolves: bool = False
    uncounted: set[str] = field(default_factory=set)
    layer_macs: int | None = 0
    operation_macs: int = 0

    @property
    def macs(self) -> int | None:
        """Count by what is known of the layer, else by its operations; None where both fail."""
        if self.layer_macs is not None:
            return self.layer_macs
        return None if self.uncounted else self.operation_macs

    @property
    def label(self) -> str:
        """Name the module as a sentence does."""
        return f"{self.name} ({type(self.module).__name__})"


class ForwardWatch(TorchDispatchMode):
    """Watch a network while it is called once; afterwards no hook is left in it.

    `running` are the modules whose calls are under way, the innermost last. After a call that
    failed, the last of them is where it failed.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        self.seen = {
            module: Seen(_shown(name, module), module) for name, module in model.named_modules()
        }
        self.last_layer: Seen | None = None
        self.last_layer_input: tuple[int, ...] | None = None
        self.running: list[Seen] = []
        # Kept alive, so that no address is given out twice.
        self._saved: dict[int, tuple[torch.UntypedStorage, Seen]] = {}

    def call(self, make_batch: Callable[[], torch.Tensor]) -> Any:
        """Call the network in training mode, and return what it returns."""
        handles: list[Any] = []
        training = {module: module.training for module in self.seen}
        try:
            for module in self.seen:
                if not isinstance(module, torch.jit.ScriptModule):  # it refuses hooks
                    handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
                    handles.append(module.register_forward_hook(self._leave, with_kwargs=True))
            self.model.train()
            saving = saved_tensors_hooks(self._save, _give_back)
            with eagerly(), torch.enable_grad(), saving, self:
                output = self.model(make_batch())
        finally:
            for handle in handles:
                handle.remove()
            for module, was_training in training.items():
                module.training = was_training
        self._add_up_saved()
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
            self.last_layer, self.last_layer_input = seen, tuple(taken.shape)

    def _leave(
        self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        seen = self.seen[module]
        while self.running and self.running.pop() is not seen:
            pass  # a call inside it failed, and the network went on without it
        made = list(tensors_in(output))
        seen.calls += 1
        seen.output = tuple(made[0].shape) if made else seen.output
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

    def _add_up_saved(self) -> None:
        # Only now, since a lazy layer had no parameters before.
        for own in (*self.model.parameters(), *self.model.buffers()):
            if own.layout == torch.strided:
                self._saved.pop(own.untyped_storage()._cdata, None)
        for storage, seen in self._saved.values():
            seen.kept_bytes += storage.nbytes()
        self._saved.clear()


def _give_back(saved: torch.Tensor) -> torch.Tensor:
    return saved


def _shown(name: str, module: nn.Module) -> str:
    """Name the network itself by its class, and what was compiled as it was called before."""
    plain = ".".join(part for part in name.split(".") if part != "_orig_mod")
    return plain or f"({type(module).__name__})"


_SAMPLES = 2
_VALUE_BYTES = 4
_MB = 2**20
_MOST_NAMES = 5  # in one sentence

MakeOptimizer = Callable[[list[nn.Parameter]], optim.Optimizer]


@dataclass(frozen=True)
class LayerSummary:
    """One module. Unknown multiply-adds are None; so is the shape of one that was never called."""

    name: str
    kind: str
    calls: int
    output_shape: tuple[int, ...] | None
    parameters: int
    macs: int | None
    kept_bytes: int


@dataclass(frozen=True)
class NetworkSummary:
    """A network and one sample. `macs` leaves out what is unknown; `not_counted` tells of it."""

    parameters: int
    trainable_parameters: int
    gradients: int
    convolutions: int
    last_layer: str | None
    last_layer_input: tuple[int, ...] | None
    macs: int
    kept_bytes: int
    input_mb: float
    forward_backward_mb: float
    parameters_mb: float
    total_mb: float
    layers: tuple[LayerSummary, ...]
    not_counted: tuple[str, ...]


def count_network(
    model: nn.Module, sample_shape: Sequence[int], name: str, tokens: int | None = None
) -> NetworkSummary:
    """Send two random samples through a network in training mode and count what is in it.

    `name` is the network's in messages, and tells whose code it is that fails. A network of texts
    is given tokens, of which it can tell so many apart.

    Raises:
        RequestError: the network fails on samples of this shape, or gives no tensor.
    """
    watch = ForwardWatch(model)
    output = _call(watch, partial(_random_samples, sample_shape, tokens), sample_shape, name)
    reached = _reached_by_gradients(output)
    parameters = list(model.parameters())
    values = sum(each.numel() for each in parameters)
    layers = tuple(_layers(watch))
    input_mb = prod(sample_shape) * _VALUE_BYTES / _MB
    forward_backward_mb = 2 * _VALUE_BYTES * _values_of_torchsummary(watch) / _MB
    parameters_mb = values * _VALUE_BYTES / _MB
    return NetworkSummary(
        parameters=values,
        trainable_parameters=sum(each.numel() for each in parameters if each.requires_grad),
        gradients=sum(each.numel() for each in parameters if id(each) in reached),
        convolutions=sum(isinstance(module, _ConvNd) for module in model.modules()),
        last_layer=watch.last_layer.name if watch.last_layer else None,
        last_layer_input=_without_batch(watch.last_layer_input),
        macs=sum(layer.macs or 0 for layer in layers),
        kept_bytes=sum(layer.kept_bytes for layer in layers),
        input_mb=input_mb,
        forward_backward_mb=forward_backward_mb,
        parameters_mb=parameters_mb,
        total_mb=input_mb + forward_backward_mb + parameters_mb,
        layers=layers,
        not_counted=tuple(_not_counted(watch, reached)),
    )


def optimizer_state(make: MakeOptimizer, gradients: int) -> OptimizerCounts:
    """Return the state of an optimizer, measured with a small parameter and scaled up."""
    values = weigh_optimizer(make).state
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
        theirs = describe_their_failure(error, name) if ":" in name else None
        reason = (theirs or f"{type(error).__name__}: {error}").strip().rstrip(".")
        where = f" in {watch.running[-1].label}" if watch.running else ""
        raise RequestError(
            f"model {name} fails on an input of {shape}{where}: {reason}. "
            "Give the shape of one sample that it takes, with --input."
        ) from error
    if next(tensors_in(output), None) is None:
        raise RequestError(
            f"model {name} gives {type(output).__name__} for an input of {shape}, wanted a tensor, "
            "or tensors in a list, a mapping or a dataclass."
        )
    return output


def _random_samples(sample_shape: Sequence[int], tokens: int | None) -> torch.Tensor:
    # Not blank: a network that divides by a deviation or inverts a matrix would fail on those.
    random = torch.Generator().manual_seed(0)
    if tokens is not None:
        return torch.randint(1, tokens, (_SAMPLES, *sample_shape), generator=random)
    return torch.rand(_SAMPLES, *sample_shape, generator=random)


def _layers(watch: ForwardWatch) -> Iterator[LayerSummary]:
    """Give every module that was called or has parameters; a shared parameter counts once."""
    counted: set[int] = set()
    for module, seen in watch.seen.items():
        own = [each for each in module.parameters(recurse=False) if id(each) not in counted]
        counted.update(map(id, own))
        if seen.calls or own:
            yield LayerSummary(
                name=seen.name,
                kind=type(module).__name__,
                calls=seen.calls,
                output_shape=_without_batch(seen.output),
                parameters=sum(each.numel() for each in own),
                macs=None if seen.macs is None else seen.macs // _SAMPLES,
                kept_bytes=seen.kept_bytes // _SAMPLES,
            )


def _without_batch(shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Leave the samples out; a first dimension that is something else stays as it is."""
    return shape[1:] if shape and shape[0] == _SAMPLES else shape


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
    """Find the tensors that a backward pass from the output would give gradients, by their ids."""
    reached: set[int] = set()
    known: set[Any] = set()
    ahead: list[Any] = [tensor.grad_fn for tensor in tensors_in(output)]
    while ahead:
        node = ahead.pop()
        if node is None or node in known:
            continue
        known.add(node)
        ahead += [before for before, _ in node.next_functions]
        if hasattr(node, "variable"):  # the node that adds up the gradients of a leaf
            reached.add(id(node.variable))
    return reached


def _not_counted(watch: ForwardWatch, reached: set[int]) -> Iterator[str]:
    for module, seen in watch.seen.items():
        if seen.macs is None:
            yield f"multiply-adds of {seen.label}: unknown for {_listed(sorted(seen.uncounted))}"
        if seen.convolves and not isinstance(module, _ConvNd):
            yield f"{seen.label} convolves by a function, which is not among the convolutions"
        if isinstance(module, torch.jit.ScriptModule):
            yield f"{seen.label} is scripted: what it does counts for the module that calls it"
    for module in dict.fromkeys(_never_called(watch, watch.model)):
        values = sum(each.numel() for each in module.parameters())
        if values:  # a dropout that the network does by a function is no loss
            yield f"{watch.seen[module].label} was never called; it has {values:,} parameters"
    without = {
        name: each.numel()
        for name, each in watch.model.named_parameters()
        if each.requires_grad and id(each) not in reached
    }
    if without:
        yield (
            f"gradients of {sum(without.values()):,} trainable parameters: "
            f"the output does not depend on {_listed(without)}"
        )


def _never_called(watch: ForwardWatch, module: nn.Module) -> Iterator[nn.Module]:
    """Find the topmost modules of which nothing was called."""
    if isinstance(module, nn.MultiheadAttention):
        return  # it takes the weights of its children and never calls them
    for child in module.children():
        called = any(watch.seen[below].calls for below in child.modules())
        if called or isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _never_called(watch, child)
        elif not isinstance(child, nn.ParameterList | nn.ParameterDict | torch.jit.ScriptModule):
            yield child


def _listed(names: Collection[str]) -> str:
    first, more = list(names)[:_MOST_NAMES], len(names) - _MOST_NAMES
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")
