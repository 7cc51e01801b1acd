"""Samples that differ in length: texts, padding, buckets, and the same-data gate for them."""

from __future__ import annotations

import pickle
import re
import sysconfig
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from options import compose_job, options

from fastloop.core.index_batches import epoch_indices, index_batches
from fastloop.core.spans import now_ns
from fastloop.core.types import BadData, Invalid, Unsupported
from fastloop.data.chunked_reader import collate_chunks
from fastloop.data.digest import sample_hashes
from fastloop.data.prepare_dataset import prepare
from fastloop.data.ragged import collate_ragged, remove_padding
from fastloop.data.reference import reference_hashes, sample_lengths
from fastloop.data.same_data import check_data
from fastloop.options.collate.pad import PadCollate
from fastloop.options.order.buckets import BucketOrder
from fastloop.sweep.caveats import option_caveats
from fastloop.trial.instrumented_pass import run_instrumentation
from fastloop.trial.job_start import with_sample_lengths
from fastloop.trial.support import check_support
from fastloop.trial.timed_trial import run_trial

BATCH = 8
TEXTS = ("dataset=texts", "dataset.count=203", "dataset.max_length=60", "collate=pad")
JOB = (*TEXTS, "benchmark=traversal", "placement=recursive", f"batch_size={BATCH}", "epochs=1")


def load_epoch(job, prepared, epoch=0):
    with job.loader.open(prepared, with_sample_lengths(job.plan(0), prepared)) as epochs:
        yield from epochs(epoch)


# -- texts


def test_texts_are_reproducible_paragraphs_of_the_standard_library(outputs, tmp_path):
    first, second = (
        compose_job(*TEXTS, f"dataset.root={tmp_path / name}").dataset for name in ("a", "b")
    )
    first.fetch(), second.fetch()
    assert first.path.read_bytes() == second.path.read_bytes()
    samples = first.open()
    library = Path(sysconfig.get_path("stdlib"))
    source = b"".join(path.read_bytes() for path in library.glob("*.py"))
    texts = [bytes(samples[index][0].tolist()) for index in range(len(samples))]
    assert len(texts) == 203
    assert all(text in source and 0 < len(text) <= 60 for text in texts)
    labels = [samples[index][1] for index in range(len(samples))]
    assert labels == sorted(labels)
    assert len(set(labels)) > 50  # drawn evenly from all modules
    assert samples[0][0].dtype == torch.int64


def test_texts_reject_a_count_beyond_all_samples(outputs):
    dataset = compose_job("dataset=texts", "collate=pad").dataset
    dataset.fetch()
    count = len(dataset.open())
    assert count > 5000
    with pytest.raises(BadData, match=f"dataset.count={count + 1}: .* has {count} samples"):
        replace(dataset, count=count + 1).fetch()
    assert [path.name for path in dataset.path.parent.glob("*.npz")] == [dataset.path.name]


@pytest.mark.parametrize(
    "arrays",
    [
        {"tokens": np.zeros(5, np.uint8), "bounds": np.array([0, 5])},
        {"tokens": np.zeros(5, np.uint8), "bounds": np.array([0, 4]), "labels": np.zeros(1)},
        {"tokens": np.zeros(5, np.uint8), "bounds": np.array([0, 5]), "labels": np.zeros(2)},
    ],
)
def test_texts_name_a_foreign_npz_file(outputs, arrays):
    dataset = compose_job(*TEXTS).dataset
    dataset.path.parent.mkdir(parents=True)
    np.savez(dataset.path, **arrays)
    with pytest.raises(BadData, match=dataset.path.name):
        prepare(dataset, None)


# -- the collate


def test_pad_fills_to_the_longest_sample_and_returns_lengths():
    longer, shorter = torch.tensor([1, 2, 3]), torch.tensor([4])
    (padded, lengths), labels = PadCollate(value=-1.0).collate([(longer, 7), (shorter, 8)])
    assert padded.tolist() == [[1, 2, 3], [4, -1, -1]]
    assert (lengths.tolist(), labels.tolist()) == ([3, 1], [7, 8])
    assert {tensor.dtype for tensor in (padded, lengths, labels)} == {torch.int64}


def test_pad_pads_every_leaf_that_has_a_dimension():
    samples = [
        {"rows": np.full((length, 2), length, np.float32), "more": [torch.arange(3 - length), 0.5]}
        for length in (1, 2)
    ]
    batch = PadCollate(value=0.0).collate(samples)
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
def test_pad_rejects_a_value_that_the_dtype_cannot_represent(value, dtype):
    samples = [(torch.ones(length).to(getattr(torch, dtype)), 0) for length in (1, 2)]
    message = rf"^collate.value={re.escape(f'{value:g}')}: {dtype} can't represent it"
    with pytest.raises(Unsupported, match=message):
        PadCollate(value=value).collate(samples)


