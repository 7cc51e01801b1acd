"""Limits of loading: they count what they do, within bounded memory, and are of the job's work."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from image_samples import crop, jpeg, png, write_class_folders, write_faces, write_files
from options import require_library

from fastloop.core.cgroup import usable_cores
from fastloop.core.limit import LimitOrigin, merge_origins, typical_origin
from fastloop.core.machine_counters import LEAST_SECONDS, read_counters
from fastloop.core.machine_load import load_between
from fastloop.core.spans import now_ns
from fastloop.core.trees import read_bytes
from fastloop.data.image_files import LabelledImages
from fastloop.data.image_pixels import decode_rgb
from fastloop.fastloader.columns import decoders
from fastloop.options.decoder.pil import PilDecoder
from fastloop.trial import decode_limit, gather_limit, limits, rate_on_cores
from fastloop.trial.timed_trial import run_trial

CPU = torch.device("cpu")
SHORT = ("epochs=1", "batch_size=4", "min_window_s=0")
SIZE = "dataset.size=[32,32]"


def images_in(root, count=6, **settings) -> LabelledImages:
    write_class_folders(root, count)
    files = [(str(path.relative_to(root)), 0) for path in sorted(root.rglob("*.*"))]
    settings = {"decoder": PilDecoder(), "size": None} | settings
    return LabelledImages(root, files, **settings)


def limit_of(samples, broken=()):
    return decode_limit.decode_limit(samples, set(broken), seed=0, window_s=0.0)


def test_rate_is_what_each_thread_does_in_its_own_time(monkeypatch):
    ticks = iter([0, 2 * 10**9])  # one thread, which ends a second late
    monkeypatch.setattr(rate_on_cores, "now_ns", lambda: next(ticks))
    stops = []
    rate = rate_on_cores.rate_on_cores(lambda _, stop_ns: stops.append(stop_ns) or 100, 1, 10**9)
    assert (rate, stops) == (50, [10**9])


def test_rate_of_one_item_for_each_thread_is_that_of_an_item_of_mean_size(monkeypatch):
    ticks = iter([0, 10**9, 3 * 10**9])  # one item of one second, and one of three
    monkeypatch.setattr(rate_on_cores, "now_ns", lambda: next(ticks))
    assert rate_on_cores.rate_on_cores(lambda *_: 1, 2, 0) == 2 / 2.0


def test_every_core_works_on_one_thread_of_torch():
    threads = []
    rate_on_cores.rate_on_cores(
        lambda thread, _: threads.append((thread, torch.get_num_threads())) or 1, 3, 0
    )
    assert sorted(threads) == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.parametrize("name", gather_limit.gathers())
def test_gatherer_counts_its_rows_and_fetches_the_right_ones(name, monkeypatch):
    source = np.random.default_rng(0).integers(256, size=(100, 24), dtype=np.uint8)
    gatherer = gather_limit.gathers()[name](source, 7, 1)
    assert len(gatherer.batches) == 100 // 7
    ticks = iter([0, 0, 0, 10])
    monkeypatch.setattr(gather_limit, "now_ns", lambda: next(ticks))
    assert gatherer.run(stop_ns=10, reads=True) == 4 * 7
    assert np.array_equal(gatherer.out, source[np.asarray(gatherer.batches[3])])


def test_memcpy_copies_all_rows_in_order_and_every_thread_begins_elsewhere(monkeypatch):
    monkeypatch.setattr(gather_limit, "cores_of_rank", lambda: 2)
    source = np.random.default_rng(0).integers(256, size=(80, 24), dtype=np.uint8)
    copied = []
    for thread in range(2):
        copier = gather_limit._copy_in_order(source, 10, thread)
        copies = [(copier.gather(start), copier.out.copy())[1] for start in copier.batches]
        copied.append(np.concatenate(copies))
    assert np.array_equal(copied[0], source)
    assert np.array_equal(copied[1], np.roll(source, -40, axis=0))


def test_limit_of_rows_is_that_of_the_fastest_gather_and_tells_its_share_of_memcpy(monkeypatch):
    rates = {
        gather_limit._index_select: 30.0,
        gather_limit._np_take: 60.0,
        gather_limit._copy_in_order: 80.0,
    }
    monkeypatch.setattr(gather_limit, "_gather_rate", lambda make, *_: rates.get(make, 1))
    limit = limits.row_limit(1000, 64, 10, CPU, reads=False)
    assert limit.samples_per_s == 60
    assert limit.origin == LimitOrigin(
        kind="rows", engine="np.take", cores=usable_cores(), memcpy_fraction=0.75
    )


@pytest.mark.parametrize("name", gather_limit.conversions())
def test_converting_gatherer_makes_scaled_floats_of_the_right_rows(name):
    source = np.random.default_rng(0).integers(256, size=(100, 24), dtype=np.uint8)
    gatherer = gather_limit.conversions()[name](source, 7, 1)
    gatherer.gather(gatherer.batches[3])
    rows = source[np.asarray(gatherer.batches[3])].astype(np.float32)
    assert gatherer.out.dtype == np.float32
    assert np.allclose(gatherer.out, rows * gather_limit.FACTOR + gather_limit.OFFSET, rtol=1e-6)
    assert gatherer.run(stop_ns=0, reads=True) == 7


TO_FLOATS = "transform=peers/to_floats"


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (["loader=np_memmap"], "rows"),
        (["loader=np_memmap", TO_FLOATS], "converted rows"),
        (["loader=peers/fastloop_converting", TO_FLOATS], "converted rows"),
    ],
)
def test_limit_of_rows_that_become_floats_is_of_gathering_and_converting(
    prepared_job, settings, kind
):
    dataset = ("dataset=synthetic", "dataset.count=300", "dataset.dtype=uint8")
    shape = "dataset.shape=[1,8,8]"
    job, prepared = prepared_job(*SHORT, "benchmark=traversal", *dataset, shape, *settings)
    measured = run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"]
    assert measured.limit_origin.kind == kind
    engines = gather_limit.conversions() if kind == "converted rows" else gather_limit.gathers()
    assert measured.limit_origin.engine in engines


def test_limit_of_rows_restores_the_torch_thread_count():
    before = torch.get_num_threads()
    limit = limits.row_limit(1000, 64, 10, CPU, reads=False)
    assert limit.samples_per_s > 0
    assert limit.origin.engine in gather_limit.gathers()
    assert limit.origin.memcpy_fraction > 0
    assert torch.get_num_threads() == before


def test_limit_source_stays_within_256_mib(monkeypatch):
    sources = []
    monkeypatch.setattr(
        gather_limit, "_gather_rate", lambda _, source, *__: sources.append(source) or 1.0
    )
    limits.row_limit(10**9, 1 << 20, 64, CPU, reads=False)
    assert {source.nbytes for source in sources} == {256 << 20}


@dataclass(frozen=True)
class SlowDecoder:
    """Decodes each file as often as given, so that it is that many times slower than Pillow."""

    times: int

    def library(self) -> str:
        return "slow"

    def decode(self, data: bytes) -> np.ndarray:
        return [decode_rgb(data, decoders.decode_by_pillow) for _ in range(self.times)][-1]


FAR_SLOWER = 1000
"""Enough that no pause of a busy machine makes the other decoder the slower one: a file then takes
a tenth of a second."""


@pytest.mark.heavy
def test_decoder_that_takes_eight_times_as_long_reaches_an_eighth_of_the_limit(
    tmp_path, monkeypatch
):
    slow = images_in(tmp_path, decoder=SlowDecoder(8))
    pillow = {"pil": decode_limit.LIBRARIES["pil"]}
    monkeypatch.setattr(decode_limit, "LIBRARIES", pillow)
    shares = []
    for _ in range(7):
        before = read_counters()
        # Long enough for the system's counters to tell who else was busy.
        limit = decode_limit.decode_limit(slow, set(), seed=0, window_s=2 * LEAST_SECONDS)
        load = load_between(before, read_counters())
        # Only other programs can make the slow one look the faster.
        if limit.origin.engine != "pil":
            assert load.is_quiet is not True, load
            continue
        monkeypatch.setattr(decode_limit, "LIBRARIES", {})
        shares.append(limit_of(slow).samples_per_s / limit.samples_per_s)
        monkeypatch.setattr(decode_limit, "LIBRARIES", pillow)
    if len(shares) < 4:
        pytest.skip("other programs keep the machine busy")
    assert 1 / 16 < np.median(shares) < 1 / 4


def test_limit_is_of_the_fastest_decoder_that_is_installed(tmp_path, monkeypatch):
    samples = images_in(tmp_path, decoder=SlowDecoder(FAR_SLOWER))
    assert limit_of(samples).origin.engine in decode_limit.LIBRARIES
    monkeypatch.setattr(decode_limit, "LIBRARIES", {"absent": ("no_such_module_is_here", None)})
    assert limit_of(samples).origin.engine == "test_limits"


def decode_to_black(data, encoding):
    return np.zeros((48, 64, 3), np.uint8)


def test_decoder_with_other_pixels_is_no_limit(tmp_path, monkeypatch):
    black = {"black": ("numpy", decode_to_black)}
    monkeypatch.setattr(decode_limit, "LIBRARIES", black)
    assert limit_of(images_in(tmp_path)).origin.engine == "pil"
    write_files(tmp_path / "dark", {"0.png": png(crop().point(lambda _: 0))})
    dark = LabelledImages(tmp_path / "dark", [("0.png", 0)], PilDecoder(), None)
    assert limit_of(dark).origin.engine == "black"  # and it is where they are equal


def test_decoder_that_cannot_read_a_file_is_no_limit(tmp_path, monkeypatch):
    require_library("simplejpeg")
    jpeg_only = {"turbojpeg": decode_limit.LIBRARIES["turbojpeg"]}
    monkeypatch.setattr(decode_limit, "LIBRARIES", jpeg_only)
    samples = images_in(tmp_path, decoder=SlowDecoder(FAR_SLOWER))
    assert limit_of(samples).origin.engine == "turbojpeg"
    write_files(tmp_path, {"dog/7.png": png(crop())})
    mixed = replace(samples, files=[*samples.files, ("dog/7.png", 0)])
    assert limit_of(mixed).origin.engine == "test_limits"


def test_samples_that_cannot_be_decoded_are_left_out(tmp_path):
    samples = images_in(tmp_path)
    write_files(tmp_path, {samples.files[2][0]: jpeg(crop())[:200]})
    assert limit_of(samples, broken=[2]).samples_per_s > 0


@dataclass(frozen=True)
class LargeFiles:
    """Samples whose files are of 10 MiB each, and hold nothing."""

    num_read: list

    def __len__(self) -> int:
        return 1000

    def read_file(self, index: int) -> bytes:
        self.num_read.append(index)
        return bytes(10 << 20)

    def decode_file(self, data: bytes) -> np.ndarray:
        return np.zeros((1, 1, 3), np.uint8)


@pytest.mark.parametrize(("cores", "most"), [(2, 13), (20, 20)])
def test_files_stay_within_128_mib_but_one_for_each_thread(cores, most):
    samples = LargeFiles([])
    files = decode_limit.read_files(samples, set(), seed=0, least=cores)
    assert min(cores, 13) <= len(files) <= most
    assert len(set(samples.num_read)) == len(files)


@pytest.mark.parametrize("is_set_by_the_job", [False, True])
def test_number_of_opencvs_threads_is_the_jobs(tmp_path, is_set_by_the_job):
    cv2 = require_library("cv2")
    before = cv2.getNumThreads()
    decoders.load_opencv.cache_clear()
    try:
        cv2.setNumThreads(3)
        if is_set_by_the_job:
            decoders.load_opencv()
        expected = cv2.getNumThreads()
        limit_of(images_in(tmp_path))
        assert cv2.getNumThreads() == expected
        decoders.load_opencv()
        assert cv2.getNumThreads() == 1
    finally:
        cv2.setNumThreads(before)
        decoders.load_opencv.cache_clear()


@pytest.mark.parametrize(
    ("loader", "kind"),
    [
        (["loader=raw"], "decoded images"),
        pytest.param(
            ["loader=raw", "decoder=turbojpeg", "collate=fast"],
            "decoded images",
            marks=pytest.mark.heavy,
        ),
        (["loader=fastloop", "loader.store=null"], "decoded images"),
        pytest.param(["loader=np_memmap"], "rows", marks=pytest.mark.heavy),
        (["loader=fastloop"], "rows"),
    ],
)
def test_limit_of_an_image_job_is_of_the_work_that_its_loader_does(
    prepared_job, tmp_path, loader, kind
):
    write_class_folders(tmp_path / "images", 40)
    dataset = ("dataset=image_folder", f"dataset.root={tmp_path / 'images'}", SIZE)
    job, prepared = prepared_job(*SHORT, "benchmark=all", *dataset, *loader)
    trials = [run_trial(job, prepared, number, now_ns()) for number in range(5)]
    trial = trials[0]
    measured = trial.benchmarks["traversal"]
    assert measured.limit_origin.kind == kind
    assert measured.limit_origin.cores == usable_cores()
    engines = decode_limit.LIBRARIES if kind == "decoded images" else gather_limit.gathers()
    assert measured.limit_origin.engine in engines
    assert (measured.limit_origin.memcpy_fraction is None) == (kind == "decoded images")
    if kind == "decoded images":
        # A window takes a few milliseconds, and other work may have slowed the limit of one.
        fractions = [each.benchmarks["traversal"].limit_fraction for each in trials]
        assert 0.001 < np.median(fractions) < 1.1
    assert trial.benchmarks["training"].limit_origin == LimitOrigin(kind="steps")


def test_limit_of_images_with_landmarks_is_of_decoding(prepared_job, tmp_path):
    dataset = ("dataset=csv_images", f"dataset.csv_file={write_faces(tmp_path)}", SIZE)
    job, prepared = prepared_job(*SHORT, "benchmark=traversal", *dataset, "loader=raw")
    measured = run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"]
    assert measured.limit_origin.kind == "decoded images"


def test_origin_of_ranks_has_all_of_their_cores():
    ranks = [
        LimitOrigin(kind="rows", engine=engine, cores=2, memcpy_fraction=share)
        for engine, share in (("np.take", 0.5), ("index_select", 0.7))
    ]
    merged = merge_origins(ranks)
    assert merged.memcpy_fraction == pytest.approx(0.6)
    assert (merged.kind, merged.engine, merged.cores) == ("rows", "index_select, np.take", 4)
    assert merge_origins([None, None]) is None


def test_typical_origin_is_that_of_most_trials():
    fast = [LimitOrigin(kind="rows", engine="a", cores=2, memcpy_fraction=s) for s in (0.2, 0.4)]
    slow = LimitOrigin(kind="rows", engine="b", cores=2, memcpy_fraction=0.9)
    typical = typical_origin([fast[0], slow, None, fast[1]])
    assert typical.memcpy_fraction == pytest.approx(0.3)
    assert (typical.kind, typical.engine, typical.cores) == ("rows", "a", 2)
    assert typical_origin([None]) is None


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(()),
        torch.zeros(0, 3),
        torch.ones(3, 5, dtype=torch.uint8)[1:],
        torch.ones(9, dtype=torch.bfloat16),
        torch.ones(4, 6).t(),
        torch.ones(3, dtype=torch.bool),
    ],
)
def test_read_bytes_accepts_any_tensor(tensor):
    assert read_bytes((tensor, {"nested": [tensor]})) == 2 * tensor.numel() * tensor.itemsize


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
def test_limit_on_cuda_is_below_a_terabyte_per_second():
    on_gpu = limits.row_limit(10_000, 3136, 256, torch.device("cuda"), reads=False)
    assert 0 < on_gpu.samples_per_s * 3136 < 1e12
