"""The jobs of the GPU run, read from jobs.json, because it runs without Hydra.

After a change of these settings or of conf/, run `python -m experiments.gpu.compose`, which
rewrites that file.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from experiments.lib.job_file import Settings, overrides_of, read_job
from experiments.pinning import settings as pinning
from experiments.pipeline_steps import settings as pipeline_steps
from fastloop.trial.job import Job

FILE = Path(__file__).with_name("jobs.json")
ARRAYS: Settings = {
    "dataset": "synthetic",
    "dataset.shape": [3, 64, 64],
    "loader": "batch_sampler",
    "batch_size": 256,
}
"""A data set of float32 values in memory, 12 MiB per batch."""
RESNET: Settings = {"model": "resnet18", "precision": "bf16"}
NON_BLOCKING: Settings = {"placement.non_blocking": True}
PINNED: Settings = {"pin_memory": True, **NON_BLOCKING}
RING: Settings = {"pinned_buffers": 4, **NON_BLOCKING}
BY_STREAM: Settings = {"device_prefetch": 2, "device_prefetch_by": "stream"}
BY_THREAD: Settings = {"device_prefetch": 2, "device_prefetch_by": "thread"}
EXECUTIONS = ("eager", "cuda_graph", "tensorrt", "compiled")
"""The executions in the order in which they run. Compiling takes longest, so it comes last."""
TINY_PHOTOS = {"dataset": {"count": 8, "crop": (32, 32)}, "batch_size": 4, "epochs": 1}
SMALL: dict[str, dict[str, Any]] = {
    "hidden": {"dataset": {"count": 32}, "batch_size": 8},
    "bandwidth": {"dataset": {"count": 32}, "batch_size": 8},
    "stall": TINY_PHOTOS,
    "pipeline_steps": TINY_PHOTOS,
    "pinning": {"dataset": {"count": 64, "shape": (4,)}, "batch_size": 16, "epochs": 1},
    "executions": {"dataset": {"count": 16}, "batch_size": 8},
}
"""Name of a part -> the sizes that --small sets instead of the part's own."""
SCALED = ("bandwidth", "stall")
"""Parts with workers on all cores."""


def part_jobs(part: str, device: str, small: bool = False) -> dict[str, Job]:
    """Name -> job, for all jobs of a part."""
    sizes = SMALL[part] if small else {}
    jobs = {
        name: resize(read_job(FILE, *overrides_of(settings)), device, sizes)
        for name, settings in SETTINGS[part](device).items()
    }
    if part not in SCALED:
        return jobs
    return {name: scale_workers(job) for name, job in jobs.items()}


def resize(job: Job, device: str, sizes: dict[str, Any]) -> Job:
    """The job on that device and with those sizes; if sizes are given, its windows are short."""
    batch_size = sizes.get("batch_size", job.loading.batch_size)
    return replace(
        job,
        device=device,
        dataset=replace(job.dataset, **sizes.get("dataset", {})),
        loading=replace(job.loading, batch_size=batch_size),
        epochs=sizes.get("epochs", job.epochs),
        min_window_s=0.0 if sizes else job.min_window_s,
    )


def scale_workers(job: Job) -> Job:
    """The job with one worker per core except one, at most 12, if it has workers at all."""
    if not job.loading.num_workers:
        return job
    num_workers = max(1, min(12, len(os.sched_getaffinity(0)) - 1))
    return replace(job, loading=replace(job.loading, num_workers=num_workers))


def all_overrides() -> set[tuple[str, ...]]:
    """The overrides that every job has on any device."""
    return {
        overrides_of(settings)
        for jobs_of, device in product(SETTINGS.values(), ("cpu", "cuda"))
        for settings in jobs_of(device).values()
    }


def hidden_copies(device: str) -> dict[str, Settings]:
    """Jobs with batches prefetched from every kind of memory, under a small and under a larger
    step."""
    common = {**ARRAYS, "dataset.count": 8192, "benchmark": "training", "epochs": 1}
    common |= BY_STREAM if device.startswith("cuda") else BY_THREAD
    memory: dict[str, Settings] = {"pageable": NON_BLOCKING}
    if device.startswith("cuda"):
        memory |= {"pin_memory": PINNED, "ring": RING}
    models: dict[str, Settings] = {"toynet": {}, "resnet18 bf16": RESNET}
    return {
        f"{kind}, {model}": {**common, **memory[kind], **models[model]}
        for model, kind in product(models, memory)
    }


def bandwidth(device: str) -> dict[str, Settings]:
    """Jobs that move every batch to the device and do nothing else with it."""
    common = {**ARRAYS, "dataset.count": 4096, "benchmark": "traversal", "epochs": 2}
    ways: dict[str, Settings] = {"naive": {}, "thread": BY_THREAD}
    if device.startswith("cuda"):
        ways = {
            "naive": {},
            "pin_memory": PINNED,
            "ring": RING,
            "pin_memory, stream": {**PINNED, **BY_STREAM},
            "ring, stream": {**RING, **BY_STREAM},
            "ring, thread": {**RING, **BY_THREAD},
            "pin_memory, stream, workers": {**PINNED, **BY_STREAM, "num_workers": 2},
        }
    return {name: {**common, **way} for name, way in ways.items()}


def stall(device: str) -> dict[str, Settings]:
    """The steps of pipeline_steps under resnet18 at bf16."""
    sizes = {"dataset.count": 2048, "batch_size": 128, "epochs": 2}
    common = {**pipeline_steps.LOADING, **sizes, **RESNET}
    return {name: {**common, **step} for name, step in pipeline_steps.ladder(device).items()}


def ladder_steps(device: str) -> dict[str, Settings]:
    """The steps of pipeline_steps under a small step."""
    return {
        name: {**settings, "epochs": 2}
        for name, settings in pipeline_steps.settings(device).items()
    }


def memory_kinds(device: str) -> dict[str, Settings]:
    """The jobs of experiments/pinning with half as many samples."""
    return {
        name: {**settings, "dataset.count": 2048}
        for name, settings in pinning.settings(device).items()
    }


def executions(_device: str) -> dict[str, Settings]:
    """Jobs with each execution of two models, in training and in inference; the same on any
    device."""
    data = {"dataset": "mydataset", "dataset.count": 1280, "loader": "np_memmap", "epochs": 1}
    combinations = product(EXECUTIONS, ("toynet", "resnet18"), ("training", "inference"))
    return {
        f"{model}, {benchmark}, {execution}": {
            **data,
            "model": model,
            "benchmark": benchmark,
            "execution": execution,
        }
        for execution, model, benchmark in combinations
    }


SETTINGS: dict[str, Callable[[str], dict[str, Settings]]] = {
    "hidden": hidden_copies,
    "bandwidth": bandwidth,
    "stall": stall,
    "pipeline_steps": ladder_steps,
    "pinning": memory_kinds,
    "executions": executions,
}
"""Name of a part -> function that returns the settings of its jobs, by name, on a device."""
