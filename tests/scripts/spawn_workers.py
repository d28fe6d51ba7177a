"""Load with workers that are not forked: each begins with this file imported anew."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from toy_data import mlp, train


class Squares(Dataset):
    def __len__(self):
        return 1280

    def __getitem__(self, index):
        x = torch.full((256,), index / len(self))
        return x, x[:1] ** 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--context", choices=["spawn", "forkserver", "fork"], default="spawn")
    args = parser.parse_args()

    torch.manual_seed(0)
    options = {"multiprocessing_context": args.context, "persistent_workers": True}
    loader = DataLoader(Squares(), batch_size=64, shuffle=True, num_workers=1, **options)
    model = mlp(256, 1024, 1024, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, nn.MSELoss(), optimizer, [loader, loader])


if __name__ == "__main__":
    main()
