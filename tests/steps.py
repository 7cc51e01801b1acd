"""Steps of a job's model on random batches that fit it, without a loader."""

from __future__ import annotations

import torch
from options import compose_job

from fastloop.environment import resolve_device
from fastloop.job import Job
from fastloop.types import Leaves, Setup, Tree

CLASSES = 7
IMAGES: Leaves = (("float32", (1, 12, 10)), ("int64", ()))
TOKENS: Leaves = (("int64", (9,)), ("int64", (9,)))
SMALL = {"transformer": ("model.vocabulary=50", "model.width=16", "model.heads=2")}
"""Settings with which a model is quick."""
SIZES = (8, 8, 8, 3)
"""Of an epoch's batches, the last one short."""


def step_job(model: str, *overrides: str) -> Job:
    return compose_job(f"model={model}", "learning_rate=0.05", *SMALL.get(model, ()), *overrides)


def sample_of(model: str, images: Leaves = IMAGES) -> tuple[Leaves, int | None]:
    return (TOKENS, None) if model == "transformer" else (images, CLASSES)


def setup_of(job: Job, model: str, seed: int = 0, images: Leaves = IMAGES) -> Setup:
    sample, num_classes = sample_of(model, images)
    return Setup(
        model=job.model,
        sample=sample,
        num_classes=num_classes,
        learning_rate=job.learning_rate,
        seed=seed,
        device=resolve_device(job.device),
        unread=False,
        execution=job.execution,
        precision=job.precision,
    )


def batches_for(
    model: str, device: str = "cpu", sizes: tuple[int, ...] = SIZES, images: Leaves = IMAGES
) -> list[Tree]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for size in sizes:
        if model == "transformer":
            tokens = torch.randint(50, (size, 10), generator=generator)
            made.append((tokens[:, :-1].to(device), tokens[:, 1:].to(device)))
        else:
            pixels = torch.rand(size, *images[0][1], generator=generator)
            labels = torch.randint(CLASSES, (size,), generator=generator)
            made.append((pixels.to(device), labels.to(device)))
    return made


def losses_of(job: Job, setup: Setup, batches: list[Tree]) -> list[float]:
    """Of one training start on these batches."""
    step, losses = job.benchmark["training"].start(lambda batch: batch, setup)
    for batch in batches:
        step(batch)
    return [float(one) for one in losses]
