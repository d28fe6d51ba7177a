"""Mixed precision with autocast and a gradient scaler; gradients are unscaled and clipped."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, args.dtype)
    dataset = TensorDataset(torch.randn(960, 256), torch.randint(0, 10, (960,)))
    loader = DataLoader(dataset, batch_size=32, shuffle=True)
    net = nn.Sequential(
        nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)
    ).to(device)
    loss_fn = nn.CrossEntropyLoss()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device)

    updates = 0
    for epoch in range(args.epochs):
        for input, target in loader:
            input, target = input.to(device), target.to(device)
            with torch.autocast(device_type=device, dtype=dtype):
                output = net(input)
                loss = loss_fn(output, target)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.1)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()  # set_to_none=True here can modestly improve performance
            updates += 1
        print(f"epoch {epoch}: loss {loss.item():.4f}, scale {scaler.get_scale():.0f}")

    print(f"updates={updates}")


if __name__ == "__main__":
    main()
