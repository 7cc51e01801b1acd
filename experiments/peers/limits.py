"""The part that the loaders which measure the machine's limit share: `loader=peers/gather` and
`loader=peers/decode`. In the table they are rows of their own, beside the limit that fastloop
measures next to each trial.

All work of an epoch is done when its first batch is requested, and nothing else is. Then the
buffers in which it was done are handed over again and again as batches: their number, dtypes and
shapes are right, their contents are not.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import optree

from fastloop.core.epochs import epoch_indices
from fastloop.core.plan import Plan
from fastloop.core.types import Tree

Work = Callable[[int, np.ndarray], None]
"""(thread number, indices) -> None: does the work on the samples of those indices."""


def iterate_after_work(
    pool: ThreadPoolExecutor,
    work: Work,
    buffers: Sequence[Tree],
    plan: Plan,
    num_samples: int,
    epoch: int,
) -> Iterator[Tree]:
    """The batches of an epoch, once `work` has been done with all of its indices.

    buffers: one a thread, each with the rows of a batch; every thread has an equal share of the
    indices, in whole batches but for the last.
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
