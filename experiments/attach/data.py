"""The data of the scripts: real images, texts and tables that installed packages bring."""

from __future__ import annotations

import csv
import json
import random
import struct
import sysconfig
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_diabetes, load_digits, load_sample_images

NUM_IMAGES = {"train": 2000, "test": 400}
NUM_PHOTOS = {"train": 240, "val": 60}
NUM_ROWS = 30_000
NUM_SHARDS = 8


def write_data(folder: Path) -> None:
    """Write the data of all scripts into the new folder."""
    folder.mkdir(parents=True)
    _write_digits(folder / "MNIST" / "raw")
    _write_photos(folder / "photos")
    _write_texts(folder)
    _write_table(folder / "table.npy")
    _write_shards(folder / "shards")


def _write_digits(folder: Path) -> None:
    """scikit-learn's digits, enlarged to 28 x 28 pixels, in the files of MNIST."""
    folder.mkdir(parents=True)
    digits = load_digits()
    scaled = [
        np.asarray(Image.fromarray((16 * image).clip(0, 255).astype(np.uint8)).resize((28, 28)))
        for image in digits.images
    ]
    for name, count in NUM_IMAGES.items():
        places = np.arange(count) % len(scaled)
        images, targets = np.stack(scaled)[places], digits.target[places].astype(np.uint8)
        prefix = folder / ("t10k" if name == "test" else name)
        header = struct.pack(">4i", 0x803, count, 28, 28)
        Path(f"{prefix}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = struct.pack(">2i", 0x801, count)
        Path(f"{prefix}-labels-idx1-ubyte").write_bytes(header + targets.tobytes())


def _write_photos(folder: Path) -> None:
    """Cuts of scikit-learn's two photographs as JPEG files, in a folder for each class; and boxes
    of some of them."""
    drawn = random.Random(0)
    photos = [Image.fromarray(each) for each in load_sample_images().images]
    for split, count in NUM_PHOTOS.items():
        for number in range(count):
            photo = photos[number % 2]
            width, height = (int(side * drawn.uniform(0.5, 0.95)) for side in photo.size)
            left = drawn.randrange(photo.width - width)
            top = drawn.randrange(photo.height - height)
            place = folder / split / f"class{number % 2}" / f"{number:05}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            cut = photo.crop((left, top, left + width, top + height)).resize((500, 375))
            cut.save(place, quality=92)
    boxed = folder / "boxes"
    boxed.mkdir()
    with (boxed / "boxes.csv").open("w", newline="") as file:
        for path in sorted((folder / "train").rglob("*.jpg")):
            (boxed / path.name).write_bytes(path.read_bytes())
            for _ in range(drawn.randint(1, 4)):
                x, y = drawn.uniform(0, 0.5), drawn.uniform(0, 0.5)
                csv.writer(file).writerow([path.name, x, y, x + 0.4, y + 0.4])


def _write_texts(folder: Path) -> None:
    """The sources of Python's own library, as bytes and as lines."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:80]
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)
    np.frombuffer(text.encode(), np.uint8).astype(np.uint16).tofile(folder / "tokens.bin")
    (folder / "lines.txt").write_text(text, encoding="utf-8")


def _write_table(path: Path) -> None:
    """scikit-learn's table of diabetes, repeated with a little noise."""
    x, y = load_diabetes(return_X_y=True)
    generator = np.random.default_rng(0)
    rows = generator.integers(0, len(x), NUM_ROWS)
    noisy = x[rows] + generator.normal(0, 0.01, (NUM_ROWS, x.shape[1]))
    np.save(path, np.column_stack([noisy, y[rows] / 100]).astype(np.float32))


def _write_shards(folder: Path) -> None:
    """Digits as lines of JSON, in several files."""
    folder.mkdir()
    digits = load_digits()
    for shard in range(NUM_SHARDS):
        with (folder / f"shard{shard:02}.jsonl").open("w") as file:
            for index in range(shard, len(digits.data), NUM_SHARDS):
                record = {"pixels": digits.data[index].tolist(), "digit": int(digits.target[index])}
                file.write(json.dumps(record) + "\n")
