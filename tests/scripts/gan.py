"""A DCGAN on random images: discriminator and generator learn in the same iteration."""

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

nz, width, niter = 32, 16, 2
real_label, fake_label = 1.0, 0.0


def up(inputs, outputs, stride, padding):
    conv = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
    return conv, nn.BatchNorm2d(outputs), nn.ReLU(True)


def down(inputs, outputs):
    conv = nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False)
    return conv, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, inplace=True)


torch.manual_seed(999)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
images = torch.rand(320, 3, 32, 32) * 2 - 1
dataloader = DataLoader(TensorDataset(images), batch_size=16, shuffle=True)

netG = nn.Sequential(
    *up(nz, width * 4, 1, 0),
    *up(width * 4, width * 2, 2, 1),
    *up(width * 2, width, 2, 1),
    nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
).to(device)
netD = nn.Sequential(
    *down(3, width),
    *down(width, width * 2),
    *down(width * 2, width * 4),
    nn.Conv2d(width * 4, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
).to(device)

criterion = nn.BCELoss()
fixed_noise = torch.randn(16, nz, 1, 1, device=device)
optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))

updates = 0
samples = []
for epoch in range(niter):
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

        # train with fake
        noise = torch.randn(batch_size, nz, 1, 1, device=device)
        fake = netG(noise)  # timer: forward
        label.fill_(fake_label)  # timer: forward
        output = netD(fake.detach()).view(-1)  # timer: forward
        errD_fake = criterion(output, label)  # timer: forward
        errD_fake.backward()  # timer: backward
        errD = errD_real + errD_fake
        optimizerD.step()  # timer: optimizer

        # (2) Update G network: maximize log(D(G(z)))
        netG.zero_grad()  # timer: optimizer
        label.fill_(real_label)  # fake labels are real for generator cost
        output = netD(fake).view(-1)  # timer: forward
        errG = criterion(output, label)  # timer: forward
        errG.backward()  # timer: backward
        optimizerG.step()  # timer: optimizer
        updates += 1

        if i % 10 == 0:
            print(f"[{epoch}/{niter}] Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f}")
            with torch.no_grad():
                samples.append(netG(fixed_noise).cpu())

print(f"{len(samples)} grids of samples")
print(f"updates={updates}")
