"""The probe takes little of a loop's time, and none of it counts as the start of an epoch."""

from __future__ import annotations

import json

import pytest
from commands import run_fastloop

from fastloop.explain.attach.fetch_probe import (
    EVENT_NS,
    FREE_BATCHES,
    MOST_COST,
    TIMED_FIRST,
    FetchTurns,
    SampleBudget,
)


def count_timed(budget, epochs, batches, batch_ns, events):
    """Number of timed batches of each epoch, if a batch has these events and takes that long."""
    timed = []
    for _ in range(epochs):
        turns = FetchTurns(budget)
        timed.append(0)
        for _ in range(batches):
            has_samples = turns.has_samples()
            timed[-1] += has_samples
            turns.end_batch(batch_ns, events if has_samples else 0)
    return timed


def test_short_epochs_share_a_budget():
    batch_ns, events, batches = 5_000_000, 256, 10
    timed = count_timed(SampleBudget(), 1000, batches, batch_ns, events)
    assert timed[: FREE_BATCHES // TIMED_FIRST] == [TIMED_FIRST] * (FREE_BATCHES // TIMED_FIRST)
    # In the long run the events cost the share that they may.
    cost = sum(timed) * events * EVENT_NS / (len(timed) * batches * batch_ns)
    assert 0.9 * MOST_COST < cost < 1.1 * MOST_COST


def test_single_batches_are_timed_at_first():
    assert count_timed(SampleBudget(), FREE_BATCHES + 3, 1, 1, 1000) == [1] * FREE_BATCHES + [0] * 3


def test_cheap_events_are_timed_in_each_epoch():
    assert count_timed(SampleBudget(), 5, 17, 1_000_000_000, 2) == [TIMED_FIRST + 1] * 5


SLOW_TO_DESCRIBE = """
import sys, time
import torch
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    @property
    def num_shards(self):
        time.sleep(4)
        return 1
    def __iter__(self):
        return iter(torch.arange(64.0))

loader = DataLoader(Stream(), 4, num_workers=int(sys.argv[1]))
for _ in range(2):
    for batch in loader:
        time.sleep(0.01)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("workers", [0, 1])
def test_start_of_an_epoch_is_without_the_look_at_its_loader(tmp_path, workers):
    (tmp_path / "slow.py").write_text(SLOW_TO_DESCRIBE)
    process = run_fastloop("slow.py", str(workers), cwd=tmp_path, command="attach")
    assert process.returncode == 0, process.stderr
    (path,) = tmp_path.glob("outputs/attach/*/attach.json")
    (loop,) = json.loads(path.read_text())["loops"]
    # Only the probe asks for the number of shards, which takes longer than the whole loop.
    assert loop["batches"] == 32
    assert loop["seconds"] < 4
