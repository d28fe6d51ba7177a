"""Three processes add gradients up in one order, before a stop and after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from stepscope_command import ENVIRONMENT

# Eight steps of LeNet, once with the network wrapped anew before the fifth, as when a run goes on.
EIGHT_STEPS = """
import hashlib, sys
from pathlib import Path
import torch, torch.distributed as dist, torch.nn.functional as F
from stepscope.models import registry
from stepscope.settings.load_settings import validate
from stepscope.train.distributed import Ranks
from stepscope.train.distributed import fix_summation_order

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
            fix_summation_order(spec, network, Path("data"), group.world_size)
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
    command = [sys.executable, "-c", EIGHT_STEPS]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store"), order],
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        for rank in range(3)
    ]
    said = [rank.communicate(timeout=120)[0].strip() for rank in ranks]
    # The second case says why there is such a step: without it the last bits are others.
    assert said == [str(order == "settled")] * 3
