"""A small language model of bytes that draws its batches itself, without a DataLoader."""

import time

import numpy as np
import torch
from torch import nn

batch_size, block_size, width = 12, 64, 64
torch.manual_seed(1337)
tokens = np.memmap("data/tokens.bin", dtype=np.uint16, mode="r")


def get_batch():
    starts = torch.randint(len(tokens) - block_size - 1, (batch_size,))
    rows = [tokens[start : start + block_size + 1].astype(np.int64) for start in starts]
    window = torch.from_numpy(np.stack(rows))
    return window[:, :-1], window[:, 1:]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(block_size, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, 256)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(block_size)
        x = self.token(x) + self.place(torch.arange(block_size))
        return self.head(self.layers(x, mask=mask, is_causal=True))


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
began = time.time()
for step in range(150):
    x, y = get_batch()
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.4f}")
print(f"trained for {time.time() - began:.3f} s")
