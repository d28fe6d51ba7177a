"""Train a LightningModule with Lightning's Trainer, validating after each epoch."""

import argparse
import logging
import warnings

import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", ".*does not have many workers.*")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class LitClassifier(pl.LightningModule):
    def __init__(self, lr=0.01):
        super().__init__()
        self.lr = lr
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 8 * 8, 10),
        )

    def forward(self, x):
        return self.backbone(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def make_loaders():
    def loader(count, shuffle):
        data = TensorDataset(torch.randn(count, 3, 32, 32), torch.randint(0, 10, (count,)))
        return DataLoader(data, batch_size=32, shuffle=shuffle)

    return loader(640, True), loader(160, False)


def main(module=LitClassifier, of_loader=lambda loader: loader):
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()

    pl.seed_everything(7, verbose=False)
    train_loader, val_loader = make_loaders()
    model = module()
    trainer = pl.Trainer(
        max_epochs=args.max_epochs,
        accumulate_grad_batches=args.accumulate,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, of_loader(train_loader), val_loader)

    metrics = trainer.callback_metrics
    print(f"train loss {metrics['train_loss']:.4f}, val loss {metrics['val_loss']:.4f}")
    print(f"updates={trainer.global_step}")


if __name__ == "__main__":
    main()
