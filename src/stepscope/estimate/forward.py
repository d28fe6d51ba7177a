"""One forward pass, watched: which module is running, what it multiplies, makes and keeps.

Everything is noted with the module whose call is the innermost one at that moment, so that nothing
is noted twice. Hooks say when a call begins and ends, a dispatch mode which operations run, and
autograd's own hooks what it saves for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from stepscope.estimate.eager import eagerly
from stepscope.estimate.operations import convolves, multiply_adds_of_operation
from stepscope.models.multiply_adds import multiply_adds, tensors_in


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
