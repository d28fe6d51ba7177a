"""Train a model that went through torch.compile."""

import argparse

import torch
import torch.nn as nn
from toy_data import mlp, random_loader, train

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="eager")
parser.add_argument("--in-place", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
loader = random_loader(640, 256, drop_last=True)
model = mlp(256, 512, 512, 10)
if args.in_place:
    model.compile(backend=args.backend)
else:
    model = torch.compile(model, backend=args.backend)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train(model, nn.CrossEntropyLoss(), optimizer, [loader, loader])
