"""A tuned job as Python code to paste: DataLoader or FastLoader, with the store that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastloop.core.plan import LoadingSettings
from fastloop.core.types import name_of
from fastloop.trial.job import Job

STORE = "tuned-store"
"""Folder of the store in the code, relative to the working folder."""
SHUFFLED = {"random": True, "sequential": False}
"""DataLoader's `shuffle` by the name of the order."""
LOOP_SETTINGS = ("device_prefetch", "pinned_buffers")
"""Settings of the loop around a loader, which have no counterpart in the code."""


def paste_code(job: Job) -> str:
    """The code; a comment says what it can't hold. Empty for a loader without such code.

    Without a Dataset of the user's own it expects one by the name of `dataset`.
    """
    write = WRITERS.get(name_of(job.loader))
    if write is None:
        return ""
    imports, body = write(job)
    if job.torch_threads:
        imports = [*dict.fromkeys(("import torch", *imports))]
    dataset_imports, dataset = _dataset(job)
    head = sorted({*imports, *dataset_imports}, key=lambda line: (line.startswith("from"), line))
    threads = [f"torch.set_num_threads({job.torch_threads})"] if job.torch_threads else []
    return "\n".join([*head, "", *dataset, *threads, *body, *_remarks(job), ""])


def _raw(job: Job) -> tuple[list[str], list[str]]:
    return [IMPORT_DATALOADER], _dataloader(job, "dataset")


def _preload(job: Job) -> tuple[list[str], list[str]]:
    read = "samples = [dataset[index] for index in range(len(dataset))]  # all in memory"
    return [IMPORT_DATALOADER], [read, *_dataloader(job, "samples")]


def _in_memory(job: Job) -> tuple[list[str], list[str]]:
    """DataLoader over tensors in memory; its samples are tuples of tensors."""
    imports = ["import torch", "from torch.utils.data import DataLoader, TensorDataset"]
    imports.append("from fastloop import open_store, write_store")
    rows = f'rows = open_store(write_store(dataset, "{STORE}"))  # written once'
    samples = "samples = TensorDataset(*(torch.tensor(leaf) for leaf in rows))"
    return imports, [rows, samples, *_dataloader(job, "samples")]


def _fastloop(job: Job) -> tuple[list[str], list[str]]:
    loader: Any = job.loader
    arguments = {"batch_size": job.loading.batch_size, **_order(job)}
    if job.loading.drop_last:
        arguments["drop_last"] = True
    if loader.num_threads is not None:
        arguments["num_threads"] = loader.num_threads
    if loader.ahead is not None:
        arguments["prefetch_factor"] = loader.ahead
    if loader.store is None:
        return ["from fastloop import FastLoader"], _call("FastLoader", "dataset", arguments)
    imports = ["from fastloop import FastLoader, open_store, write_store"]
    rows = f'rows = open_store(write_store(dataset, "{STORE}"))  # written once'
    lines = [rows]
    if loader.in_memory:
        imports += ["import numpy as np", "from torch.utils import _pytree as pytree"]
        lines.append("rows = pytree.tree_map(np.array, rows)  # all in memory")
    return imports, [*lines, *_call("FastLoader", "rows", arguments)]


IMPORT_DATALOADER = "from torch.utils.data import DataLoader"
WRITERS: Mapping[str, Callable[[Job], tuple[list[str], list[str]]]] = {
    "raw": _raw,
    "preload": _preload,
    "dataloader": _in_memory,
    "fastloop": _fastloop,
}
"""By loader, what gives its imports and its lines."""


def _dataloader(job: Job, samples: str) -> list[str]:
    loading, defaults = job.loading, LoadingSettings()
    arguments: dict[str, Any] = {"batch_size": loading.batch_size, **_order(job)}
    for name in ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "drop_last"):
        if getattr(loading, name) != getattr(defaults, name):
            arguments[name] = getattr(loading, name)
    if loading.num_workers and loading.multiprocessing_context:
        arguments["multiprocessing_context"] = loading.multiprocessing_context
    return _call("DataLoader", samples, arguments)


def _order(job: Job) -> dict[str, Any]:
    return {"shuffle": True} if SHUFFLED.get(name_of(job.order)) else {}


def _call(name: str, first: str, arguments: Mapping[str, Any]) -> list[str]:
    lines = [f"    {first},", *(f"    {key}={value!r}," for key, value in arguments.items())]
    return [f"loader = {name}(", *lines, ")"]


def _dataset(job: Job) -> tuple[list[str], list[str]]:
    """Imports and lines that make the Dataset."""
    dataset: Any = job.dataset
    target = getattr(dataset, "target", None)
    if not target:
        return [], ["# dataset: the torch Dataset of your samples"]
    module, _, name = target.rpartition(".")
    arguments = ", ".join(f"{key}={value!r}" for key, value in (dataset.kwargs or {}).items())
    return [f"from {module} import {name}"], [f"dataset = {name}({arguments})"]


def _remarks(job: Job) -> list[str]:
    """Comments on settings that were tuned or given, and that the code does not hold."""
    names = [f"{name}={getattr(job, name)}" for name in LOOP_SETTINGS if getattr(job, name)]
    if name_of(job.order) not in SHUFFLED:
        names.append(f"order={name_of(job.order)}")
    parts = {"collate": "default", "transform": "none"}
    for group, default in parts.items():
        if (option := name_of(getattr(job, group))) != default:
            names.append(f"{group}={option}")
    return [f"# to be added: {', '.join(names)}"] if names else []
