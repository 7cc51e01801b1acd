"""Samples that differ in length: texts, padding, buckets, and the same-data gate over them."""

from __future__ import annotations

import pickle
import re
import sysconfig
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from options import compose_job, options

from fastloop.caveats import caveats
from fastloop.chunks import collated_chunks
from fastloop.collates.pad import Pad
from fastloop.digest import sample_hashes
from fastloop.gate import check_data
from fastloop.job import check_support
from fastloop.lengths import told_lengths
from fastloop.orders.buckets import Buckets
from fastloop.plans import epoch_indices, index_batches
from fastloop.prepared import prepare, reference_hashes, sample_lengths
from fastloop.ragged import joined, unpadded
from fastloop.result import Result
from fastloop.spans import now_ns
from fastloop.trial import run_instrumented, run_trial
from fastloop.types import BadData, Invalid, Unsupported

BATCH = 8
TEXTS = ("dataset=texts", "dataset.count=203", "dataset.max_length=60", "collate=pad")
JOB = (*TEXTS, "benchmark=traversal", "placement=recursive", f"batch_size={BATCH}", "epochs=1")


def honest(job, prepared, epoch=0):
    with job.loader.open(prepared, told_lengths(job.plan(0), prepared)) as epochs:
        yield from epochs(epoch)


# -- texts


def test_texts_are_paragraphs_of_pythons_own_library_and_the_same_whenever_made(outputs, tmp_path):
    here, there = (
        compose_job(*TEXTS, f"dataset.root={tmp_path / name}").dataset for name in ("a", "b")
    )
    here.fetch(), there.fetch()
    assert here.path.read_bytes() == there.path.read_bytes()
    samples = here.open()
    library = Path(sysconfig.get_path("stdlib"))
    source = b"".join(path.read_bytes() for path in library.glob("*.py"))
    texts = [bytes(samples[index][0].tolist()) for index in range(len(samples))]
    assert len(texts) == 203
    assert all(text in source and 0 < len(text) <= 60 for text in texts)
    labels = [samples[index][1] for index in range(len(samples))]
    assert labels == sorted(labels)
    assert len(set(labels)) > 50  # evenly out of all modules
    assert samples[0][0].dtype == torch.int64


def test_all_texts_are_more_and_a_count_beyond_them_is_refused(outputs):
    every = compose_job("dataset=texts", "collate=pad").dataset
    every.fetch()
    count = len(every.open())
    assert count > 5000
    with pytest.raises(BadData, match=f"dataset.count={count + 1}: .* has {count} samples"):
        replace(every, count=count + 1).fetch()
    assert [path.name for path in every.path.parent.glob("*.npz")] == [every.path.name]


@pytest.mark.parametrize(
    "arrays",
    [
        {"tokens": np.zeros(5, np.uint8), "bounds": np.array([0, 5])},
        {"tokens": np.zeros(5, np.uint8), "bounds": np.array([0, 4]), "labels": np.zeros(1)},
        {"tokens": np.zeros(5, np.uint8), "bounds": np.array([0, 5]), "labels": np.zeros(2)},
    ],
)
def test_a_foreign_npz_is_named(outputs, arrays):
    dataset = compose_job(*TEXTS).dataset
    dataset.path.parent.mkdir(parents=True)
    np.savez(dataset.path, **arrays)
    with pytest.raises(BadData, match=dataset.path.name):
        prepare(dataset, None)


# -- the collate


def test_pad_fills_up_to_the_longest_of_the_batch_and_tells_lengths():
    one, other = torch.tensor([1, 2, 3]), torch.tensor([4])
    (padded, lengths), labels = Pad(value=-1.0).collate([(one, 7), (other, 8)])
    assert padded.tolist() == [[1, 2, 3], [4, -1, -1]]
    assert (lengths.tolist(), labels.tolist()) == ([3, 1], [7, 8])
    assert {tensor.dtype for tensor in (padded, lengths, labels)} == {torch.int64}


