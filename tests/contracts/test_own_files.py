"""Datasets that are read by their path: known content, files that others wrote, and refusals."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run_fastloop
from options import compose_job, require_library
from own_files import COUNT, IMAGES, LABELS, WRITERS, jpeg, write_parquet, write_webdataset
from PIL import Image

from fastloop.config.catalogue import groups
from fastloop.core.types import BadData, Unsupported
from fastloop.data.dataset_files import own_path
from fastloop.data.prepare_dataset import prepare
from fastloop.data.same_data import check_data

INPUTS = {
    "parquet": ("dataset.columns=[image]", "dataset.label_column=label"),
    "hf_arrow": ("dataset.label_column=label",),
    "zarr": ("dataset.label_array=label",),
    "webdataset": ("dataset.fields=[input.npy,cls]",),
}
ORDER = {"webdataset": [*range(0, COUNT, 3), *range(1, COUNT, 3), *range(2, COUNT, 3)]}
"""Samples in the order in which they lie in the files, where it is another one."""


def dataset_of(name, path, *settings):
    return compose_job(f"dataset={name}", f"dataset.path={path}", *settings).dataset


def write(name, folder):
    return write_parquet(folder) if name == "parquet" else WRITERS[name](folder)


@pytest.mark.parametrize("name", WRITERS)
def test_samples_are_the_rows_that_were_written(outputs, tmp_path, name):
    dataset = dataset_of(name, write(name, tmp_path), *INPUTS[name])
    assert dataset.fetch() == dataset.fetch()
    samples = dataset.open()
    copy = pickle.loads(pickle.dumps(samples))
    assert len(samples) == len(copy) == COUNT
    for place, index in enumerate(ORDER.get(name, range(COUNT))):
        for image, label in (samples[place], copy[place]):
            assert torch.equal(image, torch.from_numpy(IMAGES[index]))
            assert int(label) == LABELS[index]
    with pytest.raises(IndexError):
        samples[COUNT]
    with pytest.raises(IndexError):
        samples[-1]


@pytest.mark.parametrize(
    "settings",
    [("loader=raw",), ("loader=raw", "num_workers=2"), ("loader=np_memmap",), ("loader=fastloop",)],
    ids=" ".join,
)
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_loaders_deliver_files_of_the_users_own(outputs, tmp_path, name, settings):
    path = write(name, tmp_path)
    overrides = (f"dataset={name}", f"dataset.path={path}", *INPUTS[name], "batch_size=8")
    job = compose_job(*overrides, *settings)
    prepared = prepare(job.dataset, job.loader.store)
    assert prepared.num_classes == 5
    assert not prepared.random
    with job.loader.open(prepared, job.plan(0)) as epochs:
        check_data(prepared, job.plan(0), epochs(1), epoch=1)


@pytest.mark.parametrize("name", ["parquet", "hf_arrow"])
def test_batch_of_rows_equals_single_rows(outputs, tmp_path, name):
    samples = dataset_of(name, write(name, tmp_path), *INPUTS[name]).open()
    indices = [30, 2, 2, 36, 11]
    single = [samples[index] for index in indices]
    for row, sample in zip(samples.__getitems__(indices), single, strict=True):
        assert all(map(torch.equal, row, sample))


def test_parquet_columns_are_a_dict_or_one_vector(outputs, tmp_path):
    columns = ("dataset.columns=[weight,flag]", "dataset.label_column=label")
    path = write_parquet(tmp_path)
    inputs, label = dataset_of("parquet", path, *columns).open()[7]
    assert {name: leaf.dtype for name, leaf in inputs.items()} == {
        "weight": torch.float64,
        "flag": torch.bool,
    }
    assert label.dtype == torch.int64
    vector, _ = dataset_of("parquet", path, *columns, "dataset.stack=true").open()[7]
    assert vector.tolist() == [IMAGES[7, 0, 0], float(LABELS[7] > 2)]


def test_parquet_lists_of_any_length_are_ragged_samples(outputs, tmp_path):
    settings = ("dataset.columns=[words]", "dataset.label_column=label", "dataset.ragged=true")
    path = write_parquet(tmp_path)
    samples = dataset_of("parquet", path, *settings).open()
    for index in range(COUNT):
        words, label = samples[index]
        assert words.tolist() == list(range(label))
    overrides = ("dataset=parquet", f"dataset.path={path}", *settings)
    job = compose_job(*overrides, "collate=pad", "loader=raw", "benchmark=traversal")
    prepared = prepare(job.dataset, None)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        check_data(prepared, job.plan(0), epochs(0), epoch=0)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("name", r"0\.parquet: column name is string; dataset\.columns selects columns of numbers"),
        ("words", r"column words has lists without a fixed length; dataset\.ragged=true"),
        ("other", r"column other is absent; columns are image, weight, flag, label, name"),
        ("label", r"no column except label_column=label$"),
    ],
)
def test_parquet_names_a_column_that_it_cannot_read(outputs, tmp_path, column, message):
    settings = (f"dataset.columns=[{column}]", "dataset.label_column=label")
    with pytest.raises(BadData, match=message):
        dataset_of("parquet", write_parquet(tmp_path), *settings).fetch()


def test_parquet_names_a_column_with_missing_values(outputs, tmp_path):
    dataset = dataset_of("parquet", write_parquet(tmp_path), "dataset.columns=[holes]")
    with pytest.raises(BadData, match=r"0\.parquet: column holes has missing values; fill them"):
        prepare(dataset, None)


@pytest.mark.parametrize("name", WRITERS)
def test_dataset_without_a_path_or_with_a_wrong_one_says_so(outputs, tmp_path, name):
    with pytest.raises(Unsupported, match=rf"^dataset={name}: dataset\.path=PATH names "):
        compose_job(f"dataset={name}").dataset.fetch()
    with pytest.raises(BadData, match=r"^dataset\.path=/nowhere: no such file or folder; dataset="):
        dataset_of(name, "/nowhere").fetch()
    text = tmp_path / "text"
    text.write_text("plain text\n" * 10)
    with pytest.raises(BadData, match=str(text)) as error:
        dataset_of(name, text).fetch()
    assert "\n" not in str(error.value)
    if name != "zarr":
        (tmp_path / "empty").mkdir()
        with pytest.raises(BadData, match=r"empty: no \.\w+ file in this folder"):
            dataset_of(name, tmp_path / "empty").fetch()


def test_settings_of_own_files_are_known_before_the_options_are_imported():
    """Their meanings in conf/ tell them: a missing file is told before torch is imported."""
    folder = Path(own_path.__code__.co_filename).parents[1] / "options" / "dataset"
    reading = {each.stem for each in folder.glob("*.py") if "own_path(" in each.read_text()}
    (datasets,) = [group for group in groups() if group.name == "dataset"]
    known = {
        option.name
        for option in datasets.options
        if any(setting.is_own_path for setting in option.settings)
    }
    assert {*WRITERS, "image_folder", "csv_images"} <= reading <= known


@pytest.mark.parametrize("name", WRITERS)
def test_fingerprint_changes_with_the_files_and_the_settings(outputs, tmp_path, name):
    path = write(name, tmp_path)
    dataset = dataset_of(name, path, *INPUTS[name])
    before = dataset.fetch()
    if name == "webdataset":
        assert dataset_of(name, path).fetch() != before
    file = sorted(each for each in path.rglob("*") if each.is_file())[-1]
    file.touch()
    assert dataset.fetch() != before or name == "hf_arrow"  # the last one is no Arrow file


def test_hf_arrow_reads_a_split_and_single_files(outputs, tmp_path):
    datasets = require_library("datasets")
    data = {"x": [1.5, 2.5], "name": ["a", "b"]}
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_dict(data)})
    splits.save_to_disk(tmp_path / "splits")
    with pytest.raises(Unsupported, match=r"^dataset\.split=None: .* has the splits train$"):
        dataset_of("hf_arrow", tmp_path / "splits").fetch()
    for path in (tmp_path / "splits", next((tmp_path / "splits/train").glob("*.arrow"))):
        settings = ("dataset.columns=[x]", "dataset.split=train")
        samples = dataset_of("hf_arrow", path, *settings).open()
        assert [sample.item() for sample in (samples[0], samples[1])] == [1.5, 2.5]
    with pytest.raises(BadData, match="column name is "):
        dataset_of("hf_arrow", tmp_path / "splits", "dataset.split=train").fetch()


def test_zarr_reads_an_array_and_names_arrays_that_differ(outputs, tmp_path):
    zarr = require_library("zarr")
    zarr.create_array(str(tmp_path / "one"), data=IMAGES)
    samples = dataset_of("zarr", tmp_path / "one").open()
    assert torch.equal(samples[9], torch.from_numpy(IMAGES[9]))
    group = zarr.create_group(str(tmp_path / "group"))
    group.create_array("long", data=np.arange(5))
    group.create_array("short", data=np.arange(3))
    with pytest.raises(BadData, match="arrays differ in length: long 5, short 3"):
        dataset_of("zarr", tmp_path / "group").fetch()
    assert int(dataset_of("zarr", tmp_path / "group", "dataset.arrays=[short]").open()[2]) == 2
    with pytest.raises(BadData, match="array other is absent; arrays are long, short"):
        dataset_of("zarr", tmp_path / "group", "dataset.arrays=[other]").fetch()
    require_library("zarr.core.sync").cleanup_resources()


def test_webdataset_decodes_images_and_names_what_is_absent(outputs, tmp_path):
    path = write_webdataset(tmp_path)
    dataset = dataset_of("webdataset", path, "dataset.fields=['png;jpg',cls]")
    dataset.fetch()
    samples = dataset.open()
    pixels = np.array(Image.open(io.BytesIO(jpeg(3))))
    assert torch.equal(samples[1][0], torch.from_numpy(pixels).permute(2, 0, 1).float() / 255)
    assert samples.read_file(1) == jpeg(3)
    assert dataset.uint8_scale == 255
    with pytest.raises(BadData, match=r"sample train/000 has no flac file; it has cls, input\.npy"):
        dataset_of("webdataset", path, "dataset.fields=[flac]").open()
    with pytest.raises(BadData, match=r"^dataset\.fields=txt: allowed are jpg, "):
        dataset_of("webdataset", path, "dataset.fields=[txt]").fetch()
    with tarfile.open(tmp_path / "broken.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("a.jpg"), io.BytesIO())
    broken = dataset_of("webdataset", tmp_path / "broken.tar", "dataset.fields=[jpg]")
    with pytest.raises(BadData, match=r"broken\.tar: the \.jpg file at byte 512: "):
        broken.open()[0]


def test_ten_files_of_webdataset_are_a_tensor_or_a_tuple_of_tensors(outputs, tmp_path):
    tenbin = require_library("webdataset.tenbin")
    arrays = [np.arange(6, dtype="f4").reshape(2, 3), np.arange(2)]
    contents = {"one": tenbin.encode_buffer(arrays[:1]), "both": tenbin.encode_buffer(arrays)}
    contents["broken"] = contents["one"][:80]
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(f"a.{name}.ten")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    dataset = dataset_of("webdataset", path, "dataset.fields=[one.ten,both.ten]")
    dataset.fetch()
    one, both = dataset.open()[0]
    assert torch.equal(one, torch.from_numpy(arrays[0]))
    assert [each.tolist() for each in both] == [each.tolist() for each in arrays]
    assert dataset.uint8_scale is None
    broken = dataset_of("webdataset", path, "dataset.fields=[broken.ten]")
    with pytest.raises(BadData, match=r"a\.tar: the \.ten file at byte \d+: "):
        broken.open()[0]


@pytest.mark.slow
@pytest.mark.heavy
def test_command_trains_on_a_table_of_the_users_own(tmp_path):
    path = write_parquet(tmp_path)
    settings = ("dataset.columns=[image,weight]", "dataset.label_column=label")
    overrides = ("dataset=parquet", f"dataset.path={path}", *settings, "dataset.stack=true")
    process = run_fastloop("loader=raw", *overrides, "trials=1", "min_window_s=0", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "training" in process.stdout
