"""A recurrent language model of words."""

import time
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Corpus(Dataset):
    """Windows of a text as numbers of its words."""

    def __init__(self, path, length=35):
        with open(path, encoding="utf-8") as file:
            words = file.read().split()[:60_000]
        self.numbers = [zlib.crc32(word.encode()) % 5000 for word in words]
        self.length = length

    def __len__(self):
        return (len(self.numbers) - 1) // self.length

    def __getitem__(self, index):
        start = index * self.length
        window = self.numbers[start : start + self.length + 1]
        return torch.tensor(window[:-1]), torch.tensor(window[1:])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5000, 64)
        self.rnn = nn.LSTM(64, 64, batch_first=True)
        self.head = nn.Linear(64, 5000)

    def forward(self, x):
        return self.head(self.rnn(self.embedding(x))[0])


def main():
    torch.manual_seed(1)
    loader = DataLoader(Corpus("data/lines.txt"), 20, True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    began = time.time()
    for number, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        if number % 50 == 0:
            print(f"batch {number}: loss {loss.item():.4f}")
    print(f"trained for {time.time() - began:.3f} s")


if __name__ == "__main__":
    main()
