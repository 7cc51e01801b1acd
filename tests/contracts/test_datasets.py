"""Datasets that need no download: the contract of all of them, and the content of each."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import optree
import pytest
import torch
from commands import run_fastloop
from options import MYDATASET, compose_job, options
from torch.utils.data import default_collate

from fastloop.config.messages import ConfigError
from fastloop.core.spans import now_ns
from fastloop.core.types import BadData, Unsupported
from fastloop.data.digest import leaves_of
from fastloop.data.prepare_dataset import prepare
from fastloop.data.same_data import check_data
from fastloop.trial.support import check_support
from fastloop.trial.timed_trial import run_trial

TOKENS = ("dataset=tokens", "dataset.num_tokens=5000", "dataset.block_size=64")
UNLABELLED = {
    "nested": ("dataset=nested", "dataset.count=70", "dataset.size=4"),
    "integers": ("dataset=integers", "dataset.count=1000"),
    "tokens": TOKENS,
    "table": ("dataset=table", "dataset.count=70", "dataset.columns=5"),
}
OFFLINE = UNLABELLED | {
    "synthetic": ("dataset=synthetic", "dataset.count=203", "dataset.shape=[2,5]"),
    "mydataset": MYDATASET,
    "digits": ("dataset=digits",),
    "slow_reads": ("dataset=slow_reads", "dataset.count=70", "dataset.latency_ms=0.1"),
}
TRAVERSAL = ("benchmark=traversal", "placement=recursive")


def dataset_of(*overrides: str):
    return compose_job(*overrides).dataset


def equal(first, second) -> bool:
    pairs = zip(optree.tree_leaves(first), optree.tree_leaves(second), strict=True)
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)


@pytest.mark.parametrize("name", OFFLINE)
def test_dataset_copies_return_the_same_samples_in_any_order(outputs, name):
    dataset = dataset_of(*OFFLINE[name])
    assert dataset.fetch() == dataset_of(*OFFLINE[name]).fetch()
    samples, copy = dataset.open(), pickle.loads(pickle.dumps(dataset)).open()
    last = len(samples) - 1
    assert equal(samples[last], copy[last])
    assert equal(samples[0], copy[0])
    assert not equal(samples[0], copy[1])
    with pytest.raises(IndexError):
        samples[len(samples)]


@pytest.mark.parametrize("name", OFFLINE)
def test_samples_survive_pickling_and_match_what_prepare_recorded(outputs, name):
    dataset = dataset_of(*OFFLINE[name])
    prepared = prepare(dataset, None)
    samples = dataset.open()
    samples[0]
    arrived = pickle.loads(pickle.dumps(samples))
    assert len(arrived) == len(samples) == prepared.num_samples
    assert equal(arrived[1], samples[1])
    assert leaves_of(default_collate([samples[1]])) == prepared.sample


@pytest.mark.parametrize("name", [name for name in OFFLINE if name not in ("mydataset", "digits")])
@pytest.mark.parametrize("loader", options("loader"))
def test_loader_delivers_any_tree_or_reports_unsupported(prepared_job, loader, name):
    overrides = (f"loader={loader}", "batch_size=16", *OFFLINE[name], *TRAVERSAL)
    try:
        job, prepared = prepared_job(*overrides)
        with job.loader.open(prepared, job.plan(0)) as epochs:
            check_data(prepared, job.plan(0), epochs(1), epoch=1)
    except Unsupported:
        assert name != "synthetic"
        assert loader not in ("raw", "np_memmap", "preload")


@pytest.mark.parametrize("name", UNLABELLED)
def test_traversal_trial_runs_on_samples_without_classes(prepared_job, name):
    job, prepared = prepared_job("loader=np_memmap", "epochs=1", *OFFLINE[name], *TRAVERSAL)
    measurement = run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"]
    assert measurement.samples == prepared.num_samples


@pytest.mark.parametrize("benchmark", ["all", "training"])
@pytest.mark.parametrize("name", UNLABELLED)
def test_training_on_unlabelled_samples_is_rejected_before_preparation(name, benchmark):
    job = compose_job(*OFFLINE[name], f"benchmark={benchmark}")
    message = "model=toynet needs .* got samples without classes; benchmark=traversal takes any"
    with pytest.raises(Unsupported, match=message):
        check_support(job)


def test_training_on_integer_inputs_is_rejected_before_timing(prepared_job):
    job, prepared = prepared_job(*OFFLINE["synthetic"], "dataset.dtype=uint8", "benchmark=all")
    message = (
        r"model=toynet needs .* got \(uint8\[2, 5\], int64\[\]\); benchmark=traversal takes any"
    )
    with pytest.raises(Unsupported, match=message):
        run_trial(job, prepared, 0, now_ns())


@pytest.mark.slow
def test_command_reports_unsupported_training_in_one_line(tmp_path):
    process = run_fastloop(*UNLABELLED["nested"], cwd=tmp_path)
    assert process.returncode == 1
    assert process.stderr.startswith("unsupported: model=toynet needs ")
    assert process.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
    ],
)
def test_synthetic_samples_have_any_shape_and_dtype(dtype):
    overrides = ("dataset=synthetic", f"dataset.dtype={dtype}", "dataset.shape=[3,1,50]")
    samples = dataset_of(*overrides, "dataset.num_classes=7").open()
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


def test_mydataset_rejects_an_empty_shape():
    with pytest.raises(ConfigError, match=r"^dataset\.shape=\[\]: "):
        dataset_of("dataset=mydataset", "dataset.shape=[]")


def test_synthetic_samples_may_be_scalars():
    sample, _ = dataset_of("dataset=synthetic", "dataset.shape=[]").open()[5]
    assert sample.shape == ()


def test_synthetic_samples_differ_by_index_and_seed():
    first, other = (
        dataset_of("dataset=synthetic", "dataset.shape=[4]", f"dataset.seed={seed}").open()
        for seed in (0, 1)
    )
    contents = {
        samples[index][0].numpy().tobytes() for samples in (first, other) for index in range(500)
    }
    assert len(contents) == 1000


def test_synthetic_samples_take_no_memory_for_any_count():
    tracemalloc.start()
    samples = dataset_of("dataset=synthetic", f"dataset.count={10**12}").open()
    before = tracemalloc.get_traced_memory()[0]
    assert samples[10**12 - 1][0].shape == (3, 32, 32)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - before < 1 << 20


def test_nested_samples_have_the_documented_tree():
    sample = dataset_of("dataset=nested", "dataset.size=224").open()[0]
    shapes = optree.tree_map(lambda leaf: tuple(leaf.shape), sample)
    image = (3, 224, 224)
    assert shapes == {
        "im": {"label": (1, 224, 224), "image": image},
        "cim": image,
        "pim": [image, image],
    }


def test_integers_sample_equals_its_index():
    samples = dataset_of("dataset=integers").open()
    assert len(samples) == 300_000
    assert int(samples[123_456]) == 123_456
    assert samples[0].dtype == torch.int64


def token_file(folder, tokens) -> str:
    np.asarray(tokens, np.uint16).tofile(folder / "mine.bin")
    return f"dataset.path={folder}/mine.bin"


def test_tokens_target_is_the_window_shifted_by_one_token(tmp_path):
    override = token_file(tmp_path, np.arange(50_000, 50_021))
    dataset = dataset_of("dataset=tokens", override, "dataset.block_size=5")
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
def test_tokens_yield_every_window_that_fits(tmp_path, num_tokens, stride, count):
    override = token_file(tmp_path, np.arange(num_tokens))
    settings = ("dataset.block_size=5", f"dataset.stride={stride}")
    samples = dataset_of("dataset=tokens", override, *settings).open()
    assert len(samples) == count
    last = samples[count - 1][1]
    assert last.tolist() == list(range(last[0], last[0] + 5))
    assert last[-1] < num_tokens


def test_windows_side_by_side_have_one_fingerprint(tmp_path):
    override = token_file(tmp_path, np.arange(21))

    def fingerprint_of(stride):
        settings = ("dataset.block_size=5", f"dataset.stride={stride}")
        return dataset_of("dataset=tokens", override, *settings).fetch()

    assert fingerprint_of("null") == fingerprint_of(5)
    assert len({fingerprint_of(stride) for stride in (1, 4, 5, 6)}) == 4


def test_store_rejects_tokens_whose_windows_overlap_much(outputs):
    overrides = ("dataset=tokens", "loader=np_memmap", "benchmark=traversal")
    message = (
        r"^store=npy: dataset.stride=1 puts a token into 256 windows: "
        r"3,905 MiB for a file of 1\.9 MiB; "
        "loader=raw reads it$"
    )
    job = compose_job(*overrides, "dataset.stride=1")
    with pytest.raises(Unsupported, match=message):
        check_support(job)
    with pytest.raises(Unsupported, match=message):
        prepare(job.dataset, job.loader.store)
    assert not outputs.exists()
    for allowed in ("dataset.stride=32", "dataset.stride=null"):
        check_support(compose_job(*overrides, allowed))
    check_support(compose_job(*overrides, "dataset.stride=1", "loader=raw"))
    job.dataset.fetch()
    user_file_job = compose_job(*overrides, "dataset.stride=1", f"dataset.path={job.dataset.file}")
    assert user_file_job.dataset.reason_against_store() == job.dataset.reason_against_store()


def test_tokens_file_is_created_once_and_atomically(outputs):
    dataset = dataset_of(*TOKENS)
    first = dataset.fetch()
    before = dataset.file.stat().st_mtime_ns
    assert dataset.fetch() == first
    assert dataset.file.stat().st_mtime_ns == before
    assert dataset.file.stat().st_size == 10_000
    assert {path.suffix for path in dataset.file.parent.iterdir()} <= {".bin", ".lock"}


def test_tokens_pickle_without_their_memory_map(outputs):
    dataset = dataset_of("dataset=tokens")
    dataset.fetch()
    samples = dataset.open()
    samples[0]
    assert len(pickle.dumps(samples)) < 1000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(13), r"13 bytes, an odd number"),
        (bytes(10), r"it holds 5 tokens, a window takes 6 \(dataset.block_size=5"),
        (b"", r"it holds 0 tokens, a window takes 6"),
    ],
)
def test_tokens_name_a_file_that_cannot_be_used(outputs, tmp_path, content, message):
    (tmp_path / "mine.bin").write_bytes(content)
    overrides = ("dataset=tokens", f"dataset.path={tmp_path}/mine.bin", "dataset.block_size=5")
    with pytest.raises(BadData, match=rf"mine\.bin: {message}"):
        prepare(dataset_of(*overrides), None)


def test_tokens_reject_a_window_longer_than_the_generated_file(outputs):
    with pytest.raises(BadData, match=r"tokens-9\.bin: it holds 9 tokens, a window takes 257"):
        dataset_of("dataset=tokens", "dataset.num_tokens=9").fetch()


def test_tokens_report_a_missing_file_before_writing_anything(outputs):
    with pytest.raises(
        ConfigError, match=r"dataset\.path=nowhere\.bin: allowed: the path of a file"
    ):
        dataset_of("dataset=tokens", "dataset.path=nowhere.bin")
    assert not outputs.exists()


GENERATED = (MYDATASET, TOKENS, ("dataset=photos", "dataset.count=2"), ("dataset=texts",))


@pytest.mark.parametrize("overrides", GENERATED, ids=lambda each: each[0])
def test_generated_data_is_not_written_between_files_of_the_users(tmp_path, overrides):
    root = tmp_path / "mine"
    root.mkdir()
    (root / "holiday.jpg").write_bytes(b"mine")
    message = rf"^dataset.root={root}: it holds files, .*; allowed: a new or an empty folder; "
    with pytest.raises(BadData, match=message):
        dataset_of(*overrides, f"dataset.root={root}").fetch()
    assert [path.name for path in root.iterdir()] == ["holiday.jpg"]


def test_generated_data_shares_a_folder_that_fastloop_has_made(tmp_path):
    root = tmp_path / "generated"
    for overrides in (MYDATASET, TOKENS):
        dataset_of(*overrides, f"dataset.root={root}").fetch()
    names = {path.name for path in root.iterdir() if not path.name.startswith(".")}
    assert len(names) == 2


def test_tokens_name_a_root_that_is_not_writable(outputs):
    outputs.write_text("a file in place of a folder")
    with pytest.raises(BadData, match=r"dataset.root=.*outputs/data: "):
        dataset_of(*TOKENS).fetch()
