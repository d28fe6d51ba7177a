"""Distil a large teacher, which runs without gradients in each step, into a small student."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from toy_data import mlp, random_loader

torch.manual_seed(42)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
train_loader = random_loader(640, 256)
teacher = mlp(256, 1024, 1024, 10).to(device).eval()
student = mlp(256, 512, 512, 10).to(device).train()
ce_loss = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
T = 2.0

updates = 0
for epoch in range(2):
    running_loss = 0.0
    for inputs, labels in train_loader:
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        # no gradients for the teacher: its weights do not change
        with torch.no_grad():
            teacher_logits = teacher(inputs)
        student_logits = student(inputs)
        soft_targets = F.softmax(teacher_logits / T, dim=-1)
        soft_prob = F.log_softmax(student_logits / T, dim=-1)
        soft_loss = F.kl_div(soft_prob, soft_targets, reduction="batchmean") * T**2
        loss = 0.25 * soft_loss + 0.75 * ce_loss(student_logits, labels)
        loss.backward()
        optimizer.step()
        updates += 1
        running_loss += loss.item()
    print(f"Epoch {epoch + 1}/2, Loss: {running_loss / len(train_loader):.4f}")
print(f"updates={updates}")
