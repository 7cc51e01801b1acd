"""A classifier of lines of text, trained by the Trainer of transformers."""

import time
import zlib

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Lines(Dataset):
    """Lines as numbers of their words, and whether their number of words is odd."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.lines = [line for line in file if line.strip()][:3000]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        words = self.lines[index].split()
        numbers = [zlib.crc32(word.encode()) % 20000 + 1 for word in words][:64]
        padded = torch.zeros(64, dtype=torch.long)
        padded[: len(numbers)] = torch.tensor(numbers)
        return {"input_ids": padded, "labels": len(words) % 2}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(20001, 32, padding_idx=0)
        self.head = nn.Linear(32, 2)

    def forward(self, input_ids, labels):
        logits = self.head(self.embedding(input_ids))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=16,
        num_train_epochs=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=Classifier(), args=arguments, train_dataset=Lines("data/lines.txt"))
    began = time.time()
    trainer.train()
    print(f"trained for {time.time() - began:.3f} s")


if __name__ == "__main__":
    main()
