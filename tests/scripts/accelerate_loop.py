"""A loop of one's own through accelerate, with gradients accumulated over two batches."""

import argparse

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=2)
    args = parser.parse_args()

    set_seed(42)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps
    )

    def make_loader(count, shuffle):
        data = TensorDataset(torch.randn(count, 256), torch.randint(0, 10, (count,)))
        return DataLoader(data, batch_size=32, shuffle=shuffle)

    train_dataloader, eval_dataloader = make_loader(25 * 32, True), make_loader(5 * 32, False)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    model.append(nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    criterion = nn.CrossEntropyLoss()
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )

    updates = 0
    for epoch in range(args.epochs):
        model.train()
        for inputs, targets in train_dataloader:
            with accelerator.accumulate(model):
                loss = criterion(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    updates += 1
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
        model.eval()
        correct = 0
        for inputs, targets in eval_dataloader:
            with torch.no_grad():
                predictions = model(inputs).argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, targets))
            correct += (predictions == references).sum().item()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}, {correct} of 160 right")

    accelerator.print(f"updates={updates}")


if __name__ == "__main__":
    main()
