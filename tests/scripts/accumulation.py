"""Accumulate gradients over several batches; the last batches of an epoch fill no update."""

import torch
import torch.nn as nn
from toy_data import random_loader

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
loader = random_loader(33 * 16, 3, 32, 32, batch_size=16)
model = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
    *(nn.Flatten(), nn.Linear(32, 10)),
).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
accum_iter = 4

updates = 0
model.train()
optimizer.zero_grad()
for epoch in range(2):
    total = 0.0
    for batch_idx, (inputs, labels) in enumerate(loader):  # timer: data
        inputs = inputs.to(device)  # timer: transfer
        labels = labels.to(device)  # timer: transfer

        preds = model(inputs)  # timer: forward
        loss = criterion(preds, labels)  # timer: forward
        total += loss.item()  # timer: forward

        # normalize loss to account for batch accumulation
        loss = loss / accum_iter  # timer: forward
        loss.backward()  # timer: backward

        # weights update
        if (batch_idx + 1) % accum_iter == 0:
            optimizer.step()  # timer: optimizer
            optimizer.zero_grad()  # timer: optimizer
            updates += 1
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")
print(f"updates={updates}")
