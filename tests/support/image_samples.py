"""Image files of every kind, encoded by Pillow from a photograph of scikit-learn."""

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
    return _encode(image, "JPEG", **({"quality": 90} | options))


def png(image: Image.Image, **options) -> bytes:
    return _encode(image, "PNG", **options)


def _encode(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def translucent(mode: str) -> Image.Image:
    """RGBA or LA image with every value of alpha."""
    image = crop().convert(mode)
    alpha = np.linspace(0, 255, image.width).astype(np.uint8)
    image.putalpha(Image.fromarray(np.tile(alpha, (image.height, 1))))
    return image


def strip_adobe_segment(data: bytes) -> bytes:
    """Remove the APP14 segment of Adobe from the JPEG."""
    start = data.index(b"Adobe") - 4
    length = int.from_bytes(data[start + 2 : start + 4], "big")
    return data[:start] + data[start + 2 + length :]


def add_thumbnail(data: bytes) -> bytes:
    """Add a thumbnail JPEG to the header of the JPEG, as cameras do."""
    thumbnail = b"Exif\0\0" + jpeg(crop(8, 8))
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    return data[:2] + segment + data[2:]


def orientation(number: int) -> Image.Exif:
    """EXIF data that states this orientation."""
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def quarter_turn() -> Image.Exif:
    """EXIF data with the orientation of a quarter turn."""
    return orientation(6)


IMAGES = {
    "grey JPEG": jpeg(crop().convert("L")),
    "CMYK JPEG": jpeg(crop().convert("CMYK")),
    "CMYK JPEG without Adobe segment": strip_adobe_segment(jpeg(crop().convert("CMYK"))),
    "progressive JPEG": jpeg(crop(), progressive=True),
    "JPEG stored as RGB": jpeg(crop(), keep_rgb=True),
    "JPEG with odd sides": jpeg(crop(33, 47)),
    "JPEG with a thumbnail": add_thumbnail(jpeg(crop())),
    "JPEG with EXIF orientation": jpeg(crop(), exif=quarter_turn()),
    "JPEG with trailing bytes": jpeg(crop()) + b"more" * 99,
    "PNG": png(crop()),
    "grey PNG": png(crop().convert("L")),
    "PNG with alpha": png(translucent("RGBA")),
    "grey PNG with alpha": png(translucent("LA")),
    "palette PNG": png(crop().convert("P")),
    "PNG of four colours": png(crop().quantize(4), bits=2),
    "palette PNG with alpha": png(crop().convert("P"), transparency=bytes(range(256))),
    "black and white PNG": png(crop().convert("1")),
    "PNG with a transparent colour": png(crop(), transparency=(1, 2, 3)),
}
"""Files that every decoder reads, by kind."""

JPEG, PNG = jpeg(photograph()), png(crop())
BROKEN = {
    "empty file": (b"", "the file is empty"),
    "text": (b"not an image at all\n" * 99, "no JPEG, PNG or WebP"),
    "an HTML page": (b"<html>404</html>", "no JPEG, PNG or WebP"),
    "half a JPEG": (JPEG[: len(JPEG) // 2], "a broken JPEG"),
    "a JPEG without its last bytes": (JPEG[:-40], "a broken JPEG"),
    "a JPEG's header": (JPEG[:100], "a broken JPEG"),
    "half a JPEG with a thumbnail": (add_thumbnail(JPEG)[:-9999], "a broken JPEG"),
    "half a CMYK JPEG": (IMAGES["CMYK JPEG"][:-300], "a broken CMYK JPEG"),
    "half a PNG": (PNG[: len(PNG) // 2], "PNG"),
    "a PNG with overwritten bytes": (PNG[:999] + b"\0\1\2\3" + PNG[1003:], "PNG"),
    "a PNG of 16 bits": (png(Image.fromarray(np.full((9, 9), 999, np.uint16))), "16 bits"),
}
"""Files that no decoder reads, and a part of the error message."""


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    """Write the files below the folder; return the folder."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def write_class_folders(root: Path, count: int = 6) -> Path:
    """Write `count` images in two class folders; return the root folder."""
    names = [f"{'cat' if index % 2 else 'dog'}/{index}.jpg" for index in range(count)]
    return write_files(
        root, {name: jpeg(crop(top=10 * number)) for number, name in enumerate(names)}
    )


def write_faces(root: Path) -> Path:
    """Write three images and a CSV file with two landmarks each; return the CSV file."""
    lines = ["image_name,part_0_x,part_0_y,part_1_x,part_1_y"]
    lines += [f"{index}.jpg,{index},2,30.5,40" for index in range(3)]
    write_files(root, {f"{index}.jpg": jpeg(crop(top=index)) for index in range(3)})
    (root / "faces.csv").write_text("\n".join(lines) + "\n")
    return root / "faces.csv"
