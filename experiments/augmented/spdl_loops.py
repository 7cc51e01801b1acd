"""Loops of SPDL over augmented photographs, on two threads. simplejpeg and OpenCV decode and
resize, because SPDL's own decoders are slower."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.util import Finalize
from queue import SimpleQueue
from typing import Any

import torch

from experiments.augmented.loops import BATCH_SIZE, NUM_WORKERS, Loop, Read, make_simplejpeg

AHEAD = 4
"""Number of batches that the pipeline of batches makes ahead."""


@dataclass(frozen=True)
class SpdlLoop:
    """SPDL's pipeline of threads, in which simplejpeg decodes and OpenCV resizes."""

    paths: Sequence[str]
    read: Callable[[str], torch.Tensor]

    def __iter__(self) -> Iterator[torch.Tensor]:
        from spdl.pipeline import PipelineBuilder

        order = torch.randperm(len(self.paths)).tolist()
        builder = PipelineBuilder().add_source(self.paths[k] for k in order)
        builder = builder.pipe(self.read, concurrency=NUM_WORKERS)
        builder = builder.aggregate(BATCH_SIZE).pipe(torch.stack).add_sink(NUM_WORKERS)
        pipeline = builder.build(num_threads=NUM_WORKERS)
        with pipeline.auto_stop():
            yield from pipeline


def make_spdl(paths: Sequence[str]) -> Iterable[Any]:
    """SPDL with as many threads as the other loops have; each item is a sample."""
    torch.set_num_threads(1)
    return SpdlLoop(paths, make_simplejpeg())


def make_spdl_by_batches(paths: Sequence[str]) -> Iterable[Any]:
    """SPDL with one pipeline for all epochs: two threads, each of which makes whole batches."""
    from spdl.pipeline import PipelineBuilder

    torch.set_num_threads(1)
    requests: SimpleQueue[Any] = SimpleQueue()
    pipeline = (
        PipelineBuilder()
        .add_source(iter(requests.get, None))
        .pipe(partial(_make_batch, make_simplejpeg(), paths), concurrency=NUM_WORKERS)
        .add_sink(AHEAD)
        .build(num_threads=NUM_WORKERS, use_thread_output_queue=True)
    )
    pipeline.start()
    # Without this, the pipeline's thread would keep the process from ending.
    Finalize(None, _stop, (requests, pipeline), exitpriority=1)

    def epoch() -> Iterator[Any]:
        batches = torch.randperm(len(paths)).split(BATCH_SIZE)
        for batch in batches:
            requests.put(batch)
        for _ in batches:
            yield pipeline.get_item()

    return Loop(epoch)


def _stop(requests: SimpleQueue[Any], pipeline: Any) -> None:
    requests.put(None)
    pipeline.stop()


def _make_batch(read: Read, paths: Sequence[str], indices: torch.Tensor) -> Any:
    return torch.stack([read(paths[index]) for index in indices.tolist()]), indices
