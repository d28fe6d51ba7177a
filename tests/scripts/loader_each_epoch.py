"""Make a new DataLoader for each epoch, as curricula and resampling do."""

import argparse

import torch
import torch.nn as nn
from toy_data import random_loader, small_cnn

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--persistent-workers", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
model = small_cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
criterion = nn.CrossEntropyLoss()
options = {"num_workers": args.workers, "persistent_workers": args.persistent_workers}

updates = 0
for epoch in range(3):
    loader = random_loader(640, 3, 16, 16, **options)
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        updates += 1
    print(f"epoch {epoch}: loss {loss.item():.4f}")
print(f"updates={updates}")
