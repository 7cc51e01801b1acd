"""A regression on the columns of a table."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
table = np.load("data/table.npy")
x, y = torch.from_numpy(table[:, :-1]), torch.from_numpy(table[:, -1:])
train_dl = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
began = time.time()
for epoch in range(3):
    for xb, yb in train_dl:
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
print(f"trained for {time.time() - began:.3f} s")
