"""The probe of real DataLoaders, and the lanes of what it records."""

from __future__ import annotations

import pickle
from collections import Counter
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from options import require_library
from slow_stages import COUNT, Samples, slow_collate
from timeline_stages import Split, Stream, collect_epoch
from torch.utils.data import DataLoader, IterableDataset

from fastloop.core.current_batch import current_batch
from fastloop.core.parts import Part
from fastloop.fastloader import FastLoader
from fastloop.fastloader.batch_stages import NumberedGroups
from fastloop.fastloader.batching import group_batches
from fastloop.observe.event_log import EventLog
from fastloop.observe.job_probe import Probe
from fastloop.observe.lane_key import LaneKey, LaneKind
from fastloop.observe.lanes import build_lane_rows, coverage
from fastloop.observe.probed import ProbedDataset
from fastloop.observe.torch_hooks import number_of_batch

BATCH = 8
BATCHES = COUNT // BATCH


def record(folder, loader, epochs=1):
    """Lanes of epochs of the loader, and the batches."""
    log = EventLog(folder)
    batches = [batch for _ in range(epochs) for batch in collect_epoch(loader, Probe(log))]
    return build_lane_rows(log.read()), batches


def named(rows, part, lane=""):
    return [e for row in rows if row.name.startswith(lane) for e in row.events if e.part is part]


@pytest.mark.parametrize(
    ("num_workers", "context"),
    [
        (0, None),
        (2, "fork"),
        *(pytest.param(1, way, marks=pytest.mark.heavy) for way in ("spawn", "forkserver")),
    ],
)
def test_every_batch_is_decoded_collated_and_delivered(tmp_path, num_workers, context):
    loader = DataLoader(
        Samples(),
        BATCH,
        num_workers=num_workers,
        multiprocessing_context=context,
        collate_fn=partial(slow_collate, sleep_s=0.001),
    )
    rows, batches = record(tmp_path, loader)
    plain = DataLoader(Samples(), BATCH)
    for batch, expected in zip(batches, plain, strict=True):
        torch.testing.assert_close(batch, expected)
    numbers = list(range(BATCHES))
    makers = "worker" if num_workers else "main"
    assert sorted(e.batch for e in named(rows, Part.COLLATE, makers)) == numbers
    assert [e.batch for e in named(rows, Part.WAIT)] == numbers
    assert Counter(e.batch for e in named(rows, Part.DECODE, makers)) == dict.fromkeys(
        numbers, BATCH
    )
    queued = named(rows, Part.QUEUE)
    assert sorted(e.batch for e in queued) == (numbers if num_workers else [])
    assert all(e.stop_ns >= e.start_ns for e in queued)
    assert len({row.process_id for row in rows}) == 1 + num_workers
    assert {row.name for row in rows if row.name.startswith("worker")} == {
        f"worker {number}" for number in range(num_workers)
    }
    assert type(loader.dataset) is Samples, "the loader has its own dataset again"


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("torch.utils.data", "DataLoader"),
        ("torchdata.stateful_dataloader", "StatefulDataLoader"),
    ],
)
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_batches_of_each_pass_have_the_numbers_of_the_loader(
    tmp_path, module, kind, persistent_workers
):
    kind = getattr(require_library(module), kind)
    loader = kind(Samples(), BATCH, num_workers=2, persistent_workers=persistent_workers)
    log = EventLog(tmp_path)
    for _ in range(2):
        assert len(list(collect_epoch(loader, Probe(log)))) == BATCHES
    collated = [event for event in log.read() if event.part is Part.COLLATE]
    for number in range(2):
        batches = [each.batch for each in collated if each.lane == LaneKey(LaneKind.WORKER, number)]
        assert sorted(batches) == sorted(2 * [*range(number, BATCHES, 2)])


