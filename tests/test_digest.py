"""The same-data gate: the honest pass, each kind of liar is caught."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from options import MYDATASET

from fastloop.digest import HELD_BATCHES, difference, digest, expected, leaves_of, sample_hashes
from fastloop.gate import check_data
from fastloop.types import Invalid

BATCH = 8


def honest(job, prepared, epoch=0):
    with job.loader.open(prepared, job.plan(0)) as epochs:
        yield from epochs(epoch)


def dropped(batches):
    yield from list(batches)[1:]


def repeated(batches):
    batches = list(batches)
    yield from [batches[0], *batches[:-1]]


def relabelled(batches):
    for source, targets in batches:
        yield source, (targets + 1) % 10


def labels_rolled(batches):
    for source, targets in batches:
        yield source, targets.roll(1)


def float16(batches):
    for source, targets in batches:
        yield source.half(), targets


def through_float16(batches):
    for source, targets in batches:
        yield source.half().float(), targets


def stale(batches):
    buffer = None
    for source, targets in batches:
        if buffer is None or len(source) != len(buffer):
            buffer = source.clone()
        yield buffer.copy_(source), targets


def flattened(batches):
    for source, targets in batches:
        yield source.flatten(1), targets


LIARS = [dropped, repeated, relabelled, labels_rolled, float16, through_float16, stale, flattened]


def test_an_honest_loader_passes(prepared_job):
    job, prepared = prepared_job(*MYDATASET, f"batch_size={BATCH}")
    check_data(prepared, job.plan(0), honest(job, prepared), epoch=0)


@pytest.mark.parametrize("liar", LIARS)
def test_a_liar_is_invalid(prepared_job, liar):
    job, prepared = prepared_job(*MYDATASET, f"batch_size={BATCH}")
    with pytest.raises(Invalid):
        check_data(prepared, job.plan(0), liar(honest(job, prepared)), epoch=0)


def test_a_buffer_reused_within_the_held_batches_is_caught_and_a_longer_ring_is_legal(prepared_job):
    job, prepared = prepared_job(*MYDATASET, f"batch_size={BATCH}")

    def ring(size):
        buffers = [torch.empty(BATCH, 5, 3) for _ in range(size)]
        for number, (source, targets) in enumerate(honest(job, prepared)):
            yield buffers[number % size][: len(source)].copy_(source), targets

    check_data(prepared, job.plan(0), ring(HELD_BATCHES + 1), epoch=0)
    with pytest.raises(Invalid):
        check_data(prepared, job.plan(0), ring(HELD_BATCHES - 1), epoch=0)


def test_drop_last_is_subtracted_and_more_is_not(prepared_job):
    job, prepared = prepared_job(*MYDATASET, "batch_size=50", "drop_last=true")
    check_data(prepared, job.plan(0), honest(job, prepared, epoch=4), epoch=4)
    with pytest.raises(Invalid, match="150 samples came, not 200"):
        check_data(prepared, job.plan(0), dropped(honest(job, prepared, epoch=4)), epoch=4)


def test_dividing_and_multiplying_by_the_reciprocal_are_the_same_data_but_not_the_same_bits():
    pixels = torch.arange(256, dtype=torch.uint8).view(-1, 1)
    divided, multiplied = pixels.float() / 255, pixels.float() * (1 / 255)
    assert int((divided != multiplied).sum()) == 126
    assert (sample_hashes(divided, 255.0) == sample_hashes(multiplied, 255.0)).all()
    assert not (sample_hashes(divided, None) == sample_hashes(multiplied, None)).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.randoms(use_true_random=False))
def test_a_digest_does_not_depend_on_order_or_batch_size(count, batch_size, chance):
    data, labels = torch.arange(count * 3.0).view(count, 3), torch.arange(count)
    order = list(range(count))
    chance.shuffle(order)
    batches = [(data[part], labels[part]) for part in torch.tensor(order).split(batch_size)]
    wanted = expected(sample_hashes((data, labels), None), leaves_of((data, labels)))
    assert difference(wanted, digest(batches, None)) is None


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 40), st.data())
def test_one_changed_bit_is_seen(count, data):
    rows = torch.arange(count, dtype=torch.int64)
    changed = rows.clone()
    place = data.draw(st.integers(0, count - 1))
    changed[place] ^= 1 << data.draw(st.integers(0, 62))
    wanted = expected(sample_hashes((rows,), None), leaves_of((rows,)))
    assert difference(wanted, digest([(changed,)], None)) is not None
