"""Crops of encoded images: Pillow's pixels, torchvision's distribution, draws by seed and index."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from image_samples import BROKEN, IMAGES, crop, jpeg, photograph, png, write_files
from native_jpeg import needs_jpeg
from PIL import Image
from torchvision.transforms import v2

from fastloop import CenterCrop, FastLoader, Images, RandomResizedCrop, has_jpeg
from fastloop.core.seeds import random_bits
from fastloop.fastloader.columns.crops import FLIP_DRAW, draw, draw_cut
from fastloop.fastloader.columns.decoders import load_jpeg

DECODERS = [pytest.param("native", marks=needs_jpeg), "pil", None]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
KINDS = {
    "4:2:0": {"subsampling": 2},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_blocks": 3},
    "restart markers of rows": {"restart_marker_rows": 1},
    "own codes": {"optimize": True},
    "least quality": {"quality": 1, "subsampling": 2},
    "best quality": {"quality": 100, "optimize": True},
}


def photo(kind: str = "4:2:0", box: tuple[int, ...] = (40, 20, 397, 321)) -> bytes:
    return jpeg(photograph().crop(box), **KINDS[kind])


def pixels_of(images: Images, count: int | None = None, **settings) -> torch.Tensor:
    count = len(images) if count is None else count
    return torch.cat(list(FastLoader(images, 4, seed=0, **settings)))[:count]


def by_pillow(data: bytes, cut) -> np.ndarray:
    rows, columns = cut.rows, cut.columns
    image = Image.open(io.BytesIO(data)).convert("RGB")
    box = columns.start, rows.start, columns.start + columns.length, rows.start + rows.length
    image = image.crop(box).resize((columns.resized, rows.resized), Image.Resampling.BILINEAR)
    left, top = columns.first, rows.first
    image = image.crop((left, top, left + columns.count, top + rows.count))
    if cut.is_flipped:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image).transpose(2, 0, 1).astype(int)


def expected(images: list[bytes], way, flip: float, seed: int = 0) -> np.ndarray:
    column = Images(images, crop=way, flip=flip)
    loader = FastLoader(column, 4, seed=seed)
    keys = random_bits(np.arange(len(images)), _epoch_seed(loader))
    samples = []
    for data, key in zip(images, keys.tolist(), strict=True):
        width, height = Image.open(io.BytesIO(data)).size
        samples.append(by_pillow(data, draw_cut(way, flip, key, height, width)))
    return np.stack(samples)


def _epoch_seed(loader: FastLoader) -> int:
    from fastloop.fastloader.sample_draws import SampleDraws

    return SampleDraws(loader.seed, loader.epoch).epoch_seed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    "way",
    [RandomResizedCrop(64), RandomResizedCrop((90, 41), (0.01, 0.1)), CenterCrop((64, 48), 70)],
    ids=["small", "enlarged", "center"],
)
def test_crops_have_the_pixels_of_pillow(kind, decoder, way):
    images = [photo(kind)] * 24
    samples = pixels_of(Images(images, crop=way, flip=0.5, decoder=decoder))
    assert samples.dtype == torch.uint8
    assert samples.shape == (24, 3, *way.height_width)
    assert np.abs(samples.numpy().astype(int) - expected(images, way, 0.5)).max() <= 1


@needs_jpeg
@pytest.mark.parametrize("settings", [{}, {"optimize": True}, {"restart_marker_blocks": 4}])
@pytest.mark.parametrize("deviation", [0.5, 20, 80], ids="noise {}".format)
def test_long_codes_and_full_blocks_have_the_pixels_of_pillow(settings, deviation):
    noise = np.random.default_rng(0).normal(128, deviation, (300, 400, 3)).clip(0, 255)
    data = jpeg(Image.fromarray(noise.astype(np.uint8)), quality=100, **settings)
    way, images = RandomResizedCrop(64), [data, jpeg(crop()), data, photo()] * 6
    samples = pixels_of(Images(images, crop=way, flip=0.5, decoder="native"))
    assert np.abs(samples.numpy().astype(int) - expected(images, way, 0.5)).max() <= 1


@needs_jpeg
def test_many_sizes_and_crops_have_the_pixels_of_pillow():
    rng = np.random.default_rng(0)
    images = []
    for number in range(60):
        (width, height), kind = rng.integers(1, 300, 2).tolist(), list(KINDS)[number % len(KINDS)]
        left, top = rng.integers(0, 100, 2).tolist()
        images.append(photo(kind, (left, top, left + width, top + height)))
    for way in (RandomResizedCrop(50, (0.01, 1.0), (0.1, 9.0)), CenterCrop(33, 40)):
        samples = pixels_of(Images(images, crop=way, flip=0.5, decoder="native"))
        assert np.abs(samples.numpy().astype(int) - expected(images, way, 0.5)).max() <= 1


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("layout", ["CHW", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_floats_are_normalized_as_by_torchvision(decoder, layout, dtype):
    way, images = RandomResizedCrop(40), [photo()] * 8
    settings = {"normalize": (MEAN, STD), "dtype": dtype, "layout": layout, "decoder": decoder}
    samples = pixels_of(Images(images, crop=way, **settings))
    is_last = samples.is_contiguous(memory_format=torch.channels_last)
    assert (samples.dtype, is_last) == (dtype, layout == "channels_last")
    pixels = torch.from_numpy(expected(images, way, 0.0)).float() / 255
    reference = v2.functional.normalize(pixels, MEAN, STD)
    most = 1.01 / 255 / min(STD) + (0.02 if dtype == torch.bfloat16 else 0)
    assert (samples.float() - reference).abs().max() <= most


@pytest.mark.parametrize("decoder", DECODERS)
def test_floats_without_statistics_are_0_to_1(decoder):
    white = [jpeg(Image.new("RGB", (50, 50), "white"))]
    images = Images(white, crop=CenterCrop(8, 9), dtype=torch.float32, decoder=decoder)
    assert torch.equal(pixels_of(images), torch.ones(1, 3, 8, 8))


@needs_jpeg
def test_only_restart_intervals_of_the_window_are_read():
    """A fault in another interval is not noticed; one within it leaves the image to Pillow."""
    data = bytearray(jpeg(photograph().crop((0, 0, 320, 320)), restart_marker_blocks=4))
    starts = [place + 2 for place in range(len(data) - 1) if 0xD0 <= data[place + 1] <= 0xD7]
    starts = [start for start in starts if data[start - 2] == 0xFF]
    needed = starts[51]  # 20 units a row: columns 8 to 11 of row 10

    def states(first):
        damaged = bytearray(data)
        damaged[first : first + 16] = b"\xff\x00" * 8  # no code is of ones alone
        way, out = CenterCrop(32, 320), np.empty((1, 3, 32, 32), np.uint8)
        arguments = (bytes(damaged),), False, np.zeros(1, np.uint64), (*way.native, 0.0)
        return load_jpeg().make_samples(*arguments, (0, False, (1.0,) * 3, (0.0,) * 3), out)

    assert states(starts[0]) == states(starts[-1]) == b"\1"
    assert states(needed) == b"\0"


SAMPLE_OF_ONE_ROW = """
import resource, sys
import numpy as np
from fastloop import RandomResizedCrop
from fastloop.fastloader.columns.decoders import load_jpeg
make, way = load_jpeg().make_samples, RandomResizedCrop((1, 8), (1.0, 1.0), (0.001, 1.0))
with open(sys.argv[1], "rb") as file:
    encoded = file.read()