def test_batches_of_workers_that_end_at_different_times(tmp_path):
    stream = Stream([3, 20])
    loader = DataLoader(stream, BATCH // 2, num_workers=2)
    log = EventLog(tmp_path)
    batches = [*collect_epoch(loader, Probe(log))]
    assert [int(batch[0]) for batch in batches] == [0, 1, 1, 1, 1, 1]
    # Worker 0 was asked for batches, too, before it had ended: the DataLoader skips their numbers.
    events = log.read()
    collated = sorted(e.batch for e in events if e.part is Part.COLLATE)
    assert [e.batch for e in events if e.part is Part.WAIT] == collated
    rows = build_lane_rows(events)
    assert [e.batch for e in named(rows, Part.COLLATE, "worker 0")] == [0]
    assert [e.batch for e in named(rows, Part.COLLATE, "worker 1")] == [1, 2, 3, 4, 5]
    assert [e.batch for e in named(rows, Part.WAIT)] == [*range(6)]
    assert len(named(rows, Part.QUEUE)) == 6


@pytest.mark.parametrize("num_threads", [0, 1, 2])
def test_threads_of_fastloader_know_their_batches(num_threads):
    loader = FastLoader(
        Samples(),
        BATCH,
        collate_fn=lambda samples: current_batch().number,
        num_threads=num_threads,
        thread_safe=True,
    )
    assert [*loader] == [*loader] == [*range(BATCHES)]


def test_group_has_the_number_of_its_first_batch():
    """Rows that are copied to a device are made in groups of several batches."""
    batches = iter([np.arange(8)] * 6)
    groups = group_batches(batches, max_rows=32)
    assert [(len(each.group), each.number) for each in NumberedGroups(groups)] == [
        (1, 0),
        (2, 1),
        (3, 3),
    ]


def test_part_inside_of_a_fetch(tmp_path):
    probe = Probe(EventLog(tmp_path), fetch=Part.READ)
    loader = DataLoader(Split(probe), None)
    for _ in collect_epoch(loader, probe):
        pass
    events = probe.log.read()
    reads = [e for e in events if e.part is Part.READ]
    transforms = [e for e in events if e.part is Part.TRANSFORM]
    assert len(reads) == len(transforms) == len(Split(probe))
    for read, transform in zip(reads, transforms, strict=True):
        assert read.start_ns <= transform.start_ns <= transform.stop_ns <= read.stop_ns
        assert read.batch == transform.batch


def test_probed_dataset_is_the_dataset_for_all_else(tmp_path):
    stream = Stream([1])
    probed = ProbedDataset(stream, Part.DECODE, EventLog(tmp_path))
    assert isinstance(probed, Stream)
    assert isinstance(probed, IterableDataset)
    probed.lengths = [2]
    assert stream.lengths == [2]
    assert len(list(pickle.loads(pickle.dumps(probed)))) == 2
    with pytest.raises(AttributeError):
        probed.colour  # noqa: B018
    with pytest.raises(TypeError, match="has no len"):
        len(probed)


def test_full_log_records_no_further_event(tmp_path):
    log = EventLog(tmp_path, most_events=20)
    loader = DataLoader(Samples(), BATCH)
    batches = list(collect_epoch(loader, Probe(log)))
    assert len(batches) == BATCHES
    events = log.read()
    assert len(events) == 20
    assert [e.part for e in events].count(Part.DECODE) < 20, "a batch at a time once half is full"


def test_main_lane_accounts_for_the_epoch(tmp_path):
    rows, _ = record(tmp_path, DataLoader(Samples(0.001), BATCH))
    (main,) = rows
    start_ns, stop_ns = main.events[0].start_ns, max(e.stop_ns for e in main.events)
    assert coverage(main.events, start_ns, stop_ns) == 1


def test_iterator_that_does_not_tell_the_workers_number_has_its_own_count():
    """Such as that of torchdata's StatefulDataLoader, which gets its batches by code of its own."""
    iterator = SimpleNamespace(_in_order=False, _rcvd_idx=3, _num_yielded=3)
    assert number_of_batch(iterator) == 2