LENGTHS = st.lists(st.integers(0, 5), min_size=1, max_size=6)


@given(LENGTHS, st.sampled_from([torch.float32, torch.uint8, torch.bool]), st.integers(0, 1))
def test_remove_padding_restores_the_joined_samples(lengths, dtype, value):
    samples = [(torch.ones(length, 2).to(dtype), length) for length in lengths]
    leaves = ((str(dtype).removeprefix("torch."), (-1, 2)), ("int64", ()))
    batch = remove_padding(PadCollate(value=float(value)).collate(samples), leaves)
    assert (sample_hashes(batch, 255.0) == sample_hashes(collate_ragged(samples), 255.0)).all()


@given(LENGTHS, st.data())
def test_sample_hash_depends_on_the_length(lengths, data):
    changed = list(lengths)
    place = data.draw(st.integers(0, len(lengths) - 1))
    changed[place] += data.draw(st.integers(1, 3))
    before, after = (
        sample_hashes(
            collate_ragged([(torch.zeros(length, dtype=torch.int64), 0) for length in sizes]), None
        )
        for sizes in (lengths, changed)
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
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(each, id=name, marks=pytest.mark.heavy if "spawned" in name else ())
        for name, each in SETTINGS.items()
    ],
)
def test_gate_accepts_a_correct_loader_of_texts(prepared_job, overrides):
    job, prepared = prepared_job(*JOB, *overrides)
    assert prepared.sample == (("int64", (-1,)), ("int64", ()))
    check_data(
        prepared, with_sample_lengths(job.plan(0), prepared), load_epoch(job, prepared), epoch=0
    )


def cut_last_element(padded, lengths, labels):
    lengths = (lengths - 1).clamp(min=1)
    return (padded[:, : int(lengths.max())], lengths), labels


def cut_last_element_silently(padded, lengths, labels):
    padded = padded.clone()
    padded[torch.arange(len(padded)), lengths - 1] = 0
    return (padded, lengths), labels


def pad_inside(padded, lengths, labels):
    padded = padded.roll(1, dims=1)
    padded[:, 0] = 0
    return (padded, lengths), labels


def pad_in_front(padded, lengths, labels):
    rows = zip(padded, lengths.tolist(), strict=True)
    return (torch.stack([row.roll(len(row) - length) for row, length in rows]), lengths), labels


def count_padding_as_data(padded, lengths, labels):
    return (padded, torch.full_like(lengths, padded.shape[1])), labels


def roll_lengths(padded, lengths, labels):
    return (padded, lengths.roll(1)), labels


def exceed_lengths(padded, lengths, labels):
    return (padded, lengths + padded.shape[1]), labels


def negate_lengths(padded, lengths, labels):
    return (padded, -lengths), labels


def change_dtype_of_lengths(padded, lengths, labels):
    return (padded, lengths.int()), labels


def drop_one_length(padded, lengths, labels):
    return (padded, lengths[1:]), labels


def list_lengths(padded, lengths, labels):
    return (padded, lengths.tolist()), labels


def keep_first_element(padded, lengths, labels):
    return (padded[:, 0], lengths), labels


def drop_lengths(padded, lengths, labels):
    return padded, labels


def change_labels(padded, lengths, labels):
    return (padded, lengths), labels + 1


def roll_labels(padded, lengths, labels):
    return (padded, lengths), labels.roll(1)


def change_dtype(padded, lengths, labels):
    return (padded.int(), lengths), labels


def add_dimension(padded, lengths, labels):
    return (padded[..., None], lengths), labels


CORRUPTIONS = [
    cut_last_element,
    cut_last_element_silently,
    pad_inside,
    pad_in_front,
    count_padding_as_data,
    roll_lengths,
    exceed_lengths,
    negate_lengths,
    change_dtype_of_lengths,
    drop_one_length,
    list_lengths,
    drop_lengths,
    change_labels,
    roll_labels,
    change_dtype,
    add_dimension,
    keep_first_element,
]


@pytest.mark.parametrize("corrupt", CORRUPTIONS)
def test_gate_rejects_wrong_texts_or_lengths(prepared_job, corrupt):
    job, prepared = prepared_job(*JOB)
    batches = (corrupt(*source, labels) for source, labels in load_epoch(job, prepared))
    with pytest.raises(Invalid):
        check_data(prepared, job.plan(0), batches, epoch=0)


