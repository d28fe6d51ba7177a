"""Validate every few steps, in the middle of an epoch, with a loader of its own."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def validate(model, loader, criterion):
    model.eval()
    losses = []
    with torch.no_grad():
        for x, y in loader:
            losses.append(criterion(model(x), y).item())
    model.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--val-every", type=int, default=10)
    args = parser.parse_args()

    torch.manual_seed(0)

    def loader(count, shuffle):
        data = TensorDataset(torch.randn(count, 3, 16, 16), torch.randint(0, 10, (count,)))
        return DataLoader(data, batch_size=32, shuffle=shuffle)

    train_loader, val_loader = loader(25 * 32, True), loader(8 * 32, False)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU())
    model.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    updates = 0
    best = float("inf")
    for epoch in range(args.epochs):
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            updates += 1
            if updates % args.val_every == 0:
                val_loss = validate(model, val_loader, criterion)
                best = min(best, val_loss)
                print(f"epoch {epoch} step {updates}: loss {loss.item():.4f}, val {val_loss:.4f}")

    print(f"best validation loss {best:.4f}")
    print(f"updates={updates}")


if __name__ == "__main__":
    main()
