"""Describe a script's DataLoader by the facts from which its loops are explained.

The facts are a dictionary, which the script's process writes as JSON. docs/attach-files.md
describes the value of each name, in the table of `loops[].facts`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fastloop.explain.attach.loader_places import names_of_arguments

if TYPE_CHECKING:
    from torch.utils.data import DataLoader  # noqa: TID251 - for annotations

SETTINGS = (
    *("num_workers", "batch_size", "prefetch_factor", "persistent_workers", "pin_memory"),
    "in_order",
)
"""DataLoader's attributes that are recorded as they are."""
UNSAFE_TO_FORK = ("grpc", "jax", "lance", "tensorflow")
"""Libraries with threads of their own, of which their documentation says that a process should not
fork after their import."""


def name_loader(loader: DataLoader[Any]) -> dict[str, Any]:
    """The names of a DataLoader's class, and of its dataset's."""
    return {"type": type(loader).__qualname__, "dataset": type(loader.dataset).__qualname__}


def describe_loader(
    loader: DataLoader[Any], count: Callable[[DataLoader[Any]], int | None] | None = None
) -> dict[str, Any]:
    """The facts about a DataLoader: its settings, its dataset, and its process.

    count: finds the length of the dataset; None: count_samples does.
    """
    is_native = _is_read_natively(loader)
    is_tensors = _is_tensors(loader.dataset)
    return name_loader(loader) | {
        "sampler": type(loader.sampler).__qualname__,
        "iterable": isinstance(loader.dataset, torch.utils.data.IterableDataset),
        "num_samples": (count or count_samples)(loader),
        "most_workers": _count_most_workers(loader),
        # PyG's class has DataLoader's name, and a collate_fn of its own.
        "is_derived": _is_derived(loader),
        "takes": names_of_arguments(type(loader)) if _is_derived(loader) else None,
        "is_native": is_native,
        "is_in_memory": is_native and (is_tensors or _are_rows(loader.dataset)),
        "is_resized": is_native and _are_resized(loader.dataset),
        # _without_effect imports FastLoader. For images it is imported already; for tensors, the
        # import would take the script's time.
        "without_effect": _without_effect(loader) if is_native and not is_tensors else None,
        "group_size": _group_size(),
        "start_method": _find_start_method(loader),
        "uses_cuda": torch.cuda.is_initialized(),
        "has_unsafe_forks": any(name in sys.modules for name in UNSAFE_TO_FORK),
        "torch_threads": torch.get_num_threads(),
        "rank": find_rank(),
        **{name: _plain(getattr(loader, name, None)) for name in SETTINGS},
    }


def import_recognition() -> None:
    """Import FastLoader's modules by which `describe_loader` recognises images, if it will.

    The import takes some 60 ms, which are not part of a loop if they are spent before it.
    """
    if "torchvision.datasets.folder" in sys.modules:
        importlib.import_module("fastloop.fastloader.recognise_image_folders")


def _plain(value: Any) -> Any:
    """The value as JSON holds it, such as an int for a NumPy number; None for any other object."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _plain(value.item()) if hasattr(value, "dtype") and hasattr(value, "item") else None


def _find_start_method(loader: DataLoader[Any]) -> str:
    """The name of the start method of the DataLoader's workers."""
    context = getattr(loader, "multiprocessing_context", None) or torch.multiprocessing
    # Asking for the default would settle it: the script could no longer set another one. The
    # default is the first of all methods.
    settled = context.get_start_method(allow_none=True)
    return settled or torch.multiprocessing.get_all_start_methods()[0]


def count_samples(loader: DataLoader[Any]) -> int | None:
    """The length of the dataset; None for a stream, or if the dataset has no length."""
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return None
    # The script's own method may raise anything, for example before its data is there.
    try:
        return len(loader.dataset)  # pyright: ignore[reportArgumentType]
    except Exception:
        return None


def _is_derived(loader: DataLoader[Any]) -> bool:
    """True for a class that is derived from torch's DataLoader."""
    return type(loader).__module__ != "torch.utils.data.dataloader"


def find_rank() -> str | None:
    """The rank of this process, which launchers put into the environment variable RANK; None if
    there is none, or if it is not a number."""
    text = os.environ.get("RANK", "")
    return str(int(text)) if text.isdecimal() else None


def _group_size() -> int | None:
    """Number of processes in the script's group of torch.distributed; None without one."""
    distributed = torch.distributed
    is_there = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if is_there else None


def _without_effect(loader: DataLoader[Any]) -> list[str] | None:
    """Names of the given arguments that FastLoader drops when it decodes natively; None: none."""
    from fastloop.fastloader.loader_settings import NOT_USED

    given = {name: getattr(loader, name, default) for name, (default, _) in NOT_USED.items()}
    dropped = [name for name, value in given.items() if value not in (NOT_USED[name][0], None)]
    return dropped or None


def _count_most_workers(loader: DataLoader[Any]) -> int | None:
    """The greatest number of workers among which the samples are divided; None: any number.

    An IterableDataset that is not divided delivers each sample once for each worker.
    """
    dataset = loader.dataset
    if not isinstance(dataset, torch.utils.data.IterableDataset):
        return None
    # Streams of Hugging Face know the number of their shards.
    shards = getattr(dataset, "num_shards", getattr(dataset, "n_shards", None))
    if isinstance(shards, int):
        return shards
    code = getattr(type(dataset).__iter__, "__code__", None)
    divides_itself = code is not None and "get_worker_info" in code.co_names
    return None if divides_itself else max(1, int(loader.num_workers))


def _is_read_natively(loader: DataLoader[Any]) -> bool:
    """True for a dataset that FastLoader decodes natively, or reads as rows."""
    is_usual = not _is_derived(loader) and loader.collate_fn is torch.utils.data.default_collate
    kinds = _is_tensors, _is_native_folder, _is_array_dataset
    return is_usual and any(is_of_kind(loader.dataset) for is_of_kind in kinds)


def _is_tensors(dataset: Any) -> bool:
    """True for a TensorDataset: FastLoader reads its tensors as rows."""
    # A derived class may do more, so FastLoader reads it sample by sample, as it reads tensors that
    # are not rows of plain memory.
    return type(dataset) is torch.utils.data.TensorDataset and all(
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_quantized)
        for tensor in dataset.tensors
    )


def _is_native_folder(dataset: Any) -> bool:
    # This import, and the one below, take time, so they are made only for a script that has such a
    # dataset.
    if "torchvision.datasets.folder" not in sys.modules:
        return False
    from fastloop.fastloader.recognise_image_folders import has_native_steps

    return has_native_steps(dataset)


def _is_array_dataset(dataset: Any) -> bool:
    """True for a dataset with images in memory, such as MNIST, that FastLoader reads as rows."""
    if "torchvision.datasets.mnist" not in sys.modules:
        return False
    from fastloop.fastloader.recognise_image_arrays import is_array_dataset

    return is_array_dataset(dataset)


def _are_resized(dataset: Any) -> bool:
    """True for images in memory that Pillow resizes first, which takes time for each sample."""
    return _is_array_dataset(dataset) and not _are_rows(dataset)


def _are_rows(dataset: Any) -> bool:
    """True for images in memory of which FastLoader looks up whole batches."""
    if "torchvision.datasets.mnist" not in sys.modules:
        return False
    from fastloop.fastloader.recognise_image_arrays import needs_no_pillow

    return needs_no_pillow(dataset)
