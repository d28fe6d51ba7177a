"""A Wasserstein GAN with gradient penalty: the critic learns several times for each generator."""

import torch
import torch.nn as nn
from torch import autograd
from torch.utils.data import DataLoader, TensorDataset
from toy_data import mlp

latent_dim = 64
img_size = 3 * 16 * 16
n_critic = 5


def compute_gradient_penalty(real, fake):
    alpha = torch.rand(real.size(0), 1, device=real.device)
    interpolates = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    validity = discriminator(interpolates).sum()
    [gradients] = autograd.grad(validity, interpolates, create_graph=True)
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
images = torch.rand(30 * 64, img_size) * 2 - 1
dataloader = DataLoader(TensorDataset(images), batch_size=64, shuffle=True)
generator = nn.Sequential(*mlp(latent_dim, 256, 512, img_size), nn.Tanh()).to(device)
discriminator = mlp(img_size, 512, 256, 1, activation=nn.LeakyReLU).to(device)
optimizer_G = torch.optim.Adam(generator.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=0.0002, betas=(0.5, 0.999))

updates = 0
for epoch in range(2):
    for i, (imgs,) in enumerate(dataloader):
        real_imgs = imgs.to(device)

        # ---- train the critic
        optimizer_D.zero_grad()
        z = torch.randn(imgs.shape[0], latent_dim, device=device)
        fake_imgs = generator(z)
        real_validity = discriminator(real_imgs)
        fake_validity = discriminator(fake_imgs.detach())
        penalty = compute_gradient_penalty(real_imgs, fake_imgs.detach())
        d_loss = -real_validity.mean() + fake_validity.mean() + 10 * penalty
        d_loss.backward()
        optimizer_D.step()
        updates += 1

        # ---- train the generator every n_critic steps
        if i % n_critic == 0:
            optimizer_G.zero_grad()
            fake_imgs = generator(z)
            g_loss = -discriminator(fake_imgs).mean()
            g_loss.backward()
            optimizer_G.step()
    print(f"[Epoch {epoch}/2] [D loss: {d_loss.item():.4f}] [G loss: {g_loss.item():.4f}]")
print(f"updates={updates}")