def test_pad_pads_each_leaf_of_a_tree_that_has_a_dimension():
    samples = [
        {"rows": np.full((length, 2), length, np.float32), "more": [torch.arange(3 - length), 0.5]}
        for length in (1, 2)
    ]
    batch = Pad(value=0.0).collate(samples)
    rows, lengths = batch["rows"]
    assert rows.tolist() == [[[1, 1], [0, 0]], [[2, 2], [2, 2]]]
    assert lengths.tolist() == [1, 2]
    assert batch["more"][0][0].tolist() == [[0, 1], [0, 0]]
    assert batch["more"][0][1].tolist() == [2, 1]
    assert batch["more"][1].tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(0.5, "int64"), (-1.0, "uint8"), (256.0, "uint8"), (2.0, "bool"), (1e20, "int64")],
)
def test_a_value_that_the_dtype_lacks_is_refused_and_not_cut(value, dtype):
    samples = [(torch.ones(length).to(getattr(torch, dtype)), 0) for length in (1, 2)]
    said = rf"^collate.value={re.escape(f'{value:g}')}: {dtype} has no such number"
    with pytest.raises(Unsupported, match=said):
        Pad(value=value).collate(samples)


LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=6)


@settings(max_examples=50, deadline=None)
@given(LENGTHS, st.sampled_from([torch.float32, torch.uint8, torch.bool]), st.integers(0, 1))
def test_what_is_padded_is_read_as_what_was_joined(lengths, dtype, value):
    samples = [(torch.ones(length, 2).to(dtype), length) for length in lengths]
    leaves = ((str(dtype).removeprefix("torch."), (-1, 2)), ("int64", ()))
    batch = unpadded(Pad(value=float(value)).collate(samples), leaves)
    assert (sample_hashes(batch, 255.0) == sample_hashes(joined(samples), 255.0)).all()


@settings(max_examples=50, deadline=None)
@given(LENGTHS, st.data())
def test_a_sample_of_another_length_is_another_sample(lengths, data):
    changed = list(lengths)
    place = data.draw(st.integers(0, len(lengths) - 1))
    changed[place] += data.draw(st.integers(1, 3))
    before, after = (
        sample_hashes(
            joined([(torch.zeros(length, dtype=torch.int64), 0) for length in some]), None
        )
        for some in (lengths, changed)
    )
    assert (before != after).any(axis=1).tolist() == [i == place for i in range(len(lengths))]


# -- the gate


SETTINGS = {
    "in this process": (),
    "drop_last": ("drop_last=true",),
    "buckets": ("order=buckets",),
    "buckets, drop_last": ("order=buckets", "drop_last=true"),
    "two forked workers": ("num_workers=2", "multiprocessing_context=fork"),
    "two spawned workers": ("num_workers=2", "multiprocessing_context=spawn"),
}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("more", SETTINGS.values(), ids=SETTINGS.keys())
def test_an_honest_loader_passes(prepared_job, more):
    job, prepared = prepared_job(*JOB, *more)
    assert prepared.sample == (("int64", (-1,)), ("int64", ()))
    check_data(prepared, told_lengths(job.plan(0), prepared), honest(job, prepared), epoch=0)


def cut_short(padded, lengths, labels):
    lengths = (lengths - 1).clamp(min=1)
    return (padded[:, : int(lengths.max())], lengths), labels


def cut_short_silently(padded, lengths, labels):
    padded = padded.clone()
    padded[torch.arange(len(padded)), lengths - 1] = 0
    return (padded, lengths), labels


def padded_inside(padded, lengths, labels):
    padded = padded.roll(1, dims=1)
    padded[:, 0] = 0
    return (padded, lengths), labels


def padded_in_front(padded, lengths, labels):
    rows = zip(padded, lengths.tolist(), strict=True)
    return (torch.stack([row.roll(len(row) - length) for row, length in rows]), lengths), labels


def padding_told_as_data(padded, lengths, labels):
    return (padded, torch.full_like(lengths, padded.shape[1])), labels


def lengths_of_others(padded, lengths, labels):
    return (padded, lengths.roll(1)), labels


def lengths_beyond_the_batch(padded, lengths, labels):
    return (padded, lengths + padded.shape[1]), labels


def negative_lengths(padded, lengths, labels):
    return (padded, -lengths), labels


