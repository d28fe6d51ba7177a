"""Distil a large teacher, which runs without gradients in each step, into a small student."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=2.0)
    args = parser.parse_args()

    torch.manual_seed(42)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = TensorDataset(torch.randn(640, 256), torch.randint(0, 10, (640,)))
    train_loader = DataLoader(dataset, batch_size=32, shuffle=True)
    teacher = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    teacher.append(nn.Linear(1024, 10))
    student = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    student.append(nn.Linear(512, 10))
    teacher.to(device).eval()
    student.to(device).train()
    ce_loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    T = args.temperature  # noqa: N806

    updates = 0
    for epoch in range(args.epochs):
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
        print(f"Epoch {epoch + 1}/{args.epochs}, Loss: {running_loss / len(train_loader):.4f}")

    print(f"updates={updates}")


if __name__ == "__main__":
    main()