out = np.empty((1, 3, 1, 8), np.uint8)
keys, form = np.zeros(1, np.uint64), (0, False, (1.0,) * 3, (0.0,) * 3)
_, most = resource.getrlimit(resource.RLIMIT_AS)
for mebibytes in map(int, sys.argv[2:]):
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (mebibytes << 20), most))
    print(make((encoded,), False, keys, (*way.native, 0.0), form, out)[0])
"""


@needs_jpeg
@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sample_of_one_row_takes_no_more_memory_than_the_pixels_under_it(tmp_path):
    """Twice as many rows have a weight of 0 beside it: they need no memory."""
    (tmp_path / "tall.jpg").write_bytes(jpeg(Image.new("L", (2000, 16_000))))  # 122 MiB as RGBX
    command = [sys.executable, "-c", SAMPLE_OF_ONE_ROW, str(tmp_path / "tall.jpg"), "60", "190"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["0", "1"]


@needs_jpeg
@pytest.mark.parametrize(
    "way",
    [RandomResizedCrop(9), RandomResizedCrop(9, (0.5, 0.9), (3.0, 4.0)), CenterCrop(5, 9)],
    ids=str,
)
def test_native_cuts_are_the_ones_of_python(way):
    rng, jpeg_module = np.random.default_rng(1), load_jpeg()
    for _ in range(300):
        key, (height, width) = int(rng.integers(0, 2**63)) * 2, rng.integers(1, 700, 2).tolist()
        cut = draw_cut(way, 0.5, key, height, width)
        numbers = [tuple(vars(axis).values()) for axis in (cut.rows, cut.columns)]
        native = jpeg_module.draw_cut((*way.native, 0.5), key, height, width)
        assert native == (*numbers, cut.is_flipped)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("size", "settings"),
    [((375, 500), {}), ((90, 400), {}), ((50, 60), {"scale": (0.6, 1.0), "ratio": (2.0, 3.0)})],
    ids=str,
)
def test_crops_are_distributed_as_those_of_torchvision(size, settings):
    """The quantiles of top, left, height and width agree; Kolmogorov's distance at 4,000 draws."""
    from torchvision.transforms import RandomResizedCrop as Reference

    count, way = 4000, RandomResizedCrop(224, **settings)
    image = torch.empty(3, *size)
    reference = Reference(224, **settings)
    torch.manual_seed(0)
    drawn = [Reference.get_params(image, reference.scale, reference.ratio) for _ in range(count)]
    cuts = [way.cut(int(key), *size) for key in random_bits(np.arange(count), 5)]
    ours = [(c.rows.start, c.columns.start, c.rows.length, c.columns.length) for c in cuts]
    for theirs, own in zip(np.array(drawn).T, np.array(ours).T, strict=True):
        values = np.union1d(theirs, own)
        shares = [np.searchsorted(np.sort(x), values, "right") / count for x in (theirs, own)]
        assert np.abs(shares[0] - shares[1]).max() < 0.045  # exceeded once in 2,000 draws


