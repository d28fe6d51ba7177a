"""The training of hf_trainer.py with timers in the methods that one may override."""

import time

import hf_trainer
from timers import end_step, row, tell, timed
from transformers import Trainer, TrainerCallback


class OptimizerTimer(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.start = time.perf_counter()

    def on_optimizer_step(self, args, state, control, **kwargs):
        row["optimizer"] += time.perf_counter() - self.start
        end_step()


class TimedTrainer(Trainer):
    def __init__(self, model, **options):
        model.zero_grad = timed("optimizer")(model.zero_grad)
        super().__init__(model, callbacks=[OptimizerTimer()], **options)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        fetch = timed("data")(epoch_iterator.__next__)
        return super().get_batch_samples(iter(fetch, None), num_batches, device)

    def _prepare_inputs(self, inputs):
        if not self.model.training:
            return super()._prepare_inputs(inputs)
        with timed("transfer"):
            return super()._prepare_inputs(inputs)

    def compute_loss(self, model, *args, **kwargs):
        self.forward_start = time.perf_counter()
        return super().compute_loss(model, *args, **kwargs)

    def backward(self, loss, **kwargs):
        row["forward"] += time.perf_counter() - self.forward_start
        with timed("backward"):
            self.accelerator_backward(loss, **kwargs)

    def train(self, *args, **kwargs):
        self.accelerator_backward = self.accelerator.backward
        self.accelerator.backward = self.backward
        return super().train(*args, **kwargs)


if __name__ == "__main__":
    hf_trainer.main(TimedTrainer)
    tell()
