"""The usual small language model: get_batch() from an array of characters, no DataLoader."""

from __future__ import annotations

import torch

TEXT = "the quick brown fox jumps over the lazy dog " * 20
CHARACTERS = sorted(set(TEXT))
DATA = torch.tensor([CHARACTERS.index(character) for character in TEXT])


def get_batch(block=8, batch=4):
    starts = torch.randint(len(DATA) - block, (batch,))
    inputs = torch.stack([DATA[start : start + block] for start in starts])
    return inputs, torch.stack([DATA[start + 1 : start + block + 1] for start in starts])


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(len(CHARACTERS), 16), torch.nn.Linear(16, 30))
optimizer = torch.optim.AdamW(model.parameters())
for _step in range(20):
    inputs, targets = get_batch()
    loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained")