def test_gate_names_changed_labels(prepared_job):
    job, prepared = prepared_job(*JOB)
    batches = (change_labels(*source, labels) for source, labels in load_epoch(job, prepared))
    with pytest.raises(Invalid, match=r"the samples or their labels are not the dataset's$"):
        check_data(prepared, job.plan(0), batches, epoch=0)


def test_gate_rejects_reused_dropped_and_repeated_batches(prepared_job):
    job, prepared = prepared_job(*JOB)
    batches = list(load_epoch(job, prepared))

    def reuse_buffer():
        buffer = torch.zeros(BATCH, 60, dtype=torch.int64)
        for (padded, lengths), labels in batches:
            buffer[: len(padded), : padded.shape[1]] = padded
            yield (buffer[: len(padded)], lengths), labels

    for wrong_batches in (reuse_buffer(), batches[1:], [batches[0], *batches[:-1]]):
        with pytest.raises(Invalid):
            check_data(prepared, job.plan(0), wrong_batches, epoch=0)


def test_gate_ignores_the_amount_and_values_of_padding(prepared_job):
    job, prepared = prepared_job(*JOB)

    def pad_more():
        for (padded, lengths), labels in load_epoch(job, prepared):
            wide = torch.full((len(padded), 100), 9)
            wide[:, : padded.shape[1]] = padded
            yield (wide, lengths), labels

    check_data(prepared, job.plan(0), pad_more(), epoch=0)


# -- prepare


def test_prepare_stores_lengths_and_the_mean_sample_size(prepared_job):
    job, prepared = prepared_job(*JOB)
    samples = job.dataset.open()
    lengths = [len(samples[index][0]) for index in range(len(samples))]
    assert sample_lengths(prepared).tolist() == lengths
    # tokens, the length and the label
    assert prepared.sample_nbytes == round(8 * np.mean(lengths) + 16)


class Pieces:
    """Samples with two leaves of variable length, one of them scaled from uint8."""

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


def test_gate_accepts_several_leaves_of_variable_length(outputs):
    job, prepared = compose_job("collate=pad", "batch_size=4"), prepare(Pieces(), None)
    assert prepared.sample == (("int64", ()), ("float32", (-1, 2)), ("int64", (-1,)))
    assert sample_lengths(prepared).max() == 3
    check_data(prepared, job.plan(0), load_epoch(job, prepared), epoch=0)

    def scale_by_reciprocal():
        for batch in load_epoch(job, prepared):
            pixels, lengths = batch["pixels"]
            yield batch | {"pixels": ((pixels * 255).round() * (1 / 255), lengths)}

    check_data(prepared, job.plan(0), scale_by_reciprocal(), epoch=0)
    swapped = (batch | {"pixels": batch["tokens"]} for batch in load_epoch(job, prepared))
    with pytest.raises(Invalid):
        check_data(prepared, job.plan(0), swapped, epoch=0)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ((torch.zeros(2, 3, dtype=torch.int64), 0), r"0 is \(int64\[\*\], int\), 1 is .*\[\*, 3\]"),
        ((torch.zeros(2), 0), r"0 is \(int64\[\*\], int\), 1 is \(float32\[\*\], int\)"),
        ((torch.zeros(2, dtype=torch.int64),), r"0 is .*, 1 is \(int64\[\*\],\)"),
    ],
)
def test_prepare_names_samples_that_differ_in_more_than_length(outputs, odd, message):
    samples = [(torch.zeros(3, dtype=torch.int64), 0), odd]
    with pytest.raises(BadData, match=f"samples differ: {message}"):
        prepare(Pieces(samples), None)


def test_prepare_rejects_ragged_samples_without_a_length(outputs):
    with pytest.raises(BadData, match="no leaf of the samples has a dimension"):
        prepare(Pieces([(0, 1), (2, 3)]), None)


def test_decoding_in_a_process_keeps_ragged_samples_and_order(outputs):
    dataset = Pieces()
    chunks = collate_chunks(dataset.open(), 5, num_workers=1, ragged=True)
    hashes = np.concatenate([sample_hashes(chunk.batch, 255.0) for chunk in chunks])
    assert (hashes == reference_hashes(prepare(dataset, None))).all()


def test_reference_of_an_older_format_is_written_again(outputs, monkeypatch):
    job = compose_job("dataset=digits")
    with monkeypatch.context() as older:
        older.setattr("fastloop.data.prepare_dataset.REFERENCE_VERSION", 1)
        folder = prepare(job.dataset, None).reference
    before = (folder / "sealed.json").stat().st_mtime_ns
    assert prepare(job.dataset, None).reference == folder
    assert (folder / "sealed.json").stat().st_mtime_ns != before


# -- supported combinations


