"""A loop of one's own through accelerate, with gradients accumulated over two batches."""

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from toy_data import mlp, random_loader

set_seed(42)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
train_dataloader, eval_dataloader = random_loader(25 * 32, 256), random_loader(5 * 32, 256)
model = mlp(256, 512, 512, 10)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
criterion = nn.CrossEntropyLoss()
model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
)

updates = 0
for epoch in range(2):
    model.train()
    for inputs, targets in train_dataloader:
        with accelerator.accumulate(model):
            loss = criterion(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                updates += 1
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
    model.eval()
    correct = 0
    for inputs, targets in eval_dataloader:
        with torch.no_grad():
            predictions = model(inputs).argmax(dim=-1)
        predictions, references = accelerator.gather_for_metrics((predictions, targets))
        correct += (predictions == references).sum().item()
    accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}, {correct} of 160 right")
accelerator.print(f"updates={updates}")
