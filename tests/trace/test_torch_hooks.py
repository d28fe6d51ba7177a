"""Hooks in this very process: they see everything, change nothing, and leave nothing behind."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import re
import threading
from typing import Any

import pytest
import torch
from installed_hooks import NAMES, data, details, events_of, kinds, model, watched
from torch import nn, optim
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import fetch as torch_fetch

from stepscope.meter.clock import now_ns
from stepscope.meter.step_rows import LoadTiming
from stepscope.trace import event_buffer as e
from stepscope.trace import torch_hooks
from stepscope.trace.allreduce_hooks import AllreduceWatch
from stepscope.trace.event_buffer import HookState


class OwnLoader(DataLoader):
    """A loader with a way of its own through the batches."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


PATCHED = [
    nn.Module,
    torch.Tensor,
    DataLoader,
    OwnLoader,
    torch_dataloader._BaseDataLoaderIter,
    torch_dataloader._SingleProcessDataLoaderIter,
    torch_dataloader._MultiProcessingDataLoaderIter,
    torch_fetch._MapDatasetFetcher,
    torch_fetch._IterableDatasetFetcher,
    optim.Optimizer,
    optim.SGD,
    optim.Adam,
    optim.LBFGS,
    torch.amp.GradScaler,
    torch.autograd,
    torch.distributed.Reducer,
    torch.utils.data,
    torch,
]


def state_of_torch() -> list[dict[str, Any]]:
    state = [dict(vars(owner)) for owner in PATCHED]
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        state.append(dict(getattr(torch_optimizer, name)))
    return state


def train(loader: Any, epochs: int = 2) -> list[Any]:
    """Everything that a person could see of a training."""
    net = model()
    optimizer = optim.Adam(net.parameters(), lr=0.05)
    random.seed(5)
    seen: list[Any] = []
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images.to("cpu")), labels)
            loss.backward()
            optimizer.step()
            seen.append((images.tolist(), labels.tolist(), loss.item()))
    weights = [weight.tolist() for weight in net.state_dict().values()]
    return [seen, weights, torch.get_rng_state().tolist(), random.getstate()]


def test_after_them_torch_is_what_it_was() -> None:
    for kind in (optim.SGD, optim.Adam, optim.LBFGS):
        kind(model().parameters(), lr=0.1)  # torch itself wraps a class's step at its first object
    before = state_of_torch()
    patches = torch_hooks.install(HookState(AllreduceWatch()))
    assert nn.Module.__call__ is not before[0]["__call__"]
    patches.undo()
    for owner, was, now in zip(PATCHED, before, state_of_torch(), strict=False):
        assert was.keys() == now.keys(), owner
        for name, value in was.items():
            assert now[name] is value, f"{owner}.{name}"
    assert state_of_torch()[-2:] == before[-2:]


def test_classes_made_while_they_are_on_work_after_them() -> None:
    class Later(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    class LaterStill(DataLoader):
        def __iter__(self) -> Any:
            yield from super().__iter__()

    with watched() as hooks:

        class Meanwhile(optim.SGD):
            def step(self, closure: Any = None) -> Any:
                return super().step(closure)

        def train_and_load() -> None:
            for kind in (Later, Meanwhile):
                net = model()
                optimizer = kind(net.parameters(), lr=0.1)
                net(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            assert list(LaterStill(data(), batch_size=6))

        train_and_load()
    assert hooks.steps == 2, "a step that calls its parent's is one update"
    recorded = len(events_of(hooks))
    train_and_load()
    assert len(events_of(hooks)) == recorded, "nothing is recorded any more"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
        pytest.param(
            {"num_workers": 1, "prefetch_factor": 4, "multiprocessing_context": "spawn"},
            marks=pytest.mark.long,
        ),
    ],
    ids=str,
)
def test_a_training_is_the_same_to_the_bit(options: dict[str, Any]) -> None:
    def loader() -> DataLoader[Any]:
        torch.manual_seed(1)
        return DataLoader(data(), batch_size=4, shuffle=True, **options)

    plain = train(loader())
    with watched() as hooks:
        under_hooks = train(loader())
    assert under_hooks == plain
    assert kinds(hooks)["FETCHED"] == 6
    timings = [LoadTiming(*detail[1]) for detail in details(hooks, e.FETCHED)]
    workers = {timing.worker for timing in timings}
    assert workers == set(range(options["num_workers"])) if options else {-1}
    assert all(timing.wall_ns > 0 for timing in timings)


