"""What measuring costs: the loop of `stepscope run` against the same training without a meter.

LeNet, batch 8: the shortest step there is, under 3 ms, so any cost shows. The bare loop is the same
training without a clock: the same loader, moves, loss and hits; nothing timed, recorded or told.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from _alternate import alternate, report
from torch.utils.data import DataLoader

from stepscope.data.loaders.dataloader import Batch, make_loader
from stepscope.meter.clock import now_ns
from stepscope.meter.layer_timer import LayerWindow
from stepscope.meter.step_meter import StepMeter
from stepscope.meter.step_rows import EpochTiming
from stepscope.records import run_folder, schema
from stepscope.records.csv_log import CsvLog
from stepscope.settings.load_settings import validate
from stepscope.train.accuracy import AccuracyCounter
from stepscope.train.device import memory_format_of, resolve
from stepscope.train.loop import LoopHooks, train_epoch
from stepscope.train.profile_window import InsideView, ProfilePosition
from stepscope.train.recorder import Recorder, Tally
from stepscope.train.stop_request import StopRequest
from stepscope.train.training_setup import Job, build, build_model

STEPS = 50
ROUNDS = 600
MOST = 1.02


def bare_epoch(job: Job, loader: DataLoader[Batch]) -> None:
    layout, hits, loss_sum = memory_format_of(job.spec), AccuracyCounter(job.device), 0.0
    job.model.train()
    for images, labels in loader:
        images = images.to(job.device, memory_format=layout, non_blocking=True)
        labels = labels.to(job.device, non_blocking=True)
        outputs = job.model(images)
        loss = F.cross_entropy(outputs, labels)
        hits.add(outputs, labels)
        loss.backward()
        job.optimizer.step()
        job.optimizer.zero_grad()
        loss_sum += loss.item() * len(labels)
    hits.total()


def main() -> int:
    asked = {"samples": 8 * STEPS, "batch_size": 8, "epochs": 1, "device": "cpu"}
    spec = resolve(validate(asked))
    # one for both: where weights lie in memory alone can make 3 % difference
    job = build(spec, build_model(spec), Path("data"))
    settings = {"workers": 0, "prefetch": 2, "persistent_workers": False, "pin_memory": False}
    untimed = make_loader(job.train.dataset.dataset, job.train.order, **settings)
    with tempfile.TemporaryDirectory() as temporary:
        run = run_folder.create(Path(temporary), "bench", "run", {})
        logs = [CsvLog(run.path / name) for name in (schema.STEPS, schema.EPOCHS, schema.RECORDS)]
        nowhere = open(os.devnull, "w", buffering=1)  # noqa: SIM115, PTH123
        recorder = Recorder(
            logs[1], logs[2], lambda message: print(json.dumps(message), file=nowhere), job.stages
        )
        meter = StepMeter(logs[0], now_ns(), None, recorder.step, recorder.batch)
        inside = InsideView(ProfilePosition(), LayerWindow(()), meter)
        watch = LoopHooks(
            meter, recorder, StopRequest(), lambda: 0.0, lambda progress: None, inside
        )

        def measured_epoch() -> None:
            timing, tally, hits = EpochTiming(1), Tally(), AccuracyCounter(torch.device("cpu"))
            recorder.begin(1, 0, tally, hits)
            train_epoch(job, watch, timing, hits, 0, STEPS)
            hits.total()

        compared = alternate(measured_epoch, lambda: bare_epoch(job, untimed), ROUNDS)
        for log in logs:
            log.close()
    return report(
        "measured loop / bare loop, LeNet, batch 8",
        compared,
        f"at most {MOST}",
        compared.ratio <= MOST,
    )


if __name__ == "__main__":
    sys.exit(main())
