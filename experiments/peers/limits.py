"""The code that `loader=peers/gather` and `loader=peers/decode` share. Both measure a limit of the
machine, which the table shows beside the limit that fastloop measures next to each trial.

The first request for a batch does all work of an epoch, and nothing else. After that, the buffers
in which the work was done are delivered again and again as batches: their number, dtypes and shapes
are right, their contents are not.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import optree

from fastloop.core.index_batches import epoch_indices
from fastloop.core.plan import Plan
from fastloop.core.types import Tree

Work = Callable[[int, np.ndarray], None]
"""Called with the number of a thread and indices; does the work for the samples of these
indices."""


def iterate_after_work(
    pool: ThreadPoolExecutor,
    work: Work,
    buffers: Sequence[Tree],
    plan: Plan,
    num_samples: int,
    epoch: int,
) -> Iterator[Tree]:
    """Do `work` for all indices of an epoch, then iterate over its batches.

    buffers: one for each thread, with the rows of a batch. Every thread has an equal share of the
    indices, in whole batches except for the last.
    """
    size = plan.loading.batch_size
    indices = epoch_indices(plan.order, num_samples, plan.seed, epoch).numpy()
    if plan.loading.drop_last:
        indices = indices[: len(indices) - len(indices) % size]
    share = -(-len(indices) // (size * len(buffers))) * size
    shares = [indices[start : start + share] for start in range(0, len(indices), share)]
    for future in [pool.submit(work, thread, part) for thread, part in enumerate(shares)]:
        future.result()
    num_whole, num_left = divmod(len(indices), size)
    for number in range(num_whole):
        yield buffers[number % len(buffers)]
    if num_left:
        yield optree.tree_map(lambda leaf: leaf[:num_left], buffers[0])
