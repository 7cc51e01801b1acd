"""Steps of a job's model on suitable random batches, without a loader."""

from __future__ import annotations

import torch
from options import compose_job

from fastloop.core.benchmark import Session, Setup
from fastloop.core.types import Leaves, Tree
from fastloop.processes.rank_group import resolve_device
from fastloop.trial.job import Job

CLASSES = 7
IMAGES: Leaves = (("float32", (1, 12, 10)), ("int64", ()))
TOKENS: Leaves = (("int64", (9,)), ("int64", (9,)))
SMALL = {"transformer": ("model.vocabulary=50", "model.width=16", "model.heads=2")}
"""Settings that make a model fast."""
SIZES = (8, 8, 8, 3)
"""Batch sizes of an epoch; the last batch is short."""


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
    batches = []
    for size in sizes:
        if model == "transformer":
            tokens = torch.randint(50, (size, 10), generator=generator)
            batches.append((tokens[:, :-1].to(device), tokens[:, 1:].to(device)))
        else:
            pixels = torch.rand(size, *images[0][1], generator=generator)
            labels = torch.randint(CLASSES, (size,), generator=generator)
            batches.append((pixels.to(device), labels.to(device)))
    return batches


def session_of(job: Job, model: str, seed: int = 0, images: Leaves = IMAGES) -> Session:
    """Session of the job's only benchmark."""
    (benchmark,) = job.benchmark.values()
    return benchmark.session(setup_of(job, model, seed, images))


def losses_of(session: Session, batches: list[Tree]) -> list[float]:
    """Losses of a training on these batches from its start."""
    step, losses = session.start(lambda batch: batch)
    for batch in batches:
        step(batch)
    return [float(loss) for loss in losses]
