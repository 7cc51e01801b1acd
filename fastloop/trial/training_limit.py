"""Measure the limit of a benchmark with a model: its steps on batches that are on the device.

This is a replay: the steps run again, without a loader, on batches that were delivered before.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import torch
from torch.nn.parallel import DistributedDataParallel

from fastloop.core import stats
from fastloop.core.benchmark import Session
from fastloop.core.limit import Limit, LimitOrigin
from fastloop.core.trees import tree_leaves
from fastloop.core.types import Tree
from fastloop.processes.rank_group import all_gather
from fastloop.trial.window import Consumer, time_replay

MAX_REPLAY_STEPS, MAX_REPLAY_S, MIN_REPLAY_STEPS = 300, 2.0, 3
"""A replay takes as long as the window, but at most 300 steps and 2 s, and at least 3 steps."""
MAX_REPLAY_BATCHES = 32
"""Maximum number of batches on the device at the same time; a replay cycles over them."""
STEP_ROUNDS = 5
"""Number of measurements of each kind of step; their median counts."""


def num_replay_steps(step_s: float, window_s: float) -> int:
    """Number of steps of step_s each to replay next to a window of window_s."""
    most_s = min(MAX_REPLAY_S, window_s)
    return max(MIN_REPLAY_STEPS, min(MAX_REPLAY_STEPS, int(most_s / step_s)))


def replay_batches(
    batches: Iterable[Tree], place: Consumer, steps: int = MAX_REPLAY_BATCHES
) -> list[Tree]:
    """Batches of full size on the device, at most `steps`; the same number on each rank."""
    placed = [place(batch) for batch in islice(batches, min(MAX_REPLAY_BATCHES, steps))]
    # An incomplete last batch is left out, as it takes less time. Each rank gets the same number of
    # batches: a rank with one more step would wait for the others' gradients forever.
    placed = [batch for batch in placed if _batch_size(batch) == _batch_size(placed[0])]
    return placed[: min(all_gather(len(placed), int))]


def replay_limit(
    session: Session, batches: list[Tree], device: torch.device, window_s: float
) -> Limit:
    """Samples per second of the session's steps on batches that are on the device already."""
    consume, _ = session.start(lambda batch: batch)
    # The first replay warms up, and shows how many steps fit into the time.
    warm = time_replay(batches, consume, len(batches), device)
    steps = num_replay_steps(max(all_gather(warm.seconds, float)) / len(batches), window_s)
    seconds = time_replay(batches, consume, steps, device).seconds
    rate = _batch_size(batches[0]) * steps / seconds
    return Limit(samples_per_s=rate, origin=LimitOrigin(kind="steps"))


def step_seconds(
    session: Session, ddp: DistributedDataParallel, batches: list[Tree], device: torch.device
) -> tuple[float, float]:
    """Median seconds of a step with averaging of gradients over ranks, and of a step without."""
    consume, _ = session.start(lambda batch: batch)
    averaged, local = [], []
    count = len(batches)
    # The two kinds of steps are interleaved, so that noise of the machine affects both equally.
    for _ in range(STEP_ROUNDS):
        averaged.append(time_replay(batches, consume, count, device).seconds / count)
        with ddp.no_sync():
            local.append(time_replay(batches, consume, count, device).seconds / count)
    return stats.median(averaged), stats.median(local)


def _batch_size(batch: Tree) -> int:
    return len(tree_leaves(batch)[0])