def test_flips_have_their_probability():
    keys = random_bits(np.arange(4000), 3)
    share = np.mean([draw(int(key), FLIP_DRAW) < 0.25 for key in keys])
    assert abs(share - 0.25) < 0.03


@pytest.mark.parametrize("decoder", DECODERS)
def test_epochs_depend_on_the_seed_alone_and_resume_exactly(decoder):
    images = Images([photo()] * 20, crop=RandomResizedCrop(16), flip=0.5, decoder=decoder)
    source = (images, torch.arange(20))

    def epochs(count, **settings):
        loader = FastLoader(source, 3, shuffle=True, seed=7, **settings)
        return [list(loader) for _ in range(count)]

    first, second = epochs(2, num_threads=1)
    for batches in (epochs(2, num_threads=3), epochs(2, num_threads=0)):
        for mine, other in zip([*first, *second], [*batches[0], *batches[1]], strict=True):
            assert torch.equal(mine[0], other[0])
            assert torch.equal(mine[1], other[1])
    assert not torch.equal(first[0][0], second[0][0])
    loader = FastLoader(source, 3, shuffle=True, seed=7)
    iterator = iter(loader)
    next(iterator)
    other = FastLoader(source, 3, shuffle=True, seed=7)
    other.load_state_dict(loader.state_dict())
    for mine, resumed in zip(first[1:], other, strict=True):
        assert torch.equal(mine[0], resumed[0])
    by_index = {int(n): image for batch in first for image, n in zip(*batch, strict=True)}
    plain = FastLoader(source, 5, seed=7)
    for batch in plain:
        for image, number in zip(*batch, strict=True):
            assert torch.equal(image, by_index[int(number)])


@pytest.mark.parametrize("data", IMAGES.values(), ids=IMAGES.keys())
@pytest.mark.parametrize("decoder", DECODERS)
def test_every_image_kind_is_cut_as_pillow_reads_it(decoder, data):
    way = CenterCrop(30, 32)
    samples = pixels_of(Images([data], crop=way, decoder=decoder))
    image = Image.open(io.BytesIO(data))
    image.info.pop("transparency", None)
    plain = png(image.convert("RGB"))
    cut = way.cut(0, image.height, image.width)
    assert np.abs(samples[0].numpy().astype(int) - by_pillow(plain, cut)).max() <= 2


