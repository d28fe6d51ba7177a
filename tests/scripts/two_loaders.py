"""Learn from labelled and unlabelled images at once: two loaders, zipped."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--threshold", type=float, default=0.11)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    labelled = TensorDataset(torch.randn(20 * 16, 3, 16, 16), torch.randint(0, 10, (20 * 16,)))
    unlabelled = TensorDataset(torch.randn(24 * 32, 3, 16, 16))
    labelled_loader = DataLoader(labelled, batch_size=16, shuffle=True)
    unlabelled_loader = DataLoader(unlabelled, batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU())
    model.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)

    updates = 0
    for epoch in range(args.epochs):
        for (x, y), (u,) in zip(labelled_loader, unlabelled_loader, strict=False):
            x, y, u = x.to(device), y.to(device), u.to(device)
            with torch.no_grad():
                confidence, pseudo = F.softmax(model(u), dim=1).max(dim=1)
                mask = (confidence > args.threshold).float()
            logits = model(torch.cat([x, u + 0.1 * torch.randn_like(u)]))
            loss_x = F.cross_entropy(logits[: len(x)], y)
            loss_u = (F.cross_entropy(logits[len(x) :], pseudo, reduction="none") * mask).mean()
            loss = loss_x + loss_u
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
        print(f"epoch {epoch}: labelled loss {loss_x.item():.4f}, unlabelled {loss_u.item():.4f}")

    print(f"updates={updates}")


if __name__ == "__main__":
    main()
