"""Image files of every kind: crops have Pillow's pixels, and a broken one among them is named."""

from __future__ import annotations

import base64
import io
import multiprocessing
import pickle
import struct
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from image_samples import IMAGES, crop, jpeg, photograph, png, translucent, write_files
from native_jpeg import needs_jpeg
from options import require_library
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from fastloop import CenterCrop, FastLoader, Images, RandomResizedCrop
from fastloop.fastloader.columns.decoders import LIBRARIES

DECODERS = [pytest.param("native", marks=needs_jpeg), "simplejpeg", "torchvision", "pil"]
WAYS = {"random": RandomResizedCrop((20, 26), (0.1, 0.9)), "center": CenterCrop((22, 16), 24)}
FRAMES = [crop(top=20 * number) for number in range(3)]
ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQ"
    "c1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/2wBDARweHigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSk"
    "pKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKT/yQARCAAYACgDASIAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIR"
    "AxEAPwD/ACgQCZUVXq+OJkPGj+vX3QxVx4vSCzSttCBxW0XaMh0glPvbzElpHPHjN2P7U28spxXSzRLb/tktbSEK"
    "nSxDQE6M/McCL/uQVv/Z"
)
"""A JPEG of 40 x 24 pixels, arithmetic-coded by libjpeg-turbo."""


