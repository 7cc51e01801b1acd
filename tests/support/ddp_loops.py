"""Two epochs of a FastLoader that is told nothing of its rank: a script for torchrun.

`ddp_loops.py <trainer> <folder>` writes <rank>.json: (the loader's length, the epochs' batches).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from fastloop import FastLoader

ROWS = torch.arange(50)


def make_loader(source: Any = ROWS) -> FastLoader:
    return FastLoader(source, 4, shuffle=True)


def run_plain() -> tuple[int, list]:
    loader = make_loader()  # before there is a group
    dist.init_process_group("gloo")
    return len(loader), [[batch.tolist() for batch in loader] for _ in range(2)]


def run_accelerate() -> tuple[int, list]:
    from accelerate import Accelerator

    _, loader = Accelerator(cpu=True).prepare(torch.nn.Linear(1, 1), make_loader())
    return len(loader), [[batch.tolist() for batch in loader] for _ in range(2)]


def run_lightning_sampler() -> tuple[int, list]:
    sampler = DistributedSampler(ROWS, 2, int(os.environ["RANK"]))
    return run_lightning(FastLoader(ROWS, 4, sampler=sampler))


def run_lightning(loader: FastLoader | None = None) -> tuple[int, list]:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.epochs = torch.nn.Linear(1, 1), [[], []]

        def training_step(self, batch, number):
            self.epochs[self.current_epoch].append(batch.tolist())
            return self.layer(batch[:, None].float()).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.0)

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", **dict.fromkeys(quiet, False)
    )
    model, loader = Model(), loader or make_loader()
    trainer.fit(model, loader)
    return len(loader), model.epochs


def run_transformers() -> tuple[int, list]:
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.batches = torch.nn.Linear(1, 1), []

        def forward(self, x):
            self.batches.append(x.tolist())
            return {"loss": self.layer(x[:, None].float()).mean()}

    loader = make_loader({"x": ROWS})

    class LoaderTrainer(Trainer):
        def get_train_dataloader(self):
            return loader

    settings = {"report_to": [], "save_strategy": "no", "logging_strategy": "no"}
    arguments = TrainingArguments(
        sys.argv[2], num_train_epochs=2, use_cpu=True, disable_tqdm=True, **settings
    )
    model = Model()
    LoaderTrainer(model, arguments).train()
    half = len(model.batches) // 2
    return len(loader), [model.batches[:half], model.batches[half:]]


if __name__ == "__main__":
    delivered = globals()[f"run_{sys.argv[1]}"]()
    Path(sys.argv[2], f"{os.environ['RANK']}.json").write_text(json.dumps(delivered))
    if dist.is_initialized():
        dist.destroy_process_group()
