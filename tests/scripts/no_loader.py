"""A small GPT that draws its batches from a memory-mapped file of tokens, without a loader."""

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

block_size = 64
vocab_size = 256
n_embd = 64
n_head = 4


class GPT(nn.Module):
    def __init__(self, n_layer):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        block = nn.TransformerEncoderLayer(n_embd, n_head, 4 * n_embd, batch_first=True)
        self.h = nn.TransformerEncoder(block, n_layer, enable_nested_tensor=False)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1), device=idx.device)
        logits = self.lm_head(self.h(x, mask=mask, is_causal=True))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


max_iters, eval_interval, eval_iters = 30, 10, 4
batch_size, gradient_accumulation_steps, grad_clip, learning_rate = 8, 2, 1.0, 1e-3

torch.manual_seed(1337)
device = "cuda" if torch.cuda.is_available() else "cpu"
data_dir = Path(tempfile.mkdtemp())
tokens = np.random.default_rng(0).integers(0, vocab_size, 100_000, dtype=np.uint16)
tokens[:90_000].tofile(data_dir / "train.bin")
tokens[90_000:].tofile(data_dir / "val.bin")


def get_batch(split):
    # recreate np.memmap every batch to avoid a memory leak
    data = np.memmap(data_dir / f"{split}.bin", dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    rows = np.stack([data[i : i + block_size + 1].astype(np.int64) for i in ix])
    x, y = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])
    return x.to(device), y.to(device)


model = GPT(n_layer=2)
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            _, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


# training loop
X, Y = get_batch("train")  # fetch the very first batch
for iter_num in range(max_iters):
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
    for _ in range(gradient_accumulation_steps):
        _, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        # immediately async prefetch next batch while model is doing the forward pass
        X, Y = get_batch("train")
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

print(f"updates={max_iters}")