SAME = "dataset digits does not declare that its samples differ in length"
UNSUPPORTED = {
    ("dataset=texts",): "dataset texts: samples differ in length: use collate=pad",
    ("dataset=texts", "collate=skip_broken"): "use collate=pad",
    ("dataset=texts", "collate=pad"): "benchmark=training",
    ("dataset=digits", "collate=pad"): f"collate=pad: {SAME}",
    ("dataset=digits", "order=buckets"): f"order=buckets: {SAME}",
}


@pytest.mark.parametrize("overrides", UNSUPPORTED, ids=" ".join)
def test_check_support_rejects_unsuitable_options_for_texts(outputs, overrides):
    with pytest.raises(Unsupported, match=UNSUPPORTED[overrides]):
        check_support(compose_job(*overrides))
    assert not outputs.exists()


@pytest.mark.parametrize("loader", options("loader"))
def test_store_rejects_ragged_samples(outputs, loader):
    job = compose_job(*JOB, f"loader={loader}")
    if job.loader.store is not None:
        with pytest.raises(Unsupported, match="texts differ; loader=raw reads it"):
            prepare(job.dataset, job.loader.store)
        assert not outputs.exists()


@pytest.mark.parametrize("order", ["random", "buckets"])
def test_traversal_delivers_all_texts(prepared_job, order):
    job, prepared = prepared_job(*JOB, f"order={order}", "epochs=2")
    trial = run_trial(job, prepared, 0, now_ns())
    measurement = trial.benchmarks["traversal"]
    assert measurement.samples == 2 * 203
    assert measurement.limit_samples_per_s is None  # rows of several lengths are not gathered
    assert len(run_instrumentation(job, prepared, "traversal").wait_s) == -(-203 // BATCH)
    messages = option_caveats(job, prepared.sample_nbytes, prepared.num_samples)
    assert [f"{prepared.sample_nbytes:,} bytes per sample" in message for message in messages] == [
        True
    ]


# -- buckets


def order_of(job, prepared):
    return with_sample_lengths(job.plan(0), prepared).order


def padding(job, prepared, epoch) -> float:
    """Elements of padding per element of a sample."""
    lengths = torch.from_numpy(sample_lengths(prepared))
    plan = with_sample_lengths(job.plan(0), prepared)
    batches = list(index_batches(plan, prepared.num_samples, epoch))
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    return padded / int(lengths.sum()) - 1


LARGER = ("dataset=texts", "dataset.count=2000", "collate=pad", "batch_size=16")


def test_buckets_leave_little_padding_in_every_epoch(prepared_job):
    random, prepared = prepared_job(*LARGER)
    buckets, _ = prepared_job(*LARGER, "order=buckets", "order.bucket_size=800")
    for epoch in range(3):
        assert padding(buckets, prepared, epoch) < padding(random, prepared, epoch) / 10


def test_delivered_batches_have_the_predicted_padding(prepared_job):
    waste = {}
    for order in ("random", "buckets"):
        job, prepared = prepared_job(*JOB, f"order={order}")
        sizes = [
            (padded.numel(), int(lengths.sum()))
            for (padded, lengths), _ in load_epoch(job, prepared)
        ]
        padded, real = map(sum, zip(*sizes, strict=True))
        waste[order] = padded / real - 1
        assert waste[order] == pytest.approx(padding(job, prepared, 0))
    assert waste["buckets"] < waste["random"]


@given(st.integers(1, 70), st.integers(1, 9), st.integers(1, 40), st.integers(0, 3))
def test_buckets_are_complete_and_sorted_inside(count, batch_size, bucket_size, epoch):
    option = BucketOrder(batch_size=batch_size, bucket_size=bucket_size)
    lengths = np.random.default_rng(count).integers(1, 9, count)
    order = option.with_lengths(lengths)
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
    assert len({tuple(indices.tolist()) for indices in orders}) == 3
    longest = [int(sample_lengths(prepared)[part].max()) for part in orders[0][:200].split(BATCH)]
    assert longest != sorted(longest)


def test_drop_last_with_buckets_omits_any_sample(prepared_job):
    job, prepared = prepared_job(*JOB, "order=buckets", "drop_last=true")
    plan, omitted = with_sample_lengths(job.plan(0), prepared), set()
    for epoch in range(40):
        delivered = torch.cat(list(index_batches(plan, 203, epoch)))
        assert len(delivered) == 200
        omitted |= set(range(203)) - set(delivered.tolist())
    assert len(omitted) > 60


def test_job_with_buckets_pickles_without_the_lengths(prepared_job):
    job, prepared = prepared_job(*JOB, "order=buckets")
    assert pickle.loads(pickle.dumps(job)) == job
    assert max(map(len, map(pickle.dumps, (job, prepared)))) < 4096