def test_what_is_recorded_is_in_order_and_in_pairs() -> None:
    with watched() as hooks:
        train(DataLoader(data(), batch_size=4), epochs=1)
    times = [time_ns for _, time_ns, *_ in events_of(hooks)]
    assert times == sorted(times)
    names = [NAMES[kind] for kind, *_ in events_of(hooks)]
    step = "FETCH FETCHED ZERO ZEROED CALL CALLED BACKWARD BACKWARD_DONE STEP STEPPED"
    # nobody is surprised by an optimiser, a loader that is iterated over, three steps, and the end
    assert names == ["MADE", "ITERATE", "ITERATED", *(step.split() * 3), "FETCH", "EXHAUSTED"]


def test_between_two_steps_nobody_is_called_before_it_is_time() -> None:
    def called_after(from_ns: int, from_steps: int) -> list[int]:
        called: list[int] = []
        with watched() as hooks:
            hooks.at_boundary = lambda: called.append(hooks.steps)
            hooks.boundary_from_ns, hooks.boundary_from_steps = from_ns, from_steps
            train(DataLoader(data(), batch_size=4), epochs=1)
        return called

    assert called_after(now_ns() + 10**15, 2) == [2, 3]
    assert called_after(now_ns(), 10**6) == [1, 2, 3]


def test_models_loaders_and_optimisers_are_copied_and_saved_as_before() -> None:
    with watched():
        net = model()
        optimizer = optim.Adam(net.parameters())
        loader = DataLoader(data(), batch_size=4, num_workers=1)
        for images, labels in loader:
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
        file = io.BytesIO()
        torch.save(net, file)
        saved = pickle.dumps((net, optimizer, loader))
        twin = copy.deepcopy(net)
        assert vars(twin).keys() == vars(net).keys()
        copy.deepcopy((optimizer, loader))
    assert b"stepscope" not in file.getvalue()
    assert b"stepscope" not in saved
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert again(torch.ones(1, 4)).shape == (1, 3)
    assert len(pickle.loads(saved)) == 3


def test_checkpoints_are_timed_on_the_traced_thread_only() -> None:
    with watched() as hooks:
        torch.save({"weights": torch.ones(3)}, io.BytesIO())
        other = threading.Thread(target=torch.save, args=([1], io.BytesIO()))
        other.start()
        other.join()
        with pytest.raises(RuntimeError, match="does not exist"):
            torch.save([1], "/nowhere/at/all.pt")
    assert len(hooks.saves) == 2
    assert all(begin <= end for begin, end in hooks.saves)


def test_the_function_that_saves_is_pickled_by_its_name() -> None:
    plain = torch.save
    with watched():
        assert torch.save is torch.serialization.save is not plain
        assert pickle.loads(pickle.dumps(torch.save)) is torch.save
        assert torch.save.__doc__ == plain.__doc__
    assert torch.save is torch.serialization.save is plain


def test_other_threads_are_let_alone() -> None:
    seen: list[Any] = []
    with watched() as hooks:
        other = threading.Thread(target=lambda: seen.append(train(DataLoader(data(), 4))))
        other.start()
        other.join()
        assert len(seen) == 1
        assert events_of(hooks) == []
        assert not hooks.busy
        train(DataLoader(data(), batch_size=4), epochs=1)
    assert kinds(hooks)["STEPPED"] == 3


