"""Datasets of encoded images: what they hold and refuse, and what becomes of broken files."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
import torch
from commands import fastloop, results
from options import compose_job, options
from pictures import crop, faces, jpeg, png, translucent, tree, write
from PIL import Image
from sklearn.datasets import load_sample_image

from fastloop.gate import check_data
from fastloop.image_files import READ_FILES
from fastloop.images import resized
from fastloop.prepared import prepare
from fastloop.result import metrics
from fastloop.types import BadData

PHOTOS = ("dataset=photos", "dataset.count=12", "dataset.crop=[40,56]")


def folder_of(root, *overrides: str):
    return compose_job("dataset=image_folder", f"dataset.root={root}", *overrides)


def table_of(csv_file, *overrides: str):
    return compose_job("dataset=csv_images", f"dataset.csv_file={csv_file}", *overrides)


def test_photos_are_made_once_and_the_same_anywhere(tmp_path):
    first, second = (
        compose_job(*PHOTOS, f"dataset.root={tmp_path / name}").dataset for name in "ab"
    )
    print_ = first.fetch()
    paths = sorted(path for path in first.folder.rglob("*.jpg"))
    assert len(paths) == 12
    written = [path.stat().st_mtime_ns for path in paths]
    assert first.fetch() == print_
    assert [path.stat().st_mtime_ns for path in paths] == written
    second.fetch()
    for path in paths:
        other = second.folder / path.relative_to(first.folder)
        assert path.read_bytes() == other.read_bytes()
    assert len({path.read_bytes() for path in paths}) == 12


def test_photos_are_crops_with_the_label_of_their_photograph(outputs):
    dataset = compose_job(*PHOTOS).dataset
    dataset.fetch()
    samples = dataset.open()
    assert [label for _, label in (samples[index] for index in range(12))] == [0] * 6 + [1] * 6
    image, _ = samples[0]
    assert image.shape == (3, 40, 56)
    assert image.dtype == torch.float32
    assert image.is_contiguous()
    assert 0 <= float(image.min()) < float(image.max()) <= 1


def test_the_largest_crops_are_the_photographs_but_for_what_jpeg_loses(outputs):
    dataset = compose_job("dataset=photos", "dataset.count=2", "dataset.crop=[427,640]").dataset
    dataset.fetch()
    samples = dataset.open_uint8()
    for index, name in enumerate(["china.jpg", "flower.jpg"]):
        pixels, label = samples[index]
        assert label == index
        assert np.abs(pixels - load_sample_image(name).astype(int)).mean() < 4


@pytest.mark.parametrize("dataset", ["photos", "image_folder"])
def test_left_in_uint8_they_are_the_same_images(outputs, tmp_path, dataset):
    one = (compose_job(*PHOTOS) if dataset == "photos" else folder_of(tree(tmp_path))).dataset
    one.fetch()
    floats, integers = one.open(), one.open_uint8()
    assert len(floats) == len(integers) > 0
    for index in range(len(floats)):
        pixels, label = integers[index]
        assert pixels.dtype == np.uint8
        assert label == floats[index][1]
        wanted = torch.from_numpy(pixels).permute(2, 0, 1).float() / one.uint8_scale
        assert torch.equal(floats[index][0], wanted)


def test_a_folder_of_any_images_becomes_rgb_with_classes_by_name(outputs, tmp_path):
    root = write(
        tmp_path / "images",
        {
            "zebra/1.jpg": jpeg(crop()),
            "zebra/deep/er/2.JPEG": jpeg(crop(top=120)),
            "ant/grey.jpg": jpeg(crop().convert("L")),
            "ant/ink.jpg": jpeg(crop().convert("CMYK")),
            "ant/glass.png": png(translucent("RGBA")),
            "ant/notes.txt": b"not an image, and not named as one",
            "ant/._glass.png": b"what another system leaves",
            ".cache/3.jpg": b"hidden",
            "readme.md": b"beside the classes",
        },
    )
    job = folder_of(root)
    samples = job.dataset.open()
    assert [name for name, _ in samples.files] == [
        *("ant/glass.png", "ant/grey.jpg", "ant/ink.jpg"),
        *("zebra/1.jpg", "zebra/deep/er/2.JPEG"),
    ]
    assert [label for _, label in samples.files] == [0, 0, 0, 1, 1]
    assert job.dataset.num_classes == 2
    assert {tuple(samples[index][0].shape) for index in range(5)} == {(3, 48, 64)}
    grey = samples[1][0]
    assert torch.equal(grey[0], grey[1])
    prepared = prepare(job.dataset, None)
    assert prepared.num_samples == 5
    assert prepared.sample == (("float32", (3, 48, 64)), ("int64", ()))


def test_a_fingerprint_changes_with_whatever_changes_a_pixel(tmp_path):
    def of(*overrides: str) -> str:
        return folder_of(root, *overrides).dataset.fetch()

    root = tree(tmp_path)
    prints = [of(), of("dataset.size=[9,9]"), of("decoder=torchvision")]
    assert of() == prints[0]
    (root / "cat" / "1.jpg").rename(root / "cat" / "one.jpg")
    prints.append(of())
    path = root / "cat" / "one.jpg"
    seen = path.stat()
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    prints.append(of())
    assert len(set(prints)) == 5


def test_a_changed_file_is_seen_in_a_folder_too_large_to_be_read(tmp_path):
    root = tree(tmp_path, 5 * READ_FILES // 2)
    dataset = folder_of(root).dataset
    names = [name for name, _ in dataset.open().files]
    prints = [dataset.fetch()]
    assert dataset.fetch() == prints[0]
    for name in (names[0], names[1], names[77], names[-1]):
        seen, data = (root / name).stat(), bytearray((root / name).read_bytes())
        data[-9] ^= 1
        (root / name).write_bytes(data)
        os.utime(root / name, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        prints.append(dataset.fetch())
    (root / names[1]).unlink()
    prints.append(dataset.fetch())
    assert len(set(prints)) == 6


def test_one_resize_covers_the_size_and_keeps_the_middle():
    pixels = np.zeros((30, 90, 3), np.uint8)
    pixels[:, 30:60] = 255
    assert resized(pixels, (10, 10)).min() > 200  # antialiasing takes some of what is cropped
    assert (resized(pixels, (10, 10))[:, 1:9] == 255).all()
    assert resized(pixels, (10, 30))[:, :9].max() == 0
    assert resized(pixels, (64, 7)).shape == (64, 7, 3)
    assert resized(pixels[:1, :1], (5, 4)).shape == (5, 4, 3)
    assert (resized(pixels, (30, 90)) == pixels).all()


def test_images_of_different_sizes_need_a_size(outputs, tmp_path):
    root = tree(tmp_path / "images")
    write(root, {"cat/large.jpg": jpeg(crop(100, 90))})
    remedy = r"samples differ: .*48, 64.*100, 90.*; dataset\.size=\[height,width\] brings"
    with pytest.raises(BadData, match=remedy):
        prepare(folder_of(root).dataset, None)
    prepared = prepare(folder_of(root, "dataset.size=[32,32]").dataset, None)
    assert prepared.sample[0] == ("float32", (3, 32, 32))


def test_different_sizes_are_said_in_one_line_by_decoding_processes_too(outputs, tmp_path):
    from fastloop.chunks import collated_chunks
    from fastloop.prepared import _remedied
    from fastloop.types import SamplesDiffer

    root = tree(tmp_path / "images")
    write(root, {"cat/0.jpg": jpeg(crop(100, 90))})
    dataset = folder_of(root).dataset
    with pytest.raises(SamplesDiffer) as caught:
        list(collated_chunks(dataset.open(), 4, num_workers=1))
    said = _remedied(str(caught.value), dataset)
    assert said.startswith("samples differ: 0 is ")
    assert "\n" not in said


def dot(height: int, width: int, x: int, y: int) -> bytes:
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[y - 3 : y + 4, x - 3 : x + 4] = 255
    return png(Image.fromarray(pixels))


@pytest.mark.parametrize(("height", "width", "x", "y"), [(90, 60, 30, 45), (80, 200, 110, 30)])
def test_landmarks_stay_on_what_they_mark(tmp_path, height, width, x, y):
    write(tmp_path, {"face.png": dot(height, width, x, y)})
    (tmp_path / "faces.csv").write_text(f"image_name,part_0_x,part_0_y\nface.png,{x},{y}\n\n")
    plain, resized_ = (
        table_of(tmp_path / "faces.csv", *size).dataset.open()[0]
        for size in ([], ["dataset.size=[40,40]"])
    )
    assert plain["landmarks"].tolist() == [[x, y]]
    assert plain["image"].shape == (3, height, width)
    assert resized_["image"].shape == (3, 40, 40)
    rows, columns = np.nonzero(resized_["image"][0].numpy() > 0.5)
    (seen,) = resized_["landmarks"].tolist()
    assert seen == pytest.approx([columns.mean(), rows.mean()], abs=1)


def test_a_table_of_faces_is_a_dict_a_sample(outputs, tmp_path):
    job = table_of(faces(tmp_path))
    prepared = prepare(job.dataset, None)
    assert prepared.sample == (("float32", (3, 48, 64)), ("float32", (2, 2)))
    with job.loader.open(prepared, job.plan(0)) as epochs:
        (batch,) = epochs(0)
        check_data(prepared, job.plan(0), [batch], epoch=0)
    rows = sorted(batch["landmarks"].tolist())
    assert rows == [[[index, 2], [30.5, 40]] for index in (0.0, 1.0, 2.0)]
    moved = table_of(tmp_path / "faces.csv", f"dataset.root={tmp_path}").dataset
    assert torch.equal(moved.open()[1]["image"], job.dataset.open()[1]["image"])


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("", r"columns are ; wanted: image_name, part_0_x"),
        ("file,x,y\n0.jpg,1,2\n", r"columns are file, x, y; wanted"),
        ("image_name\n0.jpg\n", r"columns are image_name; wanted"),
        ("image_name,part_0_x,part_0_y,part_1_x\n0.jpg,1,2,3\n", r"columns are image_name, part_0"),
        ("image_name,part_0_x,part_0_y\n", r"no row below the header"),
        ("image_name,part_0_x,part_0_y\n0.jpg,1,2\n\n1.jpg,1\n", r"line 4: 1 numbers, not 2"),
        ("image_name,part_0_x,part_0_y\n0.jpg,left,2\n", r"line 2: .* 'left'"),
        ("image_name,part_0_x,part_0_y\nno.jpg,1,2\n", r"no such image: .*no\.jpg"),
        ("image_name,part_0_x,part_0_y\n,1,2\n", r"no such image: "),
    ],
)
def test_a_table_that_is_none_is_named(outputs, tmp_path, table, why):
    path = faces(tmp_path)
    path.write_text(table)
    with pytest.raises(BadData, match=rf"{re.escape(str(path))}.*{why}") as caught:
        prepare(table_of(path).dataset, None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00\x01" * 9])
def test_a_table_that_cannot_be_read_is_named(outputs, tmp_path, content):
    path = tmp_path / "faces.csv"
    if content:
        path.write_bytes(content)
    with pytest.raises(BadData, match=rf"{re.escape(str(path))}: "):
        prepare(table_of(path).dataset, None)


def missing(root):
    root.rmdir()


def empty(root):
    pass


def without_classes(root):
    write(root, {"1.jpg": jpeg(crop()), "2.jpg": jpeg(crop())})


def with_an_empty_class(root):
    tree(root)
    write(root, {"dodo/readme.txt": b""})


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (missing, "no such folder; dataset.root is a folder of class folders"),
        (empty, "no class folder, no image; dataset.root is a folder of class folders"),
        (without_classes, "2 images, but no class folder; dataset.root is"),
        (with_an_empty_class, r"dodo: no \.jpg, \.jpeg, \.png file in this class folder"),
    ],
)
def test_a_folder_that_is_none_is_named(outputs, tmp_path, make, why):
    root = tmp_path / "images"
    root.mkdir()
    make(root)
    job = folder_of(root)
    with pytest.raises(BadData, match=rf"{re.escape(str(root))}.*{why}") as caught:
        prepare(job.dataset, None)
    assert "\n" not in str(caught.value)


BROKEN = {
    "empty": (b"", "the file is empty"),
    "truncated": (jpeg(crop())[:-300], "a broken JPEG"),
    "text": (b"not an image\n", "neither a JPEG nor a PNG file"),
}


@pytest.mark.parametrize("decoder", options("decoder"))
@pytest.mark.parametrize(("data", "why"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_named(outputs, tmp_path, decoder, data, why):
    root = tree(tmp_path / "images")
    write(root, {"cat/broken.jpg": data})
    with pytest.raises(BadData, match=rf"{re.escape(str(root))}/cat/broken\.jpg: {why}") as caught:
        prepare(folder_of(root, f"decoder={decoder}").dataset, None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", [(), ("num_workers=1", "multiprocessing_context=spawn")])
def test_broken_files_are_skipped_where_that_is_asked_for(outputs, tmp_path, settings):
    root = tree(tmp_path / "images")
    write(root, {f"cat/{name}.jpg": data for name, (data, _) in BROKEN.items()})
    job = folder_of(root, "collate=skip_broken", "batch_size=9", *settings)
    prepared = prepare(job.dataset, None, job.collate.tolerant)
    assert [why.partition("images/")[2] for _, why in sorted(prepared.broken)] == [
        "cat/empty.jpg: the file is empty",
        "cat/text.jpg: neither a JPEG nor a PNG file",
        prepared.broken[-1][1].partition("images/")[2],
    ]
    assert "cat/truncated.jpg: a broken JPEG" in prepared.broken[-1][1]
    with job.loader.open(prepared, job.plan(0)) as epochs:
        (batch,) = epochs(0)
        assert len(batch[1]) == 6
        check_data(prepared, job.plan(0), [batch], epoch=0)


def test_a_batch_of_which_all_is_broken_is_left_out(outputs, tmp_path):
    root = write(tree(tmp_path / "images"), {"cat/broken.jpg": b""})
    job = folder_of(root, "collate=skip_broken", "batch_size=1")
    prepared = prepare(job.dataset, None, job.collate.tolerant)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        batches = list(epochs(0))
    assert len(batches) == 6
    check_data(prepared, job.plan(0), batches, epoch=0)


def test_where_all_is_broken_nothing_is_left(outputs, tmp_path):
    job = folder_of(write(tmp_path / "images", {"cat/1.jpg": b""}), "collate=skip_broken")
    with pytest.raises(BadData, match="image_folder: no sample that can be read"):
        prepare(job.dataset, None, job.collate.tolerant)


@pytest.mark.slow
def test_a_run_goes_on_without_a_broken_file_counts_it_and_names_it(tmp_path):
    root = tree(tmp_path / "images", 16)
    write(root, {"cat/broken.jpg": BROKEN["truncated"][0]})
    run = ("dataset=image_folder", f"dataset.root={root}", "batch_size=4", "trials=1", "epochs=1")
    run += ("transform=augment", "benchmark=traversal", "tracker=none", "report=false")
    done = fastloop(*run, "collate=skip_broken", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "broken.jpg" in done.stdout + done.stderr
    (result,) = results(tmp_path)
    assert metrics(result)["skipped_samples"] == 1
    assert result.skipped[0].startswith(f"{root}/cat/broken.jpg: ")
    assert result.environment["versions"]["libjpeg-turbo in Pillow"]
