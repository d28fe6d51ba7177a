"""Make a new DataLoader for each epoch, as curricula and resampling do."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--persistent-workers", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(1280, 3, 16, 16), torch.randint(0, 10, (1280,)))
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU())
    model.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()

    updates = 0
    for epoch in range(args.epochs):
        chosen = torch.randperm(len(dataset))[:640].tolist()
        loader = DataLoader(
            Subset(dataset, chosen),
            batch_size=32,
            shuffle=True,
            num_workers=args.workers,
            persistent_workers=args.persistent_workers,
        )
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            updates += 1
        print(f"epoch {epoch}: loss {loss.item():.4f}")

    print(f"updates={updates}")


if __name__ == "__main__":
    main()
