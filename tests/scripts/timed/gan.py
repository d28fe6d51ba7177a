"""The training of gan.py with timers placed by hand."""

# ruff: noqa: N806 (the names of the paper)

import json
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.optim as optim

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from gan import Discriminator, Generator, fake_label, make_loader, real_label, weights_init

timers = dict.fromkeys(["data", "transfer", "forward", "backward", "optimizer"], 0.0)
niter, batch_size, nz, sample_every = 2, 16, 32, 10


def main():
    torch.manual_seed(999)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    dataloader = make_loader(batch_size)

    netG = Generator(nz, 16).to(device)
    netG.apply(weights_init)
    netD = Discriminator(16).to(device)
    netD.apply(weights_init)

    criterion = nn.BCELoss()
    fixed_noise = torch.randn(16, nz, 1, 1, device=device)
    optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
    optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))

    updates = 0
    samples = []
    for epoch in range(niter):
        batches = iter(dataloader)
        for i in range(len(dataloader)):
            start = time.perf_counter()
            data = next(batches)
            timers["data"] += time.perf_counter() - start

            start = time.perf_counter()
            netD.zero_grad()
            timers["optimizer"] += time.perf_counter() - start

            start = time.perf_counter()
            real = data[0].to(device)
            timers["transfer"] += time.perf_counter() - start

            label = torch.full((real.size(0),), real_label, dtype=real.dtype, device=device)
            start = time.perf_counter()
            output = netD(real).view(-1)
            errD_real = criterion(output, label)
            timers["forward"] += time.perf_counter() - start
            start = time.perf_counter()
            errD_real.backward()
            timers["backward"] += time.perf_counter() - start
            D_x = output.mean().item()

            noise = torch.randn(real.size(0), nz, 1, 1, device=device)
            start = time.perf_counter()
            fake = netG(noise)
            label.fill_(fake_label)
            output = netD(fake.detach()).view(-1)
            errD_fake = criterion(output, label)
            timers["forward"] += time.perf_counter() - start
            start = time.perf_counter()
            errD_fake.backward()
            timers["backward"] += time.perf_counter() - start
            D_G_z1 = output.mean().item()
            errD = errD_real + errD_fake
            start = time.perf_counter()
            optimizerD.step()
            netG.zero_grad()
            timers["optimizer"] += time.perf_counter() - start

            label.fill_(real_label)
            start = time.perf_counter()
            output = netD(fake).view(-1)
            errG = criterion(output, label)
            timers["forward"] += time.perf_counter() - start
            start = time.perf_counter()
            errG.backward()
            timers["backward"] += time.perf_counter() - start
            D_G_z2 = output.mean().item()
            start = time.perf_counter()
            optimizerG.step()
            timers["optimizer"] += time.perf_counter() - start
            updates += 1

            if i % sample_every == 0:
                print(
                    f"[{epoch}/{niter}][{i}/{len(dataloader)}] Loss_D: {errD.item():.4f} "
                    f"Loss_G: {errG.item():.4f} D(x): {D_x:.4f} D(G(z)): {D_G_z1:.4f}/{D_G_z2:.4f}"
                )
                with torch.no_grad():
                    samples.append(netG(fixed_noise).cpu())

    print(f"{len(samples)} grids of samples")
    print(f"updates={updates}")
    print("timers=" + json.dumps({**timers, "steps": updates}))


if __name__ == "__main__":
    main()
