"""The training of text.py with timers placed by hand."""

import json
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from text import TextClassifier, evaluate, make_loaders

timers = dict.fromkeys(["data", "transfer", "forward", "backward", "optimizer"], 0.0)
epochs, lr = 2, 1e-3


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader, valid_loader = make_loaders()
    model = TextClassifier().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=lr, total_steps=epochs * len(train_loader)
    )

    updates = 0
    for epoch in range(epochs):
        total_loss = 0.0
        batches = iter(train_loader)
        for _ in range(len(train_loader)):
            t0 = time.perf_counter()
            tokens, labels = next(batches)
            t1 = time.perf_counter()
            tokens, labels = tokens.to(device), labels.to(device)
            t2 = time.perf_counter()
            logits = model(tokens)
            loss = criterion(logits, labels)
            t3 = time.perf_counter()
            optimizer.zero_grad()
            t4 = time.perf_counter()
            loss.backward()
            t5 = time.perf_counter()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            t6 = time.perf_counter()
            optimizer.step()
            t7 = time.perf_counter()
            scheduler.step()
            total_loss += loss.item()
            updates += 1

            timers["data"] += t1 - t0
            timers["transfer"] += t2 - t1
            timers["forward"] += t3 - t2
            timers["backward"] += t5 - t4
            timers["optimizer"] += (t4 - t3) + (t7 - t6)
        accuracy = evaluate(model, valid_loader, device)
        print(
            f"epoch {epoch + 1} | loss {total_loss / len(train_loader):.4f} "
            f"| valid accuracy {accuracy:.3f} | lr {scheduler.get_last_lr()[0]:.2e}"
        )

    print(f"updates={updates}")
    print("timers=" + json.dumps({**timers, "steps": updates}))


if __name__ == "__main__":
    main()
