"""Photographs of ImageNet's mean size and quality, cut from the photographs that scikit-learn
has."""

import io
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

WIDTH, HEIGHT, QUALITY = 500, 375, 96
NUM_FILES = 300


def write_photographs(folder: Path, num_files: int = NUM_FILES) -> list[str]:
    """Write JPEG files, each of another part of a photograph, every second one mirrored.

    Returns their paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    photographs = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    rng, paths = np.random.default_rng(0), []
    for number in range(num_files):
        whole = photographs[number % len(photographs)]
        left = int(rng.integers(whole.width - WIDTH + 1))
        top = int(rng.integers(whole.height - HEIGHT + 1))
        part = whole.crop((left, top, left + WIDTH, top + HEIGHT))
        if number // len(photographs) % 2:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        file = io.BytesIO()
        part.save(file, "JPEG", quality=QUALITY)
        path = folder / f"{number}.jpg"
        path.write_bytes(file.getvalue())
        paths.append(str(path))
    return paths
