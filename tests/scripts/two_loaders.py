"""Learn from labelled and unlabelled images at once: two loaders, zipped."""

import torch
import torch.nn.functional as F
from toy_data import random_loader, small_cnn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
labelled_loader = random_loader(20 * 16, 3, 16, 16, batch_size=16)
unlabelled_loader = random_loader(24 * 32, 3, 16, 16)
model = small_cnn().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)

updates = 0
for epoch in range(2):
    for (x, y), (u, _) in zip(labelled_loader, unlabelled_loader, strict=False):
        x, y, u = x.to(device), y.to(device), u.to(device)
        with torch.no_grad():
            confidence, pseudo = F.softmax(model(u), dim=1).max(dim=1)
            mask = (confidence > 0.11).float()
        logits = model(torch.cat([x, u + 0.1 * torch.randn_like(u)]))
        loss_x = F.cross_entropy(logits[: len(x)], y)
        loss_u = (F.cross_entropy(logits[len(x) :], pseudo, reduction="none") * mask).mean()
        loss = loss_x + loss_u
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updates += 1
    print(f"epoch {epoch}: labelled loss {loss_x.item():.4f}, unlabelled {loss_u.item():.4f}")
print(f"updates={updates}")