def lengths_in_another_dtype(padded, lengths, labels):
    return (padded, lengths.int()), labels


def lengths_of_too_few(padded, lengths, labels):
    return (padded, lengths[1:]), labels


def lengths_as_a_list(padded, lengths, labels):
    return (padded, lengths.tolist()), labels


def flattened(padded, lengths, labels):
    return (padded[:, 0], lengths), labels


def no_lengths(padded, lengths, labels):
    return padded, labels


def relabelled(padded, lengths, labels):
    return (padded, lengths), labels + 1


def labels_rolled(padded, lengths, labels):
    return (padded, lengths), labels.roll(1)


def another_dtype(padded, lengths, labels):
    return (padded.int(), lengths), labels


def a_dimension_more(padded, lengths, labels):
    return (padded[..., None], lengths), labels


LIARS = [
    *(cut_short, cut_short_silently, padded_inside, padded_in_front, padding_told_as_data),
    *(lengths_of_others, lengths_beyond_the_batch, negative_lengths, lengths_in_another_dtype),
    *(lengths_of_too_few, lengths_as_a_list, no_lengths, relabelled, labels_rolled),
    *(another_dtype, a_dimension_more, flattened),
]


@pytest.mark.parametrize("liar", LIARS)
def test_a_liar_is_invalid(prepared_job, liar):
    job, prepared = prepared_job(*JOB)
    batches = (liar(*source, labels) for source, labels in honest(job, prepared))
    with pytest.raises(Invalid):
        check_data(prepared, job.plan(0), batches, epoch=0)


def test_what_is_said_of_a_liar_is_true(prepared_job):
    job, prepared = prepared_job(*JOB)
    batches = (relabelled(*source, labels) for source, labels in honest(job, prepared))
    with pytest.raises(Invalid, match=r"the samples or their labels are not the dataset's$"):
        check_data(prepared, job.plan(0), batches, epoch=0)


def test_a_reused_buffer_a_dropped_and_a_repeated_batch_are_caught(prepared_job):
    job, prepared = prepared_job(*JOB)
    batches = list(honest(job, prepared))

    def stale():
        buffer = torch.zeros(BATCH, 60, dtype=torch.int64)
        for (padded, lengths), labels in batches:
            buffer[: len(padded), : padded.shape[1]] = padded
            yield (buffer[: len(padded)], lengths), labels

    for lying in (stale(), batches[1:], [batches[0], *batches[:-1]]):
        with pytest.raises(Invalid):
            check_data(prepared, job.plan(0), lying, epoch=0)


def test_more_padding_than_needed_and_what_it_holds_change_no_sample(prepared_job):
    job, prepared = prepared_job(*JOB)

    def roomy():
        for (padded, lengths), labels in honest(job, prepared):
            wide = torch.full((len(padded), 100), 9)
            wide[:, : padded.shape[1]] = padded
            yield (wide, lengths), labels

    check_data(prepared, job.plan(0), roomy(), epoch=0)


# -- prepared


def test_a_samples_bytes_are_the_mean_and_lengths_are_kept(prepared_job):
    job, prepared = prepared_job(*JOB)
    samples = job.dataset.open()
    lengths = [len(samples[index][0]) for index in range(len(samples))]
    assert sample_lengths(prepared).tolist() == lengths
    # tokens, the length and the label
    assert prepared.sample_nbytes == round(8 * np.mean(lengths) + 16)


class Pieces:
    """Two leaves of variable length, of which one came from uint8."""

    label, num_classes, uint8_scale, ragged = "pieces", None, 255.0, True

    def __init__(self, samples=None):
        counts = [(index % 4, index % 3 + 1) for index in range(21)]
        self.samples = samples or [
            {"pixels": torch.full((rows, 2), index) / 255, "tokens": np.arange(length), "id": index}
            for index, (rows, length) in enumerate(counts)
        ]

    def fetch(self):
        return f"pieces-{len(self.samples)}"

    def open(self):
        return self.samples


