"""Datasets that are at hand without a download: what every one keeps, and what each one is."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import optree
import pytest
import torch
from commands import fastloop
from options import MYDATASET, compose_job, options
from torch.utils.data import default_collate

from fastloop.config import ConfigError
from fastloop.digest import leaves_of
from fastloop.gate import check_data
from fastloop.job import check_support
from fastloop.prepared import prepare
from fastloop.spans import now_ns
from fastloop.trial import run_trial
from fastloop.types import BadData, Unsupported

TOKENS = ("dataset=tokens", "dataset.num_tokens=5000", "dataset.block_size=64")
UNLABELLED = {
    "nested": ("dataset=nested", "dataset.count=70", "dataset.size=4"),
    "integers": ("dataset=integers", "dataset.count=1000"),
    "tokens": TOKENS,
}
AT_HAND = UNLABELLED | {
    "synthetic": ("dataset=synthetic", "dataset.count=203", "dataset.shape=[2,5]"),
    "mydataset": MYDATASET,
    "digits": ("dataset=digits",),
}
TRAVERSAL = ("benchmark=traversal", "placement=recursive")


def dataset_of(*overrides: str):
    return compose_job(*overrides).dataset


def equal(one, other) -> bool:
    pairs = zip(optree.tree_leaves(one), optree.tree_leaves(other), strict=True)
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)


@pytest.mark.parametrize("name", AT_HAND)
def test_a_dataset_is_the_same_whoever_reads_it_and_in_which_order(outputs, name):
    dataset = dataset_of(*AT_HAND[name])
    assert dataset.fetch() == dataset_of(*AT_HAND[name]).fetch()
    samples, again = dataset.open(), pickle.loads(pickle.dumps(dataset)).open()
    last = len(samples) - 1
    assert equal(samples[last], again[last])
    assert equal(samples[0], again[0])
    assert not equal(samples[0], again[1])
    with pytest.raises(IndexError):
        samples[len(samples)]


@pytest.mark.parametrize("name", AT_HAND)
def test_samples_travel_to_a_worker_and_are_what_prepare_says(outputs, name):
    dataset = dataset_of(*AT_HAND[name])
    prepared = prepare(dataset, None)
    samples = dataset.open()
    samples[0]
    arrived = pickle.loads(pickle.dumps(samples))
    assert len(arrived) == len(samples) == prepared.num_samples
    assert equal(arrived[1], samples[1])
    assert leaves_of(default_collate([samples[1]])) == prepared.sample


@pytest.mark.parametrize("name", [one for one in AT_HAND if one not in ("mydataset", "digits")])
@pytest.mark.parametrize("loader", options("loader"))
def test_a_loader_delivers_any_tree_or_says_that_it_does_not(prepared_job, loader, name):
    where = (f"loader={loader}", "batch_size=16", *AT_HAND[name], *TRAVERSAL)
    try:
        job, prepared = prepared_job(*where)
        with job.loader.open(prepared, job.plan(0)) as epochs:
            check_data(prepared, job.plan(0), epochs(1), epoch=1)
    except Unsupported:
        assert name != "synthetic"
        assert loader not in ("raw", "np_memmap", "preload")


@pytest.mark.parametrize("name", UNLABELLED)
def test_a_whole_trial_of_samples_that_can_not_be_trained_on(prepared_job, name):
    job, prepared = prepared_job("loader=np_memmap", "epochs=1", *AT_HAND[name], *TRAVERSAL)
    measured = run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"]
    assert measured.samples == prepared.num_samples


@pytest.mark.parametrize("benchmark", ["all", "training"])
@pytest.mark.parametrize("name", UNLABELLED)
def test_training_on_them_is_unsupported_before_anything_is_prepared(name, benchmark):
    job = compose_job(*AT_HAND[name], f"benchmark={benchmark}")
    said = "model=toynet needs .* got samples without classes; benchmark=traversal takes any"
    with pytest.raises(Unsupported, match=said):
        check_support(job)


def test_training_on_integers_of_a_class_is_unsupported_before_anything_is_timed(prepared_job):
    job, prepared = prepared_job(*AT_HAND["synthetic"], "dataset.dtype=uint8", "benchmark=all")
    said = r"model=toynet needs .* got \(uint8\[2, 5\], int64\[\]\); benchmark=traversal takes any"
    with pytest.raises(Unsupported, match=said):
        run_trial(job, prepared, 0, now_ns())


@pytest.mark.slow
def test_a_command_that_can_not_train_says_so_in_one_line(tmp_path):
    done = fastloop(*UNLABELLED["nested"], cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("unsupported: model=toynet needs ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64"),
    ],
)
def test_synthetic_samples_have_any_shape_and_dtype(dtype):
    where = ("dataset=synthetic", f"dataset.dtype={dtype}", "dataset.shape=[3,1,50]")
    samples = dataset_of(*where, "dataset.num_classes=7").open()
    data = torch.stack([samples[index][0] for index in range(100)])
    labels = [samples[index][1] for index in range(100)]
    assert data.shape == (100, 3, 1, 50)
    assert data.dtype == getattr(torch, dtype)
    assert set(labels) == set(range(7))
    low, high = data.numpy().min(), data.numpy().max()
    if dtype == "bool" or data.is_floating_point():
        assert 0 <= float(low) < 0.01
        assert 0.99 < float(high) <= 1
    else:
        limits = np.iinfo(dtype)
        assert int(low) < limits.min + limits.max // 50
        assert int(high) > limits.max - limits.max // 50


def test_mydataset_is_of_arrays():
    with pytest.raises(ConfigError, match=r"^dataset\.shape=\[\]: "):
        dataset_of("dataset=mydataset", "dataset.shape=[]")


def test_synthetic_scalars_are_samples_too():
    sample, _ = dataset_of("dataset=synthetic", "dataset.shape=[]").open()[5]
    assert sample.shape == ()


def test_synthetic_samples_differ_by_index_and_seed():
    first, other = (
        dataset_of("dataset=synthetic", "dataset.shape=[4]", f"dataset.seed={seed}").open()
        for seed in (0, 1)
    )
    seen = {one[index][0].numpy().tobytes() for one in (first, other) for index in range(500)}
    assert len(seen) == 1000


def test_any_number_of_synthetic_samples_takes_no_memory():
    tracemalloc.start()
    samples = dataset_of("dataset=synthetic", f"dataset.count={10**12}").open()
    before = tracemalloc.get_traced_memory()[0]
    assert samples[10**12 - 1][0].shape == (3, 32, 32)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - before < 1 << 20


def test_nested_samples_are_those_of_seed_004():
    sample = dataset_of("dataset=nested", "dataset.size=224").open()[0]
    shapes = optree.tree_map(lambda leaf: tuple(leaf.shape), sample)
    image = (3, 224, 224)
    assert shapes == {
        "im": {"label": (1, 224, 224), "image": image},
        "cim": image,
        "pim": [image, image],
    }


def test_integers_are_their_own_indices():
    samples = dataset_of("dataset=integers").open()
    assert len(samples) == 300_000
    assert int(samples[123_456]) == 123_456
    assert samples[0].dtype == torch.int64


def token_file(folder, tokens) -> str:
    np.asarray(tokens, np.uint16).tofile(folder / "mine.bin")
    return f"dataset.path={folder}/mine.bin"


def test_tokens_are_windows_and_the_same_a_token_further_on(tmp_path):
    where = token_file(tmp_path, np.arange(50_000, 50_021))
    dataset = dataset_of("dataset=tokens", where, "dataset.block_size=5")
    dataset.fetch()
    samples = dataset.open()
    assert len(samples) == 4
    source, target = samples[3]
    assert source.tolist() == [50_015, 50_016, 50_017, 50_018, 50_019]
    assert target.tolist() == [50_016, 50_017, 50_018, 50_019, 50_020]
    assert source.dtype == target.dtype == torch.int64


@pytest.mark.parametrize(
    ("num_tokens", "stride", "count"),
    [(6, "null", 1), (10, "null", 1), (11, "null", 2), (6, 1, 1), (21, 1, 16), (21, 7, 3)],
)
def test_every_window_that_fits_is_a_sample(tmp_path, num_tokens, stride, count):
    where = token_file(tmp_path, np.arange(num_tokens))
    settings = ("dataset.block_size=5", f"dataset.stride={stride}")
    samples = dataset_of("dataset=tokens", where, *settings).open()
    assert len(samples) == count
    last = samples[count - 1][1]
    assert last.tolist() == list(range(last[0], last[0] + 5))
    assert last[-1] < num_tokens


def test_windows_that_overlap_much_are_not_written_as_a_store(outputs):
    wide = ("dataset=tokens", "loader=np_memmap", "benchmark=traversal")
    said = (
        r"^store=npy: dataset.stride=1 puts a token into 256 windows: "
        r"3,905 MiB for a file of 1\.9 MiB; "
        "loader=raw reads it$"
    )
    job = compose_job(*wide, "dataset.stride=1")
    with pytest.raises(Unsupported, match=said):
        check_support(job)
    with pytest.raises(Unsupported, match=said):
        prepare(job.dataset, job.loader.store)
    assert not outputs.exists()
    for allowed in ("dataset.stride=32", "dataset.stride=null"):
        check_support(compose_job(*wide, allowed))
    check_support(compose_job(*wide, "dataset.stride=1", "loader=raw"))
    job.dataset.fetch()
    mine = compose_job(*wide, "dataset.stride=1", f"dataset.path={job.dataset.file}")
    assert mine.dataset.overlap() == job.dataset.overlap()


def test_a_tokens_file_is_made_once_and_never_in_part(outputs):
    dataset = dataset_of(*TOKENS)
    first = dataset.fetch()
    before = dataset.file.stat().st_mtime_ns
    assert dataset.fetch() == first
    assert dataset.file.stat().st_mtime_ns == before
    assert dataset.file.stat().st_size == 10_000
    assert {path.suffix for path in dataset.file.parent.iterdir()} <= {".bin", ".lock"}


def test_a_map_of_tokens_is_opened_again_and_not_copied(outputs):
    dataset = dataset_of("dataset=tokens")
    dataset.fetch()
    samples = dataset.open()
    samples[0]
    assert len(pickle.dumps(samples)) < 1000


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (bytes(13), r"13 bytes are an odd number"),
        (bytes(10), r"it holds 5 tokens, a window takes 6 \(dataset.block_size=5"),
        (b"", r"it holds 0 tokens, a window takes 6"),
    ],
)
def test_a_tokens_file_that_can_not_be_used_is_named(outputs, tmp_path, content, said):
    (tmp_path / "mine.bin").write_bytes(content)
    where = ("dataset=tokens", f"dataset.path={tmp_path}/mine.bin", "dataset.block_size=5")
    with pytest.raises(BadData, match=rf"mine\.bin: {said}"):
        prepare(dataset_of(*where), None)


def test_a_window_longer_than_the_file_that_is_made_is_named(outputs):
    with pytest.raises(BadData, match=r"tokens-9\.bin: it holds 9 tokens, a window takes 257"):
        dataset_of("dataset=tokens", "dataset.num_tokens=9").fetch()


def test_a_missing_tokens_file_is_one_line_before_anything_is_made(outputs):
    with pytest.raises(ConfigError, match=r"dataset\.path=nowhere\.bin: Path does not point to a"):
        dataset_of("dataset=tokens", "dataset.path=nowhere.bin")
    assert not outputs.exists()


def test_a_folder_that_can_not_be_written_is_named(outputs):
    outputs.write_text("a file, where a folder is wanted")
    with pytest.raises(BadData, match=r"dataset.root=.*outputs/data: "):
        dataset_of(*TOKENS).fetch()
