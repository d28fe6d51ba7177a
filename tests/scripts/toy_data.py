"""Random data, small networks and the plainest loop for the scripts in this folder."""

from itertools import pairwise

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def random_loader(count, *shape, batch_size=32, shuffle=True, **options):
    data = TensorDataset(torch.randn(count, *shape), torch.randint(0, 10, (count,)))
    return DataLoader(data, batch_size=batch_size, shuffle=shuffle, **options)


def mlp(*widths, activation=nn.ReLU):
    layers = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def small_cnn():
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)),
    )


def train(model, criterion, optimizer, loaders):
    """Train with one loader for each epoch."""
    updates = 0
    for epoch, loader in enumerate(loaders):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            updates += 1
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    print(f"updates={updates}")
