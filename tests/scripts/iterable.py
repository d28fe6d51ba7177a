"""Stream samples from an IterableDataset whose workers each read their own part."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from toy_data import mlp, train


class Stream(IterableDataset):
    def __init__(self, shards, per_shard):
        self.shards = shards
        self.per_shard = per_shard

    def __iter__(self):
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for shard in range(first, self.shards, stride):
            generator = torch.Generator().manual_seed(shard)
            for _ in range(self.per_shard):
                x = torch.randn(128, generator=generator)
                yield x, (x.sum() > 0).long()


parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=2)
args = parser.parse_args()

torch.manual_seed(0)
loader = DataLoader(Stream(4, 320), batch_size=64, num_workers=args.workers)
model = mlp(128, 1024, 1024, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
train(model, nn.CrossEntropyLoss(), optimizer, [loader, loader])