def test_a_tree_with_several_leaves_of_variable_length_passes_the_gate(outputs):
    job, prepared = compose_job("collate=pad", "batch_size=4"), prepare(Pieces(), None)
    assert prepared.sample == (("int64", ()), ("float32", (-1, 2)), ("int64", (-1,)))
    assert sample_lengths(prepared).max() == 3
    check_data(prepared, job.plan(0), honest(job, prepared), epoch=0)

    def multiplied():
        for batch in honest(job, prepared):
            pixels, lengths = batch["pixels"]
            yield batch | {"pixels": ((pixels * 255).round() * (1 / 255), lengths)}

    check_data(prepared, job.plan(0), multiplied(), epoch=0)
    swapped = (batch | {"pixels": batch["tokens"]} for batch in honest(job, prepared))
    with pytest.raises(Invalid):
        check_data(prepared, job.plan(0), swapped, epoch=0)


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ((torch.zeros(2, 3, dtype=torch.int64), 0), r"0 is \(int64\[\*\], int\), 1 is .*\[\*, 3\]"),
        ((torch.zeros(2), 0), r"0 is \(int64\[\*\], int\), 1 is \(float32\[\*\], int\)"),
        ((torch.zeros(2, dtype=torch.int64),), r"0 is .*, 1 is \(int64\[\*\],\)"),
    ],
)
def test_samples_that_differ_in_more_than_length_are_named(outputs, odd, told):
    samples = [(torch.zeros(3, dtype=torch.int64), 0), odd]
    with pytest.raises(BadData, match=f"samples differ: {told}"):
        prepare(Pieces(samples), None)


def test_samples_without_a_length_are_refused(outputs):
    with pytest.raises(BadData, match="no leaf of the samples has a dimension"):
        prepare(Pieces([(0, 1), (2, 3)]), None)


def test_decoding_in_another_process_gives_the_same_samples_in_order(outputs):
    dataset = Pieces()
    chunks = collated_chunks(dataset.open(), 5, num_workers=1, ragged=True)
    hashes = np.concatenate([sample_hashes(one.batch, 255.0) for one in chunks])
    assert (hashes == reference_hashes(prepare(dataset, None))).all()


def test_an_older_reference_is_written_anew(outputs, monkeypatch):
    job = compose_job("dataset=digits")
    with monkeypatch.context() as older:
        older.setattr("fastloop.prepared.REFERENCE", 1)
        folder = prepare(job.dataset, None).reference
    before = (folder / "sealed.json").stat().st_mtime_ns
    assert prepare(job.dataset, None).reference == folder
    assert (folder / "sealed.json").stat().st_mtime_ns != before


# -- what fits


SAME = "the samples of dataset digits do not differ in length"
REFUSED = {
    ("dataset=texts",): "dataset texts: samples differ in length: use collate=pad",
    ("dataset=texts", "collate=skip_broken"): "use collate=pad",
    ("dataset=texts", "collate=pad"): "benchmark=training",
    ("dataset=digits", "collate=pad"): f"collate=pad: {SAME}",
    ("dataset=digits", "order=buckets"): f"order=buckets: {SAME}",
}


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_what_does_not_fit_is_unsupported_before_anything_is_prepared(outputs, overrides):
    with pytest.raises(Unsupported, match=REFUSED[overrides]):
        check_support(compose_job(*overrides))
    assert not outputs.exists()


@pytest.mark.parametrize("loader", options("loader"))
def test_a_store_does_not_hold_them(outputs, loader):
    job = compose_job(*JOB, f"loader={loader}")
    if job.loader.store is not None:
        with pytest.raises(Unsupported, match="texts are not; loader=raw reads it"):
            prepare(job.dataset, job.loader.store)
        assert not outputs.exists()


