"""The training of hf_trainer.py with timers in the methods that one may override."""

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from hf_trainer import Sentences, make_arguments, make_model
from transformers import Trainer, TrainerCallback, set_seed

timers = dict.fromkeys(["data", "transfer", "forward", "backward", "optimizer"], 0.0)


def timed(phase, function):
    """Give a function that does the same, and whose time is added to the phase."""

    def call(*args, **kwargs):
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            timers[phase] += time.perf_counter() - start

    return call


class OptimizerTimer(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.start = time.perf_counter()

    def on_optimizer_step(self, args, state, control, **kwargs):
        timers["optimizer"] += time.perf_counter() - self.start


class TimedTrainer(Trainer):
    def get_batch_samples(self, epoch_iterator, num_batches, device):
        fetch = timed("data", epoch_iterator.__next__)
        return super().get_batch_samples(iter(fetch, None), num_batches, device)

    def _prepare_inputs(self, inputs):
        if not self.model.training:
            return super()._prepare_inputs(inputs)
        return timed("transfer", super()._prepare_inputs)(inputs)

    def compute_loss(self, model, *args, **kwargs):
        self.forward_start = time.perf_counter()
        return super().compute_loss(model, *args, **kwargs)

    def backward(self, loss, **kwargs):
        start = time.perf_counter()
        timers["forward"] += start - self.forward_start
        self.accelerator_backward(loss, **kwargs)
        timers["backward"] += time.perf_counter() - start

    def train(self, *args, **kwargs):
        self.accelerator_backward = self.accelerator.backward
        self.accelerator.backward = self.backward
        return super().train(*args, **kwargs)


def main():
    set_seed(0)
    model = make_model()
    model.zero_grad = timed("optimizer", model.zero_grad)
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = TimedTrainer(
            model=model,
            args=make_arguments(output_dir),
            train_dataset=Sentences(640),
            eval_dataset=Sentences(128),
            callbacks=[OptimizerTimer()],
        )
        result = trainer.train()

    print(f"training loss {result.training_loss:.4f}")
    print(f"updates={result.global_step}")
    print("timers=" + json.dumps({**timers, "steps": result.global_step}))


if __name__ == "__main__":
    main()
