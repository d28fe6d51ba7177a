"""The training of lightning_trainer.py with timers in the methods that one may override."""

import time

import lightning_trainer
from timers import end_step, fetched, row, tell, timed


class TimedLoader:
    """The training loader, with the time that is spent waiting for its batches."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        return fetched(self.loader)


class TimedClassifier(lightning_trainer.LitClassifier):
    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        start = time.perf_counter()
        batch = super().transfer_batch_to_device(batch, device, dataloader_idx)
        if self.trainer.training:
            row["transfer"] += time.perf_counter() - start
        return batch

    def training_step(self, batch, batch_idx):
        self.forward_start = time.perf_counter()
        return super().training_step(batch, batch_idx)

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        # Lightning does this between training_step and backward.
        start = time.perf_counter()
        super().optimizer_zero_grad(epoch, batch_idx, optimizer)
        self.zero_grad_s = time.perf_counter() - start
        row["optimizer"] += self.zero_grad_s

    def backward(self, loss):
        row["forward"] += time.perf_counter() - self.forward_start - self.zero_grad_s
        with timed("backward"):
            super().backward(loss)

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        # The closure is training_step, zero_grad and backward, which have timers of their own.
        in_closure = 0.0

        def closure():
            nonlocal in_closure
            start = time.perf_counter()
            loss = optimizer_closure()
            in_closure += time.perf_counter() - start
            return loss

        with timed("optimizer"):
            super().optimizer_step(epoch, batch_idx, optimizer, closure)
        row["optimizer"] -= in_closure
        end_step()


if __name__ == "__main__":
    lightning_trainer.main(TimedClassifier, TimedLoader)
    tell()
