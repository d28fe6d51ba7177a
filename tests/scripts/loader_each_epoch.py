"""Make a new DataLoader for each epoch, as curricula and resampling do."""

import argparse

import torch
import torch.nn as nn
from toy_data import random_loader, small_cnn, train

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--persistent-workers", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
model = small_cnn()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
options = {"num_workers": args.workers, "persistent_workers": args.persistent_workers}
loaders = (random_loader(640, 3, 16, 16, **options) for epoch in range(3))
train(model, nn.CrossEntropyLoss(), optimizer, loaders)
