"""Fit sines with L-BFGS, which evaluates a closure several times for each update."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from toy_data import mlp

torch.manual_seed(0)
x = torch.rand(4000, 1) * 6.28
dataset = TensorDataset(x, torch.sin(x) + 0.01 * torch.randn_like(x))
loader = DataLoader(dataset, batch_size=500)
model = mlp(1, 128, 128, 1, activation=nn.Tanh)
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=6, line_search_fn="strong_wolfe")

updates = 0
for epoch in range(2):
    for inputs, targets in loader:

        def closure():
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)  # noqa: B023
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        updates += 1
    print(f"epoch {epoch}: loss {loss.item():.6f}")
print(f"updates={updates}")