def test_a_thread_that_only_hands_numbers_to_workers_is_no_other_thread() -> None:
    with watched() as hooks:
        hooks.has_threads = False  # whatever threads other tests have left
        train(DataLoader(data(), batch_size=4, num_workers=1), epochs=1)
        assert not hooks.has_threads
        threading.Thread(target=int).start()
        assert hooks.has_threads


def test_inside_a_call_nothing_else_is_recorded() -> None:
    with watched() as hooks:
        model()(torch.ones(2, 4))
    assert [NAMES[kind] for kind, *_ in events_of(hooks)] == ["CALL", "CALLED"]
    [call] = [e.Call(*detail) for detail in details(hooks, e.CALL)]
    assert (call.grad, call.training, call.samples) == (True, True, 2)


def test_a_loss_that_is_a_module_is_part_of_the_forward_pass_that_is_open() -> None:
    net, criterion, labels = model(), nn.CrossEntropyLoss(), torch.tensor([0, 1])
    with watched() as hooks:
        outputs = net(torch.ones(2, 4))
        with torch.no_grad():
            net(torch.ones(2, 4))  # a teacher changes nothing of that
        loss = criterion(outputs, labels)
        loss.backward()
        criterion(outputs, labels)  # a metric, perhaps: nothing is open
    assert [NAMES[kind] for kind, *_ in events_of(hooks)] == [
        *("CALL", "CALLED") * 2,
        *("BACKWARD", "BACKWARD_DONE"),
        *("CALL", "CALLED"),
    ]
    assert {id(net), id(criterion)} == hooks.roots.keys(), "its layers are looked at all the same"


def test_a_loss_tells_the_samples_that_its_model_was_not_asked_with() -> None:
    class Words(nn.Linear):
        def forward(self, words: list[list[float]]) -> torch.Tensor:
            return super().forward(torch.tensor(words))

    net, criterion = Words(3, 2), nn.CrossEntropyLoss()
    with watched() as hooks:
        criterion(net([[1.0, 2.0, 3.0]] * 4), torch.zeros(4, dtype=torch.long)).backward()
    calls = [e.Call(*detail).samples for detail in details(hooks, e.CALL)]
    assert calls == [None, 4]


def test_a_module_that_lists_its_weights_is_met_like_others() -> None:
    class Lists(nn.Linear):
        def parameters(self, recurse: bool = True) -> Any:
            return list(super().parameters(recurse))

    with watched() as hooks:
        Lists(4, 2)(torch.ones(2, 4))
    assert hooks.device == "cpu"


@pytest.mark.parametrize("between", ["fetch", "update"])
def test_a_module_without_weights_begins_a_forward_pass_where_none_is_open(between: str) -> None:
    net, flatten = model(), nn.Flatten()
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    with watched() as hooks:
        net(torch.ones(2, 4))
        if between == "fetch":
            next(iter(DataLoader(data(), batch_size=4)))
        else:
            optimizer.step()
        flatten(torch.ones(2, 2, 2))
    assert kinds(hooks)["CALL"] == 2


def test_a_module_at_the_address_of_one_without_weights_is_not_taken_for_it() -> None:
    with watched() as hooks:
        net, loss = model(), nn.MSELoss()
        loss(torch.ones(2), torch.ones(2))
        assert hooks.weightless == {id(loss)}
        del loss
        assert not hooks.weightless
        assert not hooks.roots.keys() - {id(net)}


def test_an_error_in_a_forward_pass_leaves_them_ready() -> None:
    with watched() as hooks:
        with pytest.raises(RuntimeError):
            model()(torch.ones(2, 5))
        model()(torch.ones(2, 4))
    assert kinds(hooks) == {"CALL": 2, "CALLED": 2}