def encode(image: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def animate(kind: str, **options) -> bytes:
    return encode(FRAMES[0], kind, save_all=True, append_images=FRAMES[1:], **options)


def with_text(length: int) -> bytes:
    """A PNG with a compressed text of so many characters."""
    info = PngInfo()
    info.add_text("note", "x" * length, zip=True)
    return encode(crop(), "PNG", pnginfo=info)


def with_dxgi(number: int) -> bytes:
    """A DDS of 4 x 4 pixels in a format of DirectX."""
    size, flags, fourcc = 124, 0x1007, b"DX10"
    header = struct.pack("<7I44x", size, flags, 4, 4, 0, 0, 0)
    pixels = struct.pack("<2I4s5I", 32, 4, fourcc, 0, 0, 0, 0, 0)
    return (
        b"DDS " + header + pixels + bytes(20) + struct.pack("<5I", number, 3, 0, 1, 0) + bytes(64)
    )


def with_ycck() -> bytes:
    """A JPEG of YCCK: Adobe's segment says so."""
    bands = *crop().convert("YCbCr").split(), crop().convert("L")
    data = bytearray(jpeg(Image.merge("CMYK", bands)))
    data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


def with_bits(bits: int) -> bytes:
    """An extended JPEG that states so many bits per channel."""
    data = bytearray(jpeg(crop()))
    frame = data.index(b"\xff\xc0")
    data[frame + 1], data[frame + 4] = 0xC1, bits
    return bytes(data)


KINDS = IMAGES | {
    "arithmetic-coded JPEG": ARITHMETIC,
    "YCCK JPEG": with_ycck(),
    "progressive grey JPEG": jpeg(crop().convert("L"), progressive=True),
    "progressive CMYK JPEG": jpeg(crop().convert("CMYK"), progressive=True),
    "extended JPEG": with_bits(8),
    "lossy WebP": encode(crop(), "WEBP", quality=70),
    "lossless WebP": encode(crop(), "WEBP", lossless=True),
    "WebP with alpha": encode(translucent("RGBA"), "WEBP", quality=70),
    "animated WebP": animate("WEBP", lossless=True),
    "animated PNG": animate("PNG"),
    "animated PNG beside an image": animate("PNG", default_image=True),
    "PNG with a text": with_text(1000),
    "GIF": encode(crop(), "GIF"),
    "animated GIF": animate("GIF"),
    "GIF with a transparent colour": encode(crop().quantize(30), "GIF", transparency=3),
    "BMP": encode(crop(), "BMP"),
    "palette BMP": encode(crop().convert("P"), "BMP"),
    "TIFF": encode(crop(), "TIFF"),
}
BROKEN = {
    "half a JPEG": jpeg(crop())[:-300],
    "half a CMYK JPEG": IMAGES["CMYK JPEG"][:-300],
    "half an arithmetic-coded JPEG": ARITHMETIC[:-60],
    "a JPEG of 12 bits": with_bits(12),
    "half a PNG": png(crop())[:-2000],
    "half a WebP": KINDS["lossy WebP"][:-200],
    "half an animated WebP": KINDS["animated WebP"][:900],
    "half a GIF": KINDS["GIF"][:-900],
    "half a BMP": KINDS["BMP"][:-2000],
    "half a TIFF": KINDS["TIFF"][:200],
    "a PNG with a text that becomes large": with_text(3 << 20),
    "a DDS of a format that Pillow does not read": with_dxgi(93),
    "an empty file": b"",
    "a text": b"no image",
}


def rgb(data: bytes) -> Image.Image:
    """The first frame as Pillow reads it."""
    with Image.open(io.BytesIO(data)) as image:
        image.info.pop("transparency", None)  # Pillow warns when it drops a palette's
        return image.convert("RGB")


def batch_of(files: list, **settings) -> torch.Tensor:
    return torch.cat(list(FastLoader(Images(files, **settings), 5, seed=3)))


def require_decoder(decoder: str) -> str:
    for name in LIBRARIES[decoder][0] if decoder in LIBRARIES else ():
        require_library(name)
    return decoder


def assert_near(samples: torch.Tensor, expected: torch.Tensor) -> None:
    assert samples.shape == expected.shape
    assert (samples.int() - expected.int()).abs().max() <= 2


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", KINDS)
def test_crops_have_the_pixels_of_pillow(kind, decoder, way):
    settings = {"crop": way, "flip": 0.5}
    samples = batch_of([KINDS[kind]] * 6, decoder=require_decoder(decoder), **settings)
    assert_near(samples, batch_of([png(rgb(KINDS[kind]))] * 6, decoder="pil", **settings))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_png_of_16_bits_gives_its_upper_bits(decoder, way):
    upper = np.asarray(crop().convert("L")).astype(np.uint16)
    deep = Image.fromarray(upper << 8 | np.arange(64, dtype=np.uint16) * 4)
    samples = batch_of([png(deep)] * 6, crop=way, decoder=require_decoder(decoder))
    assert_near(samples, batch_of([png(crop().convert("L"))] * 6, crop=way, decoder="pil"))


WHOLE = [kind for kind in KINDS if not kind.endswith(("GIF", "colour", "BMP", "TIFF"))]


@pytest.mark.parametrize("decoder", ["simplejpeg", "torchvision", "pil"])
@pytest.mark.parametrize("kind", WHOLE)
def test_whole_images_have_the_pixels_of_pillow(kind, decoder):
    require_decoder(decoder)
    if (kind, decoder) == ("animated WebP", "torchvision"):
        with pytest.raises(ValueError, match=r"Animated webp files are not supported"):
            batch_of([KINDS[kind]], decoder=decoder)
        return
    expected = torch.from_numpy(np.array(rgb(KINDS[kind])))
    assert_near(batch_of([KINDS[kind]], decoder=decoder)[0], expected)


@pytest.mark.parametrize("decoder", ["simplejpeg", "torchvision", "pil"])
def test_whole_png_is_refused_for_what_pillow_refuses(decoder):
    """A text of 3 MiB, which a few KB hold."""
    assert batch_of([with_text(100)], decoder=require_decoder(decoder)).shape[1:] == (48, 64, 3)
    with pytest.raises(ValueError, match=r"too large for PngImagePlugin\.MAX_TEXT_CHUNK"):
        batch_of([with_text(3 << 20)], decoder=decoder)


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF"])
def test_whole_images_are_jpeg_png_or_webp(kind):
    with pytest.raises(ValueError, match=r"^image 0: no JPEG, PNG or WebP file$"):
        batch_of([KINDS[kind]])


# ---- all kinds in one source ----


@pytest.fixture
def paths(tmp_path) -> list[str]:
    """Files of all kinds, whose names do not tell them."""
    files = {f"{number:02}.jpg": data for number, data in enumerate(KINDS.values())}
    root = write_files(tmp_path / "files", files)
    return [str(root / name) for name in files]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_any_number_of_threads_makes_the_same_of_all_kinds(paths, decoder, way):
    images = Images(paths, crop=way, flip=0.5, decoder=require_decoder(decoder))
    expected = batch_of([png(rgb(data)) for data in KINDS.values()], crop=way, flip=0.5)
    settings = [{"num_threads": 0}, {"num_threads": 1}, {"num_threads": 3}, {"num_workers": 2}]
    samples = [torch.cat(list(FastLoader(images, 5, seed=3, **each))) for each in settings]
    assert_near(samples[0], expected)
    assert all(torch.equal(each, samples[0]) for each in samples)


def _crops(images: bytes) -> np.ndarray:
    """Made in a process of its own, as those that read a part of a source make them."""
    column = pickle.loads(images).with_seed(7)
    out = np.empty((len(column), column.spec.nbytes), np.uint8)
    column.fill(np.arange(len(column)), out)
    return out


@pytest.mark.heavy
def test_another_process_makes_the_same_of_all_kinds(paths):
    images = pickle.dumps(Images(paths, crop=WAYS["random"], flip=0.5))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert np.array_equal(pool.submit(_crops, images).result(), _crops(images))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_among_all_kinds_is_named(paths, tmp_path, data, way):
    broken = tmp_path / "broken.webp"
    broken.write_bytes(data)
    for decoder in (None, "pil"):
        images = Images([*paths, broken], crop=way, decoder=decoder)
        for num_threads in (0, 2):
            loader, delivered = FastLoader(images, 1, num_threads=num_threads), []
            with pytest.raises(ValueError, match=r"/broken\.webp: ") as caught:
                delivered.extend(loader)
            assert len(delivered) == len(paths)
            assert "\n" not in str(caught.value)


def test_bits_that_no_decoder_reads_are_told():
    for settings in ({"crop": WAYS["center"]}, {}, {"decoder": "pil"}):
        with pytest.raises(ValueError, match=r"^image 0: a JPEG of 12 bits per channel; only 8"):
            batch_of([with_bits(12)], **settings)


def test_a_tiff_is_turned_by_pillow():
    exif = Image.Exif()
    exif[0x0112] = 6
    data, plain = (
        encode(crop(), "TIFF", exif=exif),
        png(crop().transpose(Image.Transpose.ROTATE_270)),
    )
    for is_applied in (False, True):
        samples = batch_of([data], crop=WAYS["center"], apply_exif_orientation=is_applied)
        assert_near(samples, batch_of([plain], crop=WAYS["center"]))


def test_large_photographs_of_other_kinds():
    image = photograph()
    for data in (jpeg(image.convert("CMYK")), encode(image, "WEBP", quality=80)):
        samples = batch_of([data] * 2, crop=CenterCrop(96, 128))
        assert_near(samples, batch_of([png(rgb(data))] * 2, crop=CenterCrop(96, 128)))
