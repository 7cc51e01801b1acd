"""Measure the machine's limit for a job: how fast it can do the loader's work without a loader.

`loading_limit` chooses the measurement by the kind of work: decoding images, cropping them,
gathering rows, or converting gathered rows to floats. Other kinds of work have no limit. On CUDA,
the rate of copies to the device is a further limit.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import optree
import torch

from fastloop.core.device_time import synchronize
from fastloop.core.fingerprints import fingerprint
from fastloop.core.limit import Limit, LimitOrigin
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.traits import DatasetTraits, LoaderTraits, TransformTraits, traits_of
from fastloop.core.trees import tree_leaves
from fastloop.core.types import Tree
from fastloop.data.cropped_dataset import CroppedDataset, CroppedSamples
from fastloop.fastloader.columns.decoders import INSTALL_JPEG, has_jpeg
from fastloop.processes.rank_group import world_size
from fastloop.trial.crop_limit import crop_limit
from fastloop.trial.decode_limit import decode_limit
from fastloop.trial.gather_limit import FLOAT_NBYTES, conversion_limit, gather_limit
from fastloop.trial.job import Job
from fastloop.trial.job_context import JobContext
from fastloop.trial.rate_on_cores import MAX_BUDGET_S

PINNED_COPY_NS = 250_000_000
"""Nanoseconds for measuring copies from pinned memory."""


def loading_limit(context: JobContext, reads: bool, window_s: float) -> Limit | None:
    """Samples per second that this machine can load for the job; None if no measurement is made for
    the loader's kind of work.

    reads: True if bytes of a batch may be unread, and the step therefore reads all of them.
    window_s: length of the window in seconds, which measuring takes too, within bounds.
    """
    job, prepared, batch_size = context.job, context.prepared, context.job.loading.batch_size
    if _decodes(job):
        limit = _image_limit(context, window_s)
        return limit and _cap(limit, prepared.sample_nbytes, batch_size, context.device)
    if not _gathers(job):
        return None
    if num_bytes := _bytes_to_convert(context):
        limit = conversion_limit(prepared.num_samples, num_bytes, batch_size, reads, window_s)
        return _cap(limit, FLOAT_NBYTES * num_bytes, batch_size, context.device)
    num_rows, row_nbytes = prepared.num_samples, prepared.sample_nbytes
    return row_limit(
        num_rows, row_nbytes, batch_size, context.device, reads=reads, window_s=window_s
    )


def loading_limit_key(context: JobContext, reads: bool) -> str:
    """A key that is equal for jobs with the same work in `loading_limit`, which share its result.

    Empty if no limit is measured for the job's kind of work. Empty for several ranks, too, because
    they measure their limits together in every trial.
    """
    job, prepared = context.job, context.prepared
    if not _decodes(job) and not _gathers(job):
        return ""
    work: list[Any] = [prepared.num_samples, prepared.sample_nbytes, _bytes_to_convert(context)]
    if _decodes(job):
        work = [job.dataset, job.decoder, prepared.fingerprint, prepared.sample_nbytes]
    return _key("loading", *work, job.loading.batch_size, context.device, reads)


def replay_limit_key(context: JobContext, name: str, batch: Tree) -> str:
    """A key that is equal for jobs with the same steps, on batches of the same tensors in the same
    containers; empty for several ranks.

    name: name of the benchmark. batch: a batch on the device.
    """
    job = context.job
    step = [name, job.benchmark[name], job.model, job.execution, job.precision, job.learning_rate]
    data = [context.prepared.num_classes, job.loading.batch_size, _describe(batch)]
    return _key("steps", *step, *data, context.device, torch.get_num_threads())


def _key(*parts: Any) -> str:
    """A fingerprint of the parts; empty for several ranks."""
    return fingerprint(*map(repr, parts)) if world_size() == 1 else ""


def _describe(batch: Tree) -> Any:
    """Containers of the batch, types of its leaves, and dtype, shape and strides of each tensor."""
    # All of these may change the time of a step. For example, torch has other kernels for other
    # strides.
    leaves: list[Any] = optree.tree_leaves(batch)
    tensors = [
        (str(each.dtype), tuple(each.shape), each.stride())
        for each in tree_leaves(batch)
        if isinstance(each, torch.Tensor) and each.layout == torch.strided
    ]
    return [optree.tree_structure(batch), [type(each).__name__ for each in leaves], tensors]


def missing_limits(job: Job) -> list[str]:
    """A caveat, with the reason, for each benchmark with a limit that can't be measured here."""
    if has_jpeg() or not (_decodes(job) and isinstance(job.dataset, CroppedDataset)):
        return []
    reason = f"unsupported: the native decoder measures it: {INSTALL_JPEG}"
    names = [name for name, benchmark in job.benchmark.items() if benchmark.limit == "gather"]
    return [f"{name}: limit {reason}" for name in names]


