"""Steps instead of epochs: texts of like lengths by a batch sampler, padded by a collate function,
next() on an iterator that is begun again at its end, and gradients of two batches."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset

STEPS, ACCUMULATED, WORDS = 18, 2, 50


class Texts(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(3, 30, (64,), generator=generator).tolist()
        self.texts = [torch.randint(1, WORDS, (n,), generator=generator) for n in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index]


class SimilarLengths(BatchSampler):
    def __init__(self, texts, size):
        self.order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        self.size = size

    def __len__(self):
        return len(self.order) // self.size

    def __iter__(self):
        for place in torch.randperm(len(self)).tolist():
            yield self.order[place * self.size : (place + 1) * self.size]


def pad(texts):
    return pad_sequence(texts, batch_first=True), torch.tensor([len(text) for text in texts])


if __name__ == "__main__":
    torch.manual_seed(0)
    texts = Texts()
    loader = DataLoader(texts, batch_sampler=SimilarLengths(texts, 8), collate_fn=pad)
    embedding, layer = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)
    parameters = [*embedding.parameters(), *layer.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    iterator, count = iter(loader), 0
    for step in range(STEPS):
        try:
            words, lengths = next(iterator)
        except StopIteration:
            iterator = iter(loader)
            words, lengths = next(iterator)
        count += int(lengths.sum())
        logits = layer(embedding(words[:, :-1]))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        (loss / ACCUMULATED).backward()
        if step % ACCUMULATED == ACCUMULATED - 1:
            optimizer.step()
            optimizer.zero_grad()
    print(f"{count} words")
