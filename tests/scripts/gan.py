"""A DCGAN on random images: discriminator and generator learn in the same iteration."""

# ruff: noqa: N806 (the names of the paper)

import argparse

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

real_label = 1.0
fake_label = 0.0


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    def __init__(self, nz, ngf):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 4, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self, ndf):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 4),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 4, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, input):
        return self.main(input)


def make_loader(batch_size):
    images = torch.rand(320, 3, 32, 32) * 2 - 1
    return DataLoader(TensorDataset(images), batch_size=batch_size, shuffle=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--niter", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--nz", type=int, default=32)
    parser.add_argument("--sample-every", type=int, default=10)
    opt = parser.parse_args()

    torch.manual_seed(999)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    dataloader = make_loader(opt.batch_size)

    netG = Generator(opt.nz, 16).to(device)
    netG.apply(weights_init)
    netD = Discriminator(16).to(device)
    netD.apply(weights_init)

    criterion = nn.BCELoss()
    fixed_noise = torch.randn(16, opt.nz, 1, 1, device=device)
    optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
    optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))

    updates = 0
    samples = []
    for epoch in range(opt.niter):
        for i, data in enumerate(dataloader, 0):  # timer: data
            # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
            # train with real
            netD.zero_grad()  # timer: optimizer
            real = data[0].to(device)  # timer: transfer
            batch_size = real.size(0)
            label = torch.full((batch_size,), real_label, dtype=real.dtype, device=device)
            output = netD(real).view(-1)  # timer: forward
            errD_real = criterion(output, label)  # timer: forward
            errD_real.backward()  # timer: backward
            D_x = output.mean().item()

            # train with fake
            noise = torch.randn(batch_size, opt.nz, 1, 1, device=device)
            fake = netG(noise)  # timer: forward
            label.fill_(fake_label)  # timer: forward
            output = netD(fake.detach()).view(-1)  # timer: forward
            errD_fake = criterion(output, label)  # timer: forward
            errD_fake.backward()  # timer: backward
            D_G_z1 = output.mean().item()
            errD = errD_real + errD_fake
            optimizerD.step()  # timer: optimizer

            # (2) Update G network: maximize log(D(G(z)))
            netG.zero_grad()  # timer: optimizer
            label.fill_(real_label)  # fake labels are real for generator cost
            output = netD(fake).view(-1)  # timer: forward
            errG = criterion(output, label)  # timer: forward
            errG.backward()  # timer: backward
            D_G_z2 = output.mean().item()
            optimizerG.step()  # timer: optimizer
            updates += 1

            if i % opt.sample_every == 0:
                print(
                    f"[{epoch}/{opt.niter}][{i}/{len(dataloader)}] Loss_D: {errD.item():.4f} "
                    f"Loss_G: {errG.item():.4f} D(x): {D_x:.4f} D(G(z)): {D_G_z1:.4f}/{D_G_z2:.4f}"
                )
                with torch.no_grad():
                    samples.append(netG(fixed_noise).cpu())

    print(f"{len(samples)} grids of samples")
    print(f"updates={updates}")


if __name__ == "__main__":
    main()