def _decodes(job: Job) -> bool:
    """True if the job's loader decodes image files."""
    return job.loader.store is None and traits_of(DatasetTraits, job.dataset).decodes


def _gathers(job: Job) -> bool:
    """True if the job's loader gathers rows: of a store, or of a dataset in memory."""
    if job.loader.store is not None:
        return True
    # The code of a user's loader may read its dataset in any way.
    is_user_code = traits_of(LoaderTraits, job.loader).is_user_code
    return traits_of(DatasetTraits, job.dataset).gathers and not is_user_code


def _image_limit(context: JobContext, window_s: float) -> Limit | None:
    """Images per second that this machine can decode or, for a job of crops, can crop."""
    samples: Any = context.job.dataset.open()
    broken = {index for index, _ in context.prepared.broken}
    measure = crop_limit if isinstance(samples, CroppedSamples) else decode_limit
    return measure(samples, broken, context.plan.seed, window_s)


def _bytes_to_convert(context: JobContext) -> int:
    """Number of bytes of a sample that the job's transform converts to floats on the CPU."""
    transform = context.job.transform
    on_cpu = transform.where == "worker" or context.device.type == "cpu"
    if not (on_cpu and traits_of(TransformTraits, transform).converts_bytes):
        return 0
    return sum(prod(shape) for dtype, shape in context.prepared.sample if "uint8" in dtype)


def row_limit(
    num_rows: int,
    row_nbytes: int,
    batch_size: int,
    device: torch.device,
    *,
    reads: bool,
    window_s: float = MAX_BUDGET_S,
) -> Limit:
    """Rows per second that this machine can gather, see gather_limit, and copy to the device."""
    limit = gather_limit(num_rows, row_nbytes, batch_size, reads, window_s)
    return _cap(limit, row_nbytes, batch_size, device)


def _cap(limit: Limit, sample_nbytes: int, batch_size: int, device: torch.device) -> Limit:
    """The given limit or, on CUDA, the rate of copies from pinned memory if that is lower."""
    # Every batch has to be copied to the GPU, so no loader can be faster than these copies.
    if device.type != "cuda":
        return limit
    rate = _copy_rate(sample_nbytes, batch_size, device)
    if rate >= limit.samples_per_s:
        return limit
    return Limit(samples_per_s=rate, origin=LimitOrigin(kind="copies"))


def _copy_rate(row_nbytes: int, batch_size: int, device: torch.device) -> float:
    """Rows per second of copies from pinned memory to the device."""
    host = torch.ones((batch_size, row_nbytes), dtype=torch.uint8).pin_memory()
    on_device = torch.empty_like(host, device=device)

    def copy() -> int:
        on_device.copy_(host, non_blocking=True)
        return host.nbytes

    return bandwidth(copy, device, PINNED_COPY_NS) / row_nbytes


def bandwidth(copy: Callable[[], int], device: torch.device, budget_ns: int) -> float:
    """Bytes per second of an asynchronous copy that returns its size, repeated for budget_ns."""
    # The first copy is not timed, because it may allocate memory.
    copy()
    synchronize(device)
    total = 0
    start = now_ns()
    while now_ns() - start < budget_ns:
        # A synchronization costs as much as a small copy, so it is shared by eight.
        for _ in range(8):
            total += copy()
        synchronize(device)
    return total / seconds_between(start, now_ns())
