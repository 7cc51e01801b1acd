"""The limit of cropped images: of the job's crops, by the faster of two decoders, or a reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from image_samples import crop, jpeg, photograph, png, write_class_folders, write_files
from native_jpeg import needs_jpeg
from options import compose_job

from fastloop.core.cgroup import usable_cores
from fastloop.core.spans import now_ns
from fastloop.core.types import BadData
from fastloop.data.cropped_dataset import CroppedSamples
from fastloop.data.image_pixels import decode_rgb
from fastloop.fastloader.columns.decoders import decode_by_pillow
from fastloop.trial import crop_limit as limit_module
from fastloop.trial import limits
from fastloop.trial.crop_limit import NATIVE_DECODER, CropMaking, DecodedCrops, crop_limit
from fastloop.trial.timed_trial import run_trial

SHORT = ("benchmark=traversal", "epochs=1", "batch_size=4", "min_window_s=0")
RANDOM = ("transform=random_resized_crop", "transform.size=[32,40]")
CENTER = ("transform=center_crop", "transform.size=[32,40]", "transform.resize=44")
FASTLOOP = ("loader=fastloop", "loader.store=null")
ENGINES = ("pil", "torchvision")


def crop_job(root, *overrides: str):
    return compose_job(*SHORT, "dataset=image_folder", f"dataset.root={root}", *overrides)


def samples_in(root, *overrides: str) -> CroppedSamples:
    samples = crop_job(root, *(overrides or RANDOM)).dataset.open()
    assert isinstance(samples, CroppedSamples)
    return samples


def measure(samples: CroppedSamples, broken=()):
    return crop_limit(samples, set(broken), seed=0, window_s=0.0)


@needs_jpeg
@pytest.mark.parametrize("transform", [RANDOM, CENTER], ids=["random", "center"])
@pytest.mark.parametrize(
    "loader",
    [("loader=raw",), ("loader=raw", "decoder=torchvision"), FASTLOOP],
    ids=["raw", "raw, torchvision", "fastloop"],
)
def test_limit_of_a_job_of_crops_is_of_making_them(outputs, tmp_path, loader, transform):
    job = crop_job(write_class_folders(tmp_path / "images"), *loader, *transform)
    prepared = job.data_request.prepare()
    measured = run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"]
    assert measured.limit_origin.kind == "cropped images"
    assert measured.limit_origin.engine in (NATIVE_DECODER, *ENGINES)
    assert measured.limit_origin.cores == usable_cores()
    assert measured.limit_fraction > 0
    assert limits.missing_limits(job) == []


def test_limit_of_center_crops_in_a_store_is_of_rows(outputs, tmp_path):
    root = write_class_folders(tmp_path / "images")
    job = crop_job(root, "loader=np_memmap", *CENTER)
    prepared = job.data_request.prepare()
    measured = run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"]
    assert measured.limit_origin.kind == "rows"


@pytest.mark.parametrize("transform", [RANDOM, CENTER], ids=["random", "center"])
def test_without_the_native_decoder_there_is_no_limit_but_its_reason(
    outputs, tmp_path, monkeypatch, transform
):
    for module in (limit_module, limits):
        monkeypatch.setattr(module, "has_jpeg", lambda: False)
    root = write_class_folders(tmp_path / "images")
    job = crop_job(root, "loader=raw", *transform)
    measured = run_trial(job, job.data_request.prepare(), 0, now_ns())
    assert measured.benchmarks["traversal"].limit_origin is None
    (caveat,) = limits.missing_limits(job)
    assert caveat.startswith("traversal: limit unsupported: the native decoder")
    assert "libjpeg62-turbo-dev" in caveat
    for others in (("loader=np_memmap", *CENTER), ("loader=raw", "dataset.size=[9,9]")):
        assert limits.missing_limits(crop_job(root, *others)) == []


def own_crops(samples: CroppedSamples) -> DecodedCrops:
    return DecodedCrops(samples, [samples.images.read_file(k) for k in range(len(samples))])


def test_decoded_crops_are_those_of_the_dataset(tmp_path):
    samples = replace(samples_in(write_class_folders(tmp_path)), seed=5)
    own = own_crops(samples)
    out = np.empty((3, own.spec.nbytes), np.uint8)
    indices = np.array([4, 0, 4])
    own.fill(indices, out)
    keys = limit_module.random_bits(indices, 5).tolist()
    for row, index, key in zip(own.spec.view_tensor(out), indices.tolist(), keys, strict=True):
        assert np.array_equal(row, samples.make(index, key)[0])


@pytest.mark.parametrize("per_call", [1, 8])
def test_every_thread_counts_its_crops_and_begins_with_another_file(tmp_path, per_call):
    own = own_crops(samples_in(write_class_folders(tmp_path)))
    filled = []

    class Recorded:
        spec = own.spec

        def __len__(self) -> int:
            return len(own)

        def fill(self, indices, out) -> None:
            filled.append(indices.tolist())
            own.fill(indices, out)

    making = CropMaking(Recorded(), per_call, threads=2)
    assert [making.run(thread, stop_ns=0) for thread in (0, 1)] == [per_call, per_call]
    assert filled == [[(3 * thread + k) % 6 for k in range(per_call)] for thread in (0, 1)]


class BlackDecoder:
    """Delivers other pixels than all others, of the same size."""

    def library(self) -> str:
        return "black"

    def decode(self, data: bytes) -> np.ndarray:
        return np.zeros_like(decode_rgb(data, decode_by_pillow))


@needs_jpeg
def test_native_decoder_with_other_pixels_is_no_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(CropMaking, "rate", lambda making, _: float(making.per_call))
    samples = samples_in(write_class_folders(tmp_path))
    assert measure(samples).origin.engine == NATIVE_DECODER
    black = replace(samples, images=replace(samples.images, decoder=BlackDecoder()))
    assert measure(black).origin.engine == "test_crop_limit"


class AnyDecoder:
    """Makes something of whatever Pillow can't read."""

    def library(self) -> str:
        return "any"

    def decode(self, data: bytes) -> np.ndarray:
        try:
            return decode_rgb(data, decode_by_pillow)
        except BadData:
            return np.zeros((50, 60, 3), np.uint8)


@needs_jpeg
def test_native_decoder_that_cannot_read_a_file_is_no_limit(tmp_path):
    root = write_class_folders(tmp_path, 12)
    samples = samples_in(root)
    write_files(root, {samples.images.files[2][0]: jpeg(crop())[:200]})
    assert measure(samples, broken=[2]).origin.engine in (NATIVE_DECODER, "pil")
    tolerant = replace(samples, images=replace(samples.images, decoder=AnyDecoder()))
    assert measure(tolerant).origin.engine == "test_crop_limit"


@needs_jpeg
def test_files_that_the_native_decoder_leaves_to_pillow_have_a_limit(tmp_path):
    photos = {f"a/{k}.png": png(photograph().crop((k, k, 90 + k, 80))) for k in range(3)}
    limit = measure(samples_in(write_files(tmp_path, photos)))
    assert limit.samples_per_s > 0
    assert limit.origin.engine in (NATIVE_DECODER, "pil")