def test_png_of_16_bits_and_webp_are_read():
    deep = Image.fromarray(np.full((20, 20), 0x7FAB, np.uint16))
    file = io.BytesIO()
    crop().save(file, "WEBP", lossless=True)
    samples = pixels_of(Images([png(deep), file.getvalue()], crop=CenterCrop(16, 16)))
    assert (samples[0] == 0x7F).all()
    cut = CenterCrop(16, 16).cut(0, 48, 64)
    assert np.abs(samples[1].numpy().astype(int) - by_pillow(png(crop()), cut)).max() <= 1


@pytest.mark.parametrize("data", [data for data, _ in BROKEN.values()], ids=list(BROKEN))
@pytest.mark.parametrize("decoder", DECODERS)
def test_broken_image_is_named(tmp_path, decoder, data):
    if data == BROKEN["a PNG of 16 bits"][0]:
        pytest.skip("Pillow reads it")
    root = write_files(tmp_path, {"good.jpg": photo(), "bad.jpg": data})
    images = Images([root / "good.jpg", root / "bad.jpg"], crop=CenterCrop(9, 9), decoder=decoder)
    with pytest.raises(ValueError, match=r"/bad\.jpg: ") as caught:
        list(FastLoader(images, 2, num_threads=2))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["paths", "bytes", "packed"])
def test_crops_of_files_bytes_and_packed_images_agree(tmp_path, form):
    photos = [photo(box=(n, n, 90 + n, 80 + n)) for n in range(5)]
    root = write_files(tmp_path, {f"{n}.jpg": data for n, data in enumerate(photos)})
    packed = np.frombuffer(b"".join(photos), np.uint8), np.cumsum([0, *map(len, photos)])
    sources = {
        "paths": [root / f"{n}.jpg" for n in range(5)],
        "bytes": photos,
        "packed": packed,
    }
    images = Images(sources[form], crop=RandomResizedCrop(24), flip=0.5)
    assert images.decoder == "native" or not has_jpeg()
    assert torch.equal(
        pixels_of(images), pixels_of(Images(photos, crop=RandomResizedCrop(24), flip=0.5))
    )
    assert torch.equal(pixels_of(pickle.loads(pickle.dumps(images))), pixels_of(images))


def test_missing_file_is_named(tmp_path):
    for name in (tmp_path / "no.jpg", str(tmp_path / "a\0b.jpg")):
        with pytest.raises((FileNotFoundError, ValueError), match=r"no\.jpg|null"):
            list(FastLoader(Images([name], crop=CenterCrop(8, 8))))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"flip": 0.5}, "crop=None allows none"),
        ({"dtype": torch.float32}, "crop=None allows none"),
        ({"crop": RandomResizedCrop(8), "size": (8, 8)}, "has its own size"),
        ({"crop": RandomResizedCrop(8), "flip": 2.0}, "flip=2.0: allowed are 0 to 1"),
        ({"crop": RandomResizedCrop(8), "dtype": torch.int64}, "dtype=torch.int64: allowed"),
        ({"crop": RandomResizedCrop(8), "layout": "HWC"}, "layout='HWC': allowed"),
        ({"crop": RandomResizedCrop(8), "normalize": ([0.5], [0.5])}, "three numbers each"),
        ({"crop": RandomResizedCrop(8), "normalize": (MEAN, (1, 0, 1))}, "above 0"),
        (
            {"crop": RandomResizedCrop(8), "normalize": (MEAN, STD), "dtype": torch.uint8},
            "normalized samples are floats",
        ),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Images([b"x"], **settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomResizedCrop(0), "size=0"),
        (lambda: RandomResizedCrop((1, 2, 3)), "size="),
        (lambda: RandomResizedCrop(8, (0.0, 1.0)), "scale="),
        (lambda: RandomResizedCrop(8, (0.5, 1.5)), "scale="),
        (lambda: RandomResizedCrop(8, ratio=(2.0, 1.0)), "ratio="),
        (lambda: CenterCrop(8, 7), "resize=7: allowed are 8"),
    ],
)
def test_invalid_crops_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
