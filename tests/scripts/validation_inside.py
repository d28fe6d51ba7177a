"""Validate every few steps, in the middle of an epoch, with a loader of its own."""

import torch
import torch.nn as nn
from toy_data import random_loader, small_cnn


def validate(model, loader, criterion):
    model.eval()
    losses = []
    with torch.no_grad():
        for x, y in loader:
            losses.append(criterion(model(x), y).item())
    model.train()
    return sum(losses) / len(losses)


torch.manual_seed(0)
train_loader = random_loader(25 * 32, 3, 16, 16)
val_loader = random_loader(8 * 32, 3, 16, 16, shuffle=False)
model = small_cnn()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()

updates = 0
for epoch in range(2):
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        updates += 1
        if updates % 10 == 0:
            val_loss = validate(model, val_loader, criterion)
            print(f"epoch {epoch} step {updates}: loss {loss.item():.4f}, val {val_loss:.4f}")
print(f"updates={updates}")
