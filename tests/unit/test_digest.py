"""Same-data gate: correct loaders pass, and every kind of wrong data is rejected."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from options import MYDATASET

from fastloop.core.spans import other_threads_cpu_ns
from fastloop.core.types import Invalid
from fastloop.data.digest import (
    HELD_BATCHES,
    canonical_columns,
    describe_difference,
    digest,
    leaves_of,
    reference_digest,
    sample_hashes,
)
from fastloop.data.same_data import check_data

BATCH = 8


def load_epoch(job, prepared, epoch=0):
    with job.loader.open(prepared, job.plan(0)) as epochs:
        yield from epochs(epoch)


def drop_first_batch(batches):
    yield from list(batches)[1:]


def repeat_first_batch(batches):
    batches = list(batches)
    yield from [batches[0], *batches[:-1]]


def change_labels(batches):
    for source, targets in batches:
        yield source, (targets + 1) % 10


def roll_labels(batches):
    for source, targets in batches:
        yield source, targets.roll(1)


def convert_to_float16(batches):
    for source, targets in batches:
        yield source.half(), targets


def round_to_float16(batches):
    for source, targets in batches:
        yield source.half().float(), targets


def reuse_one_buffer(batches):
    buffer = None
    for source, targets in batches:
        if buffer is None or len(source) != len(buffer):
            buffer = source.clone()
        yield buffer.copy_(source), targets


def flatten_samples(batches):
    for source, targets in batches:
        yield source.flatten(1), targets


CORRUPTIONS = [
    drop_first_batch,
    repeat_first_batch,
    change_labels,
    roll_labels,
    convert_to_float16,
    round_to_float16,
    reuse_one_buffer,
    flatten_samples,
]


def test_gate_accepts_a_correct_loader(prepared_job):
    job, prepared = prepared_job(*MYDATASET, f"batch_size={BATCH}")
    check_data(prepared, job.plan(0), load_epoch(job, prepared), epoch=0)


def test_numbers_that_are_no_pixels_have_other_hashes():
    levels = torch.arange(256.0).view(-1, 1) / 255
    hashes = {row.tobytes() for row in sample_hashes(levels, 255.0)}
    assert len(hashes) == 256
    others = torch.tensor([[math.nan], [math.inf], [-math.inf], [-1.0], [200.0], [300.0], [1e9]])
    assert len(hashes | {row.tobytes() for row in sample_hashes(others, 255.0)}) == 256 + 7


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
def test_gate_rejects_wrong_data(prepared_job, corrupt):
    job, prepared = prepared_job(*MYDATASET, f"batch_size={BATCH}")
    with pytest.raises(Invalid):
        check_data(prepared, job.plan(0), corrupt(load_epoch(job, prepared)), epoch=0)


def test_gate_rejects_only_a_ring_shorter_than_the_held_batches(prepared_job):
    job, prepared = prepared_job(*MYDATASET, f"batch_size={BATCH}")

    def deliver_from_ring(size):
        buffers = [torch.empty(BATCH, 5, 3) for _ in range(size)]
        for number, (source, targets) in enumerate(load_epoch(job, prepared)):
            yield buffers[number % size][: len(source)].copy_(source), targets

    check_data(prepared, job.plan(0), deliver_from_ring(HELD_BATCHES + 1), epoch=0)
    with pytest.raises(Invalid):
        check_data(prepared, job.plan(0), deliver_from_ring(HELD_BATCHES - 1), epoch=0)


def test_gate_accounts_for_drop_last_and_no_more(prepared_job):
    job, prepared = prepared_job(*MYDATASET, "batch_size=50", "drop_last=true")
    check_data(prepared, job.plan(0), load_epoch(job, prepared, epoch=4), epoch=4)
    with pytest.raises(Invalid, match="150 samples delivered, not 200"):
        check_data(
            prepared, job.plan(0), drop_first_batch(load_epoch(job, prepared, epoch=4)), epoch=4
        )


def test_hashing_small_batches_keeps_to_one_thread():
    """Several threads that round 4,096 numbers wait for each other, which on a busy machine took
    ten times as long as all else."""
    batch = torch.rand(64, 8, 8), torch.arange(64)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        sample_hashes(batch, 255.0)
        begun_ns = other_threads_cpu_ns()
        for _ in range(300):
            sample_hashes(batch, 255.0)
        assert other_threads_cpu_ns() - begun_ns < 2_000_000
    finally:
        torch.set_num_threads(before)


@given(
    st.lists(st.floats(-128, 128, width=32), min_size=1, max_size=30),
    st.sampled_from([1.0, 16.0, 255.0]),
)
def test_canonical_form_is_that_of_torch(values, scale):
    """References on disk hold hashes of numbers that torch has rounded."""
    leaf = torch.tensor(values).reshape(-1, 1)
    by_torch = leaf.to(torch.float64).mul(scale).round().clamp(-32768, 32767).to(torch.int16)
    (column,) = canonical_columns(leaf, scale)
    assert column.tobytes() == by_torch.numpy().tobytes()


def test_sample_hashes_ignore_the_rounding_of_uint8_scaling():
    pixels = torch.arange(256, dtype=torch.uint8).view(-1, 1)
    divided, multiplied = pixels.float() / 255, pixels.float() * (1 / 255)
    assert int((divided != multiplied).sum()) == 126
    assert (sample_hashes(divided, 255.0) == sample_hashes(multiplied, 255.0)).all()
    assert not (sample_hashes(divided, None) == sample_hashes(multiplied, None)).all()


@pytest.mark.parametrize("value", [-1, 256, 511, 65536, 65536 + 7, -1e9, 1e9, math.inf])
def test_sample_hashes_tell_values_outside_a_byte_from_all_within(value):
    within = torch.arange(256.0).view(-1, 1)
    outside = sample_hashes(torch.tensor([[value]]) / 255, 255.0)
    assert not (sample_hashes(within / 255, 255.0) == outside).all(axis=1).any()


@given(st.integers(1, 40), st.integers(1, 12), st.randoms(use_true_random=False))
def test_digest_does_not_depend_on_order_or_batch_size(count, batch_size, chance):
    data, labels = torch.arange(count * 3.0).view(count, 3), torch.arange(count)
    order = list(range(count))
    chance.shuffle(order)
    batches = [(data[part], labels[part]) for part in torch.tensor(order).split(batch_size)]
    wanted = reference_digest(sample_hashes((data, labels), None), leaves_of((data, labels)))
    assert describe_difference(wanted, digest(batches, None)) is None


@given(st.integers(2, 40), st.data())
def test_digest_detects_one_changed_bit(count, data):
    rows = torch.arange(count, dtype=torch.int64)
    changed = rows.clone()
    place = data.draw(st.integers(0, count - 1))
    changed[place] ^= 1 << data.draw(st.integers(0, 62))
    wanted = reference_digest(sample_hashes((rows,), None), leaves_of((rows,)))
    assert describe_difference(wanted, digest([(changed,)], None)) is not None
