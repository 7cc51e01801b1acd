"""Two epochs of the same 24 batches by the trainer of a library: lightning, transformers or
accelerate."""

from __future__ import annotations

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        time.sleep(0.001)
        return {"inputs": torch.tensor([float(index)]), "labels": torch.tensor([1.0])}


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, inputs, labels):
        return {"loss": (self.layer(inputs / 100) - labels).square().mean()}


def fit_lightning():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.line = Line()

        def training_step(self, batch):
            return self.line(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", **quiet)
    trainer.fit(Module(), DataLoader(Points(), 4, shuffle=True))


def fit_transformers():
    from transformers import Trainer, TrainingArguments

    settings = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "report_to": []}
    settings |= {"save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    arguments = TrainingArguments(output_dir="trained", use_cpu=True, **settings)
    Trainer(model=Line(), args=arguments, train_dataset=Points()).train()


def fit_accelerate():
    from accelerate import Accelerator

    model = Line()
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(Points(), 4, shuffle=True)
    )
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()


if __name__ == "__main__":
    {"lightning": fit_lightning, "transformers": fit_transformers, "accelerate": fit_accelerate}[
        sys.argv[1]
    ]()
    print("trained")
