"""Mixed precision with autocast and a gradient scaler; gradients are unscaled and clipped."""

import argparse

import torch
import torch.nn as nn
from toy_data import mlp, random_loader

parser = argparse.ArgumentParser()
parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
dtype = getattr(torch, parser.parse_args().dtype)

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
loader = random_loader(960, 256)
net = mlp(256, 512, 512, 10, activation=nn.GELU).to(device)
loss_fn = nn.CrossEntropyLoss()
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler(device)

updates = 0
for epoch in range(2):
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
