"""The training of accumulation.py with timers placed by hand."""

import json
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from accumulation import make_loader, make_model

timers = dict.fromkeys(["data", "transfer", "forward", "backward", "optimizer"], 0.0)
epochs, accum_iter = 2, 4


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = make_loader()
    model = make_model().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    updates = 0
    model.train()
    optimizer.zero_grad()
    for epoch in range(epochs):
        total = 0.0
        batches = iter(loader)
        for batch_idx in range(len(loader)):
            t0 = time.perf_counter()
            inputs, labels = next(batches)
            t1 = time.perf_counter()
            inputs = inputs.to(device)
            labels = labels.to(device)
            t2 = time.perf_counter()
            preds = model(inputs)
            loss = criterion(preds, labels)
            total += loss.item()
            loss = loss / accum_iter
            t3 = time.perf_counter()
            loss.backward()
            t4 = time.perf_counter()
            if (batch_idx + 1) % accum_iter == 0:
                optimizer.step()
                optimizer.zero_grad()
                updates += 1
            t5 = time.perf_counter()

            timers["data"] += t1 - t0
            timers["transfer"] += t2 - t1
            timers["forward"] += t3 - t2
            timers["backward"] += t4 - t3
            timers["optimizer"] += t5 - t4
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")

    print(f"updates={updates}")
    print("timers=" + json.dumps({**timers, "steps": updates}))


if __name__ == "__main__":
    main()