@pytest.mark.parametrize("order", ["random", "buckets"])
def test_a_traversal_of_texts_delivers_all_of_them(prepared_job, order):
    job, prepared = prepared_job(*JOB, f"order={order}", "epochs=2")
    trial = run_trial(job, prepared, 0, now_ns())
    measured = trial.benchmarks["traversal"]
    assert measured.samples == 2 * 203
    assert measured.limit_samples_per_s > 0
    assert len(run_instrumented(job, prepared, "traversal").wait_s) == -(-203 // BATCH)
    result = Result(
        name="",
        loader="raw",
        dataset=prepared.label,
        params={"collate": "pad"},
        tags={},
        sample_nbytes=prepared.sample_nbytes,
        trials=[trial],
    )
    told = [one for one in caveats(result, [result]) if one.startswith("padded: ")]
    assert [f"told of {prepared.sample_nbytes} bytes a sample" in one for one in told] == [True]


# -- buckets


def order_of(job, prepared):
    return told_lengths(job.plan(0), prepared).order


def padding(job, prepared, epoch) -> float:
    """Padded elements for each real one."""
    lengths = torch.from_numpy(sample_lengths(prepared))
    plan = told_lengths(job.plan(0), prepared)
    batches = list(index_batches(plan, prepared.num_samples, epoch))
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    return padded / int(lengths.sum()) - 1


WASTE = ("dataset=texts", "dataset.count=2000", "collate=pad", "batch_size=16")


def test_buckets_leave_little_padding_in_every_epoch(prepared_job):
    random, prepared = prepared_job(*WASTE)
    buckets, _ = prepared_job(*WASTE, "order=buckets", "order.bucket_size=800")
    for epoch in range(3):
        assert padding(buckets, prepared, epoch) < padding(random, prepared, epoch) / 10


def test_what_is_delivered_is_padded_as_little(prepared_job):
    waste = {}
    for order in ("random", "buckets"):
        job, prepared = prepared_job(*JOB, f"order={order}")
        sizes = [
            (padded.numel(), int(lengths.sum())) for (padded, lengths), _ in honest(job, prepared)
        ]
        padded, real = map(sum, zip(*sizes, strict=True))
        waste[order] = padded / real - 1
        assert waste[order] == pytest.approx(padding(job, prepared, 0))
    assert waste["buckets"] < waste["random"]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 70), st.integers(1, 9), st.integers(1, 40), st.integers(0, 3))
def test_buckets_are_complete_and_sorted_within(count, batch_size, bucket_size, epoch):
    made = Buckets(batch_size=batch_size, bucket_size=bucket_size)
    lengths = np.random.default_rng(count).integers(1, 9, count)
    order = made.with_lengths(lengths)
    indices = epoch_indices(order, count, 3, epoch)
    assert sorted(indices.tolist()) == list(range(count))
    assert torch.equal(indices, epoch_indices(order, count, 3, epoch))
    size = max(1, bucket_size // batch_size) * batch_size
    whole = indices[: count - count % batch_size]
    for bucket in whole.split(size) if len(whole) else ():
        spans = [
            (int(part.min()), int(part.max()))
            for part in torch.from_numpy(lengths)[bucket].split(batch_size)
        ]
        ends = [end for span in sorted(spans) for end in span]
        assert ends == sorted(ends)  # no two batches of a bucket overlap


def test_buckets_change_with_seed_and_epoch_and_batches_are_shuffled(prepared_job):
    job, prepared = prepared_job(*JOB, "order=buckets")
    order = order_of(job, prepared)
    orders = [epoch_indices(order, 203, seed, epoch) for seed, epoch in [(0, 0), (0, 1), (9, 0)]]
    assert len({tuple(one.tolist()) for one in orders}) == 3
    longest = [int(sample_lengths(prepared)[part].max()) for part in orders[0][:200].split(BATCH)]
    assert longest != sorted(longest)


def test_drop_last_leaves_out_any_sample_and_not_the_longest(prepared_job):
    job, prepared = prepared_job(*JOB, "order=buckets", "drop_last=true")
    plan, left_out = told_lengths(job.plan(0), prepared), set()
    for epoch in range(40):
        kept = torch.cat(list(index_batches(plan, 203, epoch)))
        assert len(kept) == 200
        left_out |= set(range(203)) - set(kept.tolist())
    assert len(left_out) > 60


def test_a_job_stays_plain_data_the_lengths_are_read_where_a_trial_runs(prepared_job):
    job, prepared = prepared_job(*JOB, "order=buckets")
    assert pickle.loads(pickle.dumps(job)) == job
    assert max(map(len, map(pickle.dumps, (job, prepared)))) < 4096
