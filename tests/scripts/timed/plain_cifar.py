"""The training of plain_cifar.py with timers placed by hand."""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.optim as optim

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from plain_cifar import Net, evaluate, make_loaders

timers = dict.fromkeys(["data", "transfer", "forward", "backward", "optimizer"], 0.0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    trainloader, testloader = make_loaders(args.workers)

    net = Net().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=0.001, momentum=0.9)

    updates = 0
    for epoch in range(args.epochs):
        running_loss = 0.0
        batches = iter(trainloader)
        for i in range(len(trainloader)):
            t0 = time.perf_counter()
            data = next(batches)
            t1 = time.perf_counter()
            inputs, labels = data[0].to(device), data[1].to(device)
            t2 = time.perf_counter()
            optimizer.zero_grad()
            t3 = time.perf_counter()
            outputs = net(inputs)
            loss = criterion(outputs, labels)
            t4 = time.perf_counter()
            loss.backward()
            t5 = time.perf_counter()
            optimizer.step()
            t6 = time.perf_counter()
            updates += 1

            timers["data"] += t1 - t0
            timers["transfer"] += t2 - t1
            timers["forward"] += t4 - t3
            timers["backward"] += t5 - t4
            timers["optimizer"] += (t3 - t2) + (t6 - t5)

            running_loss += loss.item()
            if i % 10 == 9:
                print(f"[{epoch + 1}, {i + 1:5d}] loss: {running_loss / 10:.3f}")
                running_loss = 0.0
        evaluate(net, testloader, device)

    print("Finished Training")
    print(f"updates={updates}")
    print("timers=" + json.dumps({**timers, "steps": updates}))


if __name__ == "__main__":
    main()
