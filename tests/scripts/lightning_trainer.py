"""Train a LightningModule with Lightning's Trainer, validating after each epoch."""

import argparse
import logging
import warnings

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from toy_data import random_loader, small_cnn

warnings.filterwarnings("ignore", ".*does not have many workers.*")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class LitClassifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone = small_cnn()

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
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main(module=LitClassifier, of_loader=lambda loader: loader):
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()

    pl.seed_everything(7, verbose=False)
    train_loader = random_loader(640, 3, 32, 32)
    val_loader = random_loader(160, 3, 32, 32, shuffle=False)
    trainer = pl.Trainer(
        max_epochs=2,
        accumulate_grad_batches=args.accumulate,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module(), of_loader(train_loader), val_loader)

    metrics = trainer.callback_metrics
    print(f"train loss {metrics['train_loss']:.4f}, val loss {metrics['val_loss']:.4f}")
    print(f"updates={trainer.global_step}")


if __name__ == "__main__":
    main()
