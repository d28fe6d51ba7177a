"""What a team of two processes does to a network, with both of them in this one machine's gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from stepscope_command import ENVIRONMENT
from torch import nn

from stepscope.data import dataset_registry
from stepscope.memory_forecast.fit_check import check_fit
from stepscope.settings import RunSpec
from stepscope.train.distributed import take_probe_step
from stepscope.train.training_setup import build_model

# Two steps of a network with batch norm and a layer that takes no part; each rank has its own data.
TWO_STEPS = """
import json, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from stepscope.errors import RequestError
from stepscope.train.distributed import Ranks

rank, meet = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
team = Ranks()
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
network.idle = nn.Linear(2, 2)
network.forward = lambda x: network[1](network[0](x))
wrapped = team.sum_gradients(network, lambda: None, has_unused=True)
torch.manual_seed(rank)
ahead, until = Path(meet + " ahead"), time.monotonic() + 30
while rank == 0 and not ahead.exists() and time.monotonic() < until:
    time.sleep(0.01)
is_ahead = ahead.exists()
for _ in range(2):
    out = wrapped(torch.randn(8, 4))
    ahead.touch()
    out.square().sum().backward()
own = network[1].running_mean.tolist()
team.share_buffers(network)
try:
    team.require_alike({"training samples": 320 + rank})
except RequestError as refusal:
    said = str(refusal)
print(json.dumps({
    "idle": network.idle.weight.grad is None,
    "gradient": network[0].weight.grad.tolist(),
    "own": own, "shared": network[1].running_mean.tolist(), "refused": said,
    "other_is_ahead": is_ahead,
}))
dist.barrier()
"""


def said_by_ranks(world: int, code: str, *arguments: object) -> list[str]:
    """Run code once for each rank, with the rank as its first argument; return what they print."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        for rank in range(world)
    ]
    return [process.communicate(timeout=120)[0].strip() for process in started]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    meet = tmp_path_factory.mktemp("meet") / "store"
    return [json.loads(said) for said in said_by_ranks(2, TWO_STEPS, meet)]


def test_a_parameter_without_gradient_does_not_end_the_second_step(
    ranks: list[dict[str, object]],
) -> None:
    assert [rank["idle"] for rank in ranks] == [True, True]
    assert ranks[0]["gradient"] == ranks[1]["gradient"]


def test_running_statistics_are_each_rank_s_own_until_they_are_shared(
    ranks: list[dict[str, object]],
) -> None:
    first, second = ranks
    assert first["own"] != second["own"]
    assert first["own"] == first["shared"] == second["shared"]


def test_a_forward_pass_does_not_wait_for_rank_0(ranks: list[dict[str, object]]) -> None:
    assert ranks[0]["other_is_ahead"], "rank 1 was through before rank 0 began"


def test_ranks_that_found_different_data_are_refused(ranks: list[dict[str, object]]) -> None:
    for rank in ranks:
        assert "training samples is 321 for rank 1 and 320 for rank 0" in str(rank["refused"])


@pytest.mark.parametrize(("processes", "share"), [(1, 2**30), (2, 2**29)])
def test_processes_of_one_machine_share_its_memory(processes: int, share: int) -> None:
    spec = RunSpec(memory_limit=2**30, device="cpu", memory_format="contiguous")
    told = check_fit(spec, build_model(spec), None, processes)
    assert told.bill is not None, told.reason
    limit = told.bill.limits["host"]
    assert limit.bytes == share
    assert ("shared by 2 processes" in limit.of) == (processes == 2)


class Idle(nn.Module):
    """A network with a layer that takes no part, dropout, and statistics that a step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10), nn.BatchNorm1d(10))
        self.idle = nn.Linear(2, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.used(images), training=self.training)


def test_parameters_that_take_no_part_are_named_and_nothing_changes() -> None:
    network, spec, dataset = Idle(), RunSpec(device="cpu"), dataset_registry.find("shapes")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    chance = torch.get_rng_state()
    assert take_probe_step(spec, network, dataset) == ["idle.weight", "idle.bias"]
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(parameter.grad is None for parameter in network.parameters())
    assert take_probe_step(spec, network.used, dataset) == []


# Eight steps of LeNet, once with the network wrapped anew before the fifth, as when a run goes on.
EIGHT_STEPS = """
import hashlib, sys
import torch, torch.distributed as dist, torch.nn.functional as F
from stepscope.data import dataset_registry
from stepscope.models import registry
from stepscope.settings.load_settings import validate
from stepscope.train.distributed import Ranks, take_probe_step

rank, meet, settled = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "settled"
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=3)
group, spec = Ranks(), validate({"data": "shapes", "device": "cpu"})

def trained(goes_on):
    torch.manual_seed(0)
    model = registry.build("lenet", classes=10, norm=None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def begin():
        network = group.sum_gradients(model, lambda: None)
        if settled:
            take_probe_step(spec, network, dataset_registry.find("shapes"))
        return network

    network = begin()
    for step in range(8):
        if goes_on and step == 4:
            network = begin()
        torch.manual_seed(3 * step + rank)
        loss = F.cross_entropy(network(torch.randn(4, 3, 32, 32)), torch.arange(4))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()

print(trained(goes_on=False) == trained(goes_on=True))
dist.barrier()
"""


@pytest.mark.long
@pytest.mark.parametrize("order", ["settled", "as torch has it"])
def test_a_run_that_goes_on_adds_up_as_one_that_was_never_stopped(
    tmp_path: Path, order: str
) -> None:
    said = said_by_ranks(3, EIGHT_STEPS, tmp_path / "store", order)
    # The second case says why there is such a step: without it the last bits are others.
    assert said == [str(order == "settled")] * 3