def test_a_module_whose_forward_pass_trains_is_a_loop_and_no_forward_pass() -> None:
    class Trainer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()
            self.optimizer = optim.SGD(self.net.parameters(), lr=0.1)

        def forward(self, loader: Any) -> None:
            for images, labels in loader:
                nn.functional.cross_entropy(self.net(images), labels).backward()
                self.optimizer.step()

    with watched() as hooks:
        trainer = Trainer()
        trainer(DataLoader(data(), batch_size=4))
        assert kinds(hooks)["FETCHED"] == 2, "from the first update on its loader is seen"
        hooks.buffer.fields.clear()
        trainer(DataLoader(data(), batch_size=4))
        assert not hooks.busy
    assert kinds(hooks)["FETCHED"] == kinds(hooks)["CALLED"] == kinds(hooks)["STEPPED"] == 3


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.inner(images) * 2


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_seen_as_a_whole(in_place: bool) -> None:
    with watched() as hooks:
        net = Wrapped()
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        if in_place:
            net.compile(backend="eager")
        compiled = net if in_place else torch.compile(net, backend="eager", fullgraph=True)
        for _ in range(2):
            compiled(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    torch._dynamo.reset()
    assert kinds(hooks)["CALL"] == kinds(hooks)["BACKWARD"] == kinds(hooks)["STEPPED"] == 2


def test_a_whole_compiled_step_runs_and_is_right() -> None:
    def losses() -> list[float]:
        net = nn.Linear(4, 3)
        nn.init.constant_(net.weight, 0.1)
        nn.init.zeros_(net.bias)

        @torch.compile(backend="eager")
        def forward_and_loss(images: torch.Tensor) -> torch.Tensor:
            return net(images.to("cpu")).pow(2).sum()

        optimizer = optim.SGD(net.parameters(), lr=0.01)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = forward_and_loss(torch.ones(2, 4))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    plain = losses()
    torch._dynamo.reset()
    with watched():
        assert losses() == plain
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*jit.*:FutureWarning")
def test_tracing_and_scripting_give_the_same_graphs() -> None:
    def graphs() -> list[str]:
        net = model().eval()
        images = torch.ones(2, 4)
        jitted = torch.jit.trace(net, images).graph, torch.jit.script(net).graph
        return [
            *(re.sub(r"___torch_mangle_\d+\.", "", str(graph)) for graph in jitted),
            torch.fx.symbolic_trace(net).code,
            str(torch.export.export(net, (images,)).graph),
        ]

    plain = graphs()
    with watched():
        assert graphs() == plain


def test_functional_gradients_and_checkpoints_work() -> None:
    with watched() as hooks:
        net = model().eval()
        weights = {name: weight.detach() for name, weight in net.named_parameters()}

        def loss(weights: Any, image: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(net, weights, (image[None],)).sum()

        each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, torch.ones(3, 4))
        assert each["0.weight"].shape == (3, 8, 4)
        hooks.buffer.fields.clear()
        for reentrant in (False, True):
            image = torch.ones(2, 4, requires_grad=True)
            hidden = torch.utils.checkpoint.checkpoint(net, image, use_reentrant=reentrant)
            hidden.sum().backward()
    assert kinds(hooks)["BACKWARD"] == 2, "what is computed again belongs to the backward pass"
    assert kinds(hooks)["CALL"] == 2


def test_what_was_compiled_is_not_compiled_again_where_nothing_is_recorded() -> None:
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    with watched() as hooks:
        net = torch.compile(model(), backend=backend)
        for hooks.full in (True, False, True):
            net(torch.ones(2, 4)).sum().backward()
    assert len(compiled) == 1
    assert kinds(hooks)["CALL"] == 2
    assert not hooks.busy


def test_what_is_recorded_leaves_the_collector_no_tuples() -> None:
    with watched() as hooks:
        train(DataLoader(data(), batch_size=4), epochs=1)
    for _ in range(2):  # it lets go of tuples that hold only numbers, the inner ones first
        gc.collect()
    tuples = [
        each for each in hooks.buffer.fields if isinstance(each, tuple) and gc.is_tracked(each)
    ]
    assert not tuples
