"""The training of lightning_trainer.py with timers in the methods that one may override."""

import json
import sys
import time
from pathlib import Path

import pytorch_lightning as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lightning_trainer import LitClassifier, make_loaders

timers = dict.fromkeys(["data", "transfer", "forward", "backward", "optimizer"], 0.0)


class TimedLoader:
    """The training loader, with the time that is spent waiting for its batches."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        batches = iter(self.loader)
        for _ in range(len(self.loader)):
            start = time.perf_counter()
            batch = next(batches)
            timers["data"] += time.perf_counter() - start
            yield batch


class TimedClassifier(LitClassifier):
    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        start = time.perf_counter()
        batch = super().transfer_batch_to_device(batch, device, dataloader_idx)
        if self.trainer.training:
            timers["transfer"] += time.perf_counter() - start
        return batch

    def training_step(self, batch, batch_idx):
        self.forward_start = time.perf_counter()
        return super().training_step(batch, batch_idx)

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        # Lightning does this between training_step and backward.
        start = time.perf_counter()
        super().optimizer_zero_grad(epoch, batch_idx, optimizer)
        self.zero_grad_s = time.perf_counter() - start
        timers["optimizer"] += self.zero_grad_s

    def backward(self, loss):
        start = time.perf_counter()
        timers["forward"] += start - self.forward_start - self.zero_grad_s
        super().backward(loss)
        timers["backward"] += time.perf_counter() - start

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        # The closure is training_step, zero_grad and backward, which have timers of their own.
        in_closure = 0.0

        def closure():
            nonlocal in_closure
            start = time.perf_counter()
            loss = optimizer_closure()
            in_closure += time.perf_counter() - start
            return loss

        start = time.perf_counter()
        super().optimizer_step(epoch, batch_idx, optimizer, closure)
        timers["optimizer"] += time.perf_counter() - start - in_closure


def main():
    pl.seed_everything(7, verbose=False)
    train_loader, val_loader = make_loaders()
    model = TimedClassifier()
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, TimedLoader(train_loader), val_loader)

    metrics = trainer.callback_metrics
    print(f"train loss {metrics['train_loss']:.4f}, val loss {metrics['val_loss']:.4f}")
    print(f"updates={trainer.global_step}")
    print("timers=" + json.dumps({**timers, "steps": trainer.global_step}))


if __name__ == "__main__":
    main()
