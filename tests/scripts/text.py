"""Classify sentences of differing length with a small transformer encoder."""

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

VOCAB, PAD = 2000, 0


class Sentences(Dataset):
    """Sentences of 10 to 40 token ids; the label says whether most of them are large."""

    def __init__(self, count):
        lengths = torch.randint(10, 41, (count,)).tolist()
        self.tokens = [torch.randint(1, VOCAB, (length,)) for length in lengths]
        self.labels = [int((ids > VOCAB // 2).float().mean() > 0.5) for ids in self.tokens]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index], self.labels[index]


def collate_batch(batch):
    tokens, labels = zip(*batch, strict=True)
    return pad_sequence(tokens, batch_first=True, padding_value=PAD), torch.tensor(labels)


class TextClassifier(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(dim, 2)

    def forward(self, tokens):
        padding = tokens == PAD
        x = self.encoder(self.embedding(tokens), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1)
        return self.fc((x * kept).sum(1) / kept.sum(1))


def make_loaders():
    train_loader = DataLoader(Sentences(640), batch_size=32, shuffle=True, collate_fn=collate_batch)
    valid_loader = DataLoader(Sentences(128), batch_size=32, collate_fn=collate_batch)
    return train_loader, valid_loader


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct = 0
    for tokens, labels in loader:
        tokens, labels = tokens.to(device), labels.to(device)
        correct += (model(tokens).argmax(1) == labels).sum().item()
    model.train()
    return correct / len(loader.dataset)


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
train_loader, valid_loader = make_loaders()
model = TextClassifier().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, 2 * len(train_loader))

updates = 0
for epoch in range(2):
    total_loss = 0.0
    for tokens, labels in train_loader:  # timer: data
        tokens, labels = tokens.to(device), labels.to(device)  # timer: transfer
        logits = model(tokens)  # timer: forward
        loss = criterion(logits, labels)  # timer: forward
        optimizer.zero_grad()  # timer: optimizer
        loss.backward()  # timer: backward
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # timer: optimizer
        scheduler.step()
        total_loss += loss.item()
        updates += 1
    accuracy = evaluate(model, valid_loader, device)
    print(f"epoch {epoch + 1} | loss {total_loss:.4f} | valid accuracy {accuracy:.3f}")

print(f"updates={updates}")
