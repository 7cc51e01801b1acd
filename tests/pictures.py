"""Image files of every kind, written by Pillow out of scikit-learn's photograph."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
import sklearn
from PIL import Image
from sklearn.datasets import load_sample_image

PHOTOGRAPHS = Path(sklearn.__file__).parent / "datasets" / "images"


@cache
def photograph() -> Image.Image:
    return Image.fromarray(load_sample_image("china.jpg"))


def crop(height: int = 48, width: int = 64, top: int = 100) -> Image.Image:
    return photograph().crop((200, top, 200 + width, top + height))


def jpeg(image: Image.Image, **options) -> bytes:
    return _saved(image, "JPEG", quality=90, **options)


def png(image: Image.Image, **options) -> bytes:
    return _saved(image, "PNG", **options)


def _saved(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def translucent(mode: str) -> Image.Image:
    """RGBA or LA with every value of alpha."""
    image = crop().convert(mode)
    alpha = np.linspace(0, 255, image.width).astype(np.uint8)
    image.putalpha(Image.fromarray(np.tile(alpha, (image.height, 1))))
    return image


def without_adobe(data: bytes) -> bytes:
    """The same JPEG without the segment that says who has written it."""
    place = data.index(b"Adobe") - 4
    length = int.from_bytes(data[place + 2 : place + 4], "big")
    return data[:place] + data[place + 2 + length :]


def with_thumbnail(data: bytes) -> bytes:
    """The same JPEG with another one in its header, as cameras write them."""
    thumbnail = b"Exif\0\0" + jpeg(crop(8, 8))
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    return data[:2] + segment + data[2:]


def turned() -> Image.Exif:
    """An orientation that asks for a quarter turn."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def write(root: Path, files: dict[str, bytes]) -> Path:
    """The folder with these files in it."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def tree(root: Path, count: int = 6) -> Path:
    """A folder of two class folders with `count` images in all."""
    names = [f"{'cat' if index % 2 else 'dog'}/{index}.jpg" for index in range(count)]
    return write(root, {name: jpeg(crop(top=10 * place)) for place, name in enumerate(names)})


def faces(root: Path) -> Path:
    """The CSV file of three images with two landmarks each."""
    lines = ["image_name,part_0_x,part_0_y,part_1_x,part_1_y"]
    lines += [f"{index}.jpg,{index},2,30.5,40" for index in range(3)]
    write(root, {f"{index}.jpg": jpeg(crop(top=index)) for index in range(3)})
    (root / "faces.csv").write_text("\n".join(lines) + "\n")
    return root / "faces.csv"
