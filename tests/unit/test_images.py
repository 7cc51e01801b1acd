"""Datasets of encoded images: contents, error messages, and the handling of broken files."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest
import torch
from commands import results, run_fastloop
from image_samples import (
    crop,
    jpeg,
    png,
    translucent,
    write_class_folders,
    write_faces,
    write_files,
)
from options import compose_job, options
from PIL import Image
from sklearn.datasets import load_sample_image

from fastloop.core.tracked_metrics import metrics
from fastloop.core.types import BadData
from fastloop.data.image_files import READ_FILES
from fastloop.data.image_pixels import resize_and_crop
from fastloop.data.prepare_dataset import prepare
from fastloop.data.same_data import check_data

PHOTOS = ("dataset=photos", "dataset.count=12", "dataset.crop=[40,56]")


def folder_of(root, *overrides: str):
    return compose_job("dataset=image_folder", f"dataset.root={root}", *overrides)


def table_of(csv_file, *overrides: str):
    return compose_job("dataset=csv_images", f"dataset.csv_file={csv_file}", *overrides)


def test_photos_are_created_once_and_are_reproducible(tmp_path):
    first, second = (
        compose_job(*PHOTOS, f"dataset.root={tmp_path / name}").dataset for name in "ab"
    )
    fingerprint = first.fetch()
    paths = sorted(path for path in first.folder.rglob("*.jpg"))
    assert len(paths) == 12
    modified_ns = [path.stat().st_mtime_ns for path in paths]
    assert first.fetch() == fingerprint
    assert [path.stat().st_mtime_ns for path in paths] == modified_ns
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


def test_photos_at_full_size_equal_the_photographs_within_jpeg_loss(outputs):
    dataset = compose_job("dataset=photos", "dataset.count=2", "dataset.crop=[427,640]").dataset
    dataset.fetch()
    samples = dataset.open_uint8()
    for index, name in enumerate(["china.jpg", "flower.jpg"]):
        pixels, label = samples[index]
        assert label == index
        assert np.abs(pixels - load_sample_image(name).astype(int)).mean() < 4


@pytest.mark.parametrize("dataset", ["photos", "image_folder"])
def test_image_dataset_in_uint8_equals_its_floats(outputs, tmp_path, dataset):
    instance = (
        compose_job(*PHOTOS) if dataset == "photos" else folder_of(write_class_folders(tmp_path))
    ).dataset
    instance.fetch()
    floats, integers = instance.open(), instance.open_uint8()
    assert len(floats) == len(integers) > 0
    for index in range(len(floats)):
        pixels, label = integers[index]
        assert pixels.dtype == np.uint8
        assert label == floats[index][1]
        wanted = torch.from_numpy(pixels).permute(2, 0, 1).float() / instance.uint8_scale
        assert torch.equal(floats[index][0], wanted)


def test_image_folder_decodes_to_rgb_with_classes_by_name(outputs, tmp_path):
    root = write_files(
        tmp_path / "images",
        {
            "zebra/1.jpg": jpeg(crop()),
            "zebra/deep/er/2.JPEG": jpeg(crop(top=120)),
            "ant/grey.jpg": jpeg(crop().convert("L")),
            "ant/ink.jpg": jpeg(crop().convert("CMYK")),
            "ant/glass.png": png(translucent("RGBA")),
            "ant/notes.txt": b"not an image, and not named as one",
            "ant/._glass.png": b"metadata of another system",
            ".cache/3.jpg": b"hidden",
            "readme.md": b"next to the classes",
        },
    )
    job = folder_of(root)
    samples = job.dataset.open()
    assert [name for name, _ in samples.files] == [
        "ant/glass.png",
        "ant/grey.jpg",
        "ant/ink.jpg",
        "zebra/1.jpg",
        "zebra/deep/er/2.JPEG",
    ]
    assert [label for _, label in samples.files] == [0, 0, 0, 1, 1]
    assert job.dataset.num_classes == 2
    assert {tuple(samples[index][0].shape) for index in range(5)} == {(3, 48, 64)}
    grey = samples[1][0]
    assert torch.equal(grey[0], grey[1])
    prepared = prepare(job.dataset, None)
    assert prepared.num_samples == 5
    assert prepared.sample == (("float32", (3, 48, 64)), ("int64", ()))


def test_fingerprint_changes_with_every_change_of_a_pixel(tmp_path):
    def fingerprint(*overrides: str) -> str:
        return folder_of(root, *overrides).dataset.fetch()

    root = write_class_folders(tmp_path)
    fingerprints = [
        fingerprint(),
        fingerprint("dataset.size=[9,9]"),
        fingerprint("decoder=torchvision"),
    ]
    assert fingerprint() == fingerprints[0]
    (root / "cat" / "1.jpg").rename(root / "cat" / "one.jpg")
    fingerprints.append(fingerprint())
    path = root / "cat" / "one.jpg"
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    fingerprints.append(fingerprint())
    assert len(set(fingerprints)) == 5


def test_fingerprint_detects_a_changed_file_in_a_large_folder(tmp_path):
    root = write_class_folders(tmp_path, 5 * READ_FILES // 2)
    dataset = folder_of(root).dataset
    names = [name for name, _ in dataset.open().files]
    fingerprints = [dataset.fetch()]
    assert dataset.fetch() == fingerprints[0]
    for name in (names[0], names[1], names[77], names[-1]):
        status, data = (root / name).stat(), bytearray((root / name).read_bytes())
        data[-9] ^= 1
        (root / name).write_bytes(data)
        os.utime(root / name, ns=(status.st_atime_ns, status.st_mtime_ns))
        fingerprints.append(dataset.fetch())
    (root / names[1]).unlink()
    fingerprints.append(dataset.fetch())
    assert len(set(fingerprints)) == 6


def test_resize_and_crop_keeps_the_middle():
    pixels = np.zeros((30, 90, 3), np.uint8)
    pixels[:, 30:60] = 255
    # Antialiasing mixes in some of the cropped pixels.
    assert resize_and_crop(pixels, (10, 10)).min() > 200
    assert (resize_and_crop(pixels, (10, 10))[:, 1:9] == 255).all()
    assert resize_and_crop(pixels, (10, 30))[:, :9].max() == 0
    assert resize_and_crop(pixels, (64, 7)).shape == (64, 7, 3)
    assert resize_and_crop(pixels[:1, :1], (5, 4)).shape == (5, 4, 3)
    assert (resize_and_crop(pixels, (30, 90)) == pixels).all()


def test_image_folder_takes_nested_folders_and_webp(outputs, tmp_path):
    root = write_class_folders(tmp_path / "images")
    (root / "cat" / "young" / "tabby").mkdir(parents=True)
    crop(48, 64).save(root / "cat" / "young" / "tabby" / "small.webp", lossless=True)
    before = len(folder_of(write_class_folders(tmp_path / "plain")).dataset.open())
    samples = folder_of(root).dataset.open()
    assert len(samples) == before + 1
    (index,) = [number for number, (name, _) in enumerate(samples.files) if "small" in name]
    image, label = samples[index]
    assert label == 0
    assert torch.equal(image, torch.from_numpy(np.array(crop(48, 64))).permute(2, 0, 1) / 255)
    for decoder in ("pil", "opencv", "torchvision"):
        decoded = folder_of(root, f"decoder={decoder}").dataset.open()[index][0]
        assert torch.equal(decoded, image)
    cut = root / "dog" / "cut.webp"
    cut.write_bytes((root / "cat" / "young" / "tabby" / "small.webp").read_bytes()[:-99])
    for decoder in ("pil", "opencv", "torchvision"):
        samples = folder_of(root, f"decoder={decoder}").dataset.open()
        (index,) = [number for number, (name, _) in enumerate(samples.files) if "cut" in name]
        with pytest.raises(BadData, match=r"cut\.webp: a broken WebP"):
            samples[index]


def test_image_folder_of_different_sizes_needs_a_size(outputs, tmp_path):
    root = write_class_folders(tmp_path / "images")
    write_files(root, {"cat/large.jpg": jpeg(crop(100, 90))})
    remedy = (
        r"images have different sizes \(.*64x48.*90x100.*\), so they can't be stacked; add one of "
        r"transform=random_resized_crop \(training\), transform=center_crop \(validation\), "
        r"dataset\.size=\[48,48\], which resizes and crops them, "
        r"as torchvision's Resize\(48\) and CenterCrop\(48\) do"
    )
    with pytest.raises(BadData, match=remedy):
        prepare(folder_of(root).dataset, None)
    prepared = prepare(folder_of(root, "dataset.size=[32,32]").dataset, None)
    assert prepared.sample[0] == ("float32", (3, 32, 32))


def test_decoding_process_reports_different_sizes_in_one_line(outputs, tmp_path):
    from fastloop.core.types import SamplesDiffer
    from fastloop.data.chunked_reader import collate_chunks
    from fastloop.data.sample_advice import advise

    root = write_class_folders(tmp_path / "images")
    write_files(root, {"cat/0.jpg": jpeg(crop(100, 90))})
    dataset = folder_of(root).dataset
    with pytest.raises(SamplesDiffer) as error:
        list(collate_chunks(dataset.open(), 4, num_workers=1))
    message = advise(error.value, dataset)
    assert message.startswith("images have different sizes (90x100, ")
    assert "\n" not in message


def draw_dot(height: int, width: int, x: int, y: int) -> bytes:
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[y - 3 : y + 4, x - 3 : x + 4] = 255
    return png(Image.fromarray(pixels))


@pytest.mark.parametrize(("height", "width", "x", "y"), [(90, 60, 30, 45), (80, 200, 110, 30)])
def test_landmarks_follow_the_resized_image(tmp_path, height, width, x, y):
    write_files(tmp_path, {"face.png": draw_dot(height, width, x, y)})
    (tmp_path / "faces.csv").write_text(f"image_name,part_0_x,part_0_y\nface.png,{x},{y}\n\n")
    plain, resized = (
        table_of(tmp_path / "faces.csv", *size).dataset.open()[0]
        for size in ([], ["dataset.size=[40,40]"])
    )
    assert plain["landmarks"].tolist() == [[x, y]]
    assert plain["image"].shape == (3, height, width)
    assert resized["image"].shape == (3, 40, 40)
    rows, columns = np.nonzero(resized["image"][0].numpy() > 0.5)
    (landmark,) = resized["landmarks"].tolist()
    assert landmark == pytest.approx([columns.mean(), rows.mean()], abs=1)


@pytest.mark.heavy
def test_csv_images_yield_a_dict_per_sample(outputs, tmp_path):
    job = table_of(write_faces(tmp_path))
    prepared = prepare(job.dataset, None)
    assert prepared.sample == (("float32", (3, 48, 64)), ("float32", (2, 2)))
    with job.loader.open(prepared, job.plan(0)) as epochs:
        (batch,) = epochs(0)
        check_data(prepared, job.plan(0), [batch], epoch=0)
    rows = sorted(batch["landmarks"].tolist())
    assert rows == [[[index, 2], [30.5, 40]] for index in (0.0, 1.0, 2.0)]
    relocated = table_of(tmp_path / "faces.csv", f"dataset.root={tmp_path}").dataset
    assert torch.equal(relocated.open()[1]["image"], job.dataset.open()[1]["image"])


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("", r"columns are ; expected: image_name, part_0_x"),
        ("file,x,y\n0.jpg,1,2\n", r"columns are file, x, y; expected"),
        ("image_name\n0.jpg\n", r"columns are image_name; expected"),
        ("image_name,part_0_x,part_0_y,part_1_x\n0.jpg,1,2,3\n", r"columns are image_name, part_0"),
        ("image_name,part_0_x,part_0_y\n", r"no rows below the header"),
        ("image_name,part_0_x,part_0_y\n0.jpg,1,2\n\n1.jpg,1\n", r"line 4: 1 numbers instead of 2"),
        ("image_name,part_0_x,part_0_y\n0.jpg,left,2\n", r"line 2: .* 'left'"),
        ("image_name,part_0_x,part_0_y\nno.jpg,1,2\n", r"image not found: .*no\.jpg"),
        ("image_name,part_0_x,part_0_y\n,1,2\n", r"image not found: "),
    ],
)
def test_csv_images_name_an_invalid_table(outputs, tmp_path, table, reason):
    path = write_faces(tmp_path)
    path.write_text(table)
    with pytest.raises(BadData, match=rf"{re.escape(str(path))}.*{reason}") as error:
        prepare(table_of(path).dataset, None)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00\x01" * 9])
def test_csv_images_name_an_unreadable_table(outputs, tmp_path, content):
    path = tmp_path / "faces.csv"
    if content:
        path.write_bytes(content)
    with pytest.raises(BadData, match=rf"{re.escape(str(path))}: "):
        prepare(table_of(path).dataset, None)


def remove_folder(root):
    root.rmdir()


def leave_empty(root):
    pass


def write_no_classes(root):
    write_files(root, {"1.jpg": jpeg(crop()), "2.jpg": jpeg(crop())})


def write_an_empty_class(root):
    write_class_folders(root)
    write_files(root, {"dodo/readme.txt": b""})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (remove_folder, "no such file or folder; dataset=image_folder reads a folder of class"),
        (leave_empty, "no class folder, no image; dataset.root is a folder of class folders"),
        (write_no_classes, "2 images, but no class folder; dataset.root is"),
        (write_an_empty_class, r"dodo: no \.jpg, \.jpeg, \.png, \.webp file in this class folder"),
    ],
)
def test_image_folder_names_an_invalid_folder(outputs, tmp_path, make, reason):
    root = tmp_path / "images"
    root.mkdir()
    make(root)
    job = folder_of(root)
    with pytest.raises(BadData, match=rf"{re.escape(str(root))}.*{reason}") as error:
        prepare(job.dataset, None)
    assert "\n" not in str(error.value)


BROKEN = {
    "empty": (b"", "the file is empty"),
    "truncated": (jpeg(crop())[:-300], "a broken JPEG"),
    "text": (b"not an image\n", "no JPEG, PNG or WebP file"),
}


@pytest.mark.parametrize("decoder", options("decoder"))
@pytest.mark.parametrize(("data", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_image_folder_names_a_broken_file(outputs, tmp_path, decoder, data, reason):
    root = write_class_folders(tmp_path / "images")
    write_files(root, {"cat/broken.jpg": data})
    with pytest.raises(
        BadData, match=rf"{re.escape(str(root))}/cat/broken\.jpg: {reason}"
    ) as error:
        prepare(folder_of(root, f"decoder={decoder}").dataset, None)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("settings", [(), ("num_workers=1", "multiprocessing_context=spawn")])
def test_skip_broken_skips_broken_files(outputs, tmp_path, settings):
    root = write_class_folders(tmp_path / "images")
    write_files(root, {f"cat/{name}.jpg": data for name, (data, _) in BROKEN.items()})
    job = folder_of(root, "collate=skip_broken", "batch_size=9", *settings)
    prepared = prepare(job.dataset, None, job.collate.tolerant)
    assert [reason.partition("images/")[2] for _, reason in sorted(prepared.broken)] == [
        "cat/empty.jpg: the file is empty",
        "cat/text.jpg: no JPEG, PNG or WebP file",
        prepared.broken[-1][1].partition("images/")[2],
    ]
    assert "cat/truncated.jpg: a broken JPEG" in prepared.broken[-1][1]
    with job.loader.open(prepared, job.plan(0)) as epochs:
        (batch,) = epochs(0)
        assert len(batch[1]) == 6
        check_data(prepared, job.plan(0), [batch], epoch=0)


def test_skip_broken_drops_a_batch_without_intact_samples(outputs, tmp_path):
    root = write_files(write_class_folders(tmp_path / "images"), {"cat/broken.jpg": b""})
    job = folder_of(root, "collate=skip_broken", "batch_size=1")
    prepared = prepare(job.dataset, None, job.collate.tolerant)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        batches = list(epochs(0))
    assert len(batches) == 6
    check_data(prepared, job.plan(0), batches, epoch=0)


def test_skip_broken_rejects_a_dataset_without_intact_samples(outputs, tmp_path):
    job = folder_of(write_files(tmp_path / "images", {"cat/1.jpg": b""}), "collate=skip_broken")
    with pytest.raises(BadData, match="image_folder: no readable sample"):
        prepare(job.dataset, None, job.collate.tolerant)


@pytest.mark.slow
def test_run_skips_counts_and_names_a_broken_file(tmp_path):
    root = write_class_folders(tmp_path / "images", 16)
    write_files(root, {"cat/broken.jpg": BROKEN["truncated"][0]})
    run = ("dataset=image_folder", f"dataset.root={root}", "batch_size=4", "trials=1", "epochs=1")
    run += ("transform=augment", "benchmark=traversal", "tracker=none", "report=false")
    process = run_fastloop(*run, "collate=skip_broken", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "broken.jpg" in "".join(process.stdout.split())  # a long path is wrapped
    (result,) = results(tmp_path)
    assert metrics(result)["skipped_samples"] == 1
    assert result.skipped[0].startswith(f"{root}/cat/broken.jpg: ")
    assert result.environment["versions"]["libjpeg-turbo in Pillow"]
