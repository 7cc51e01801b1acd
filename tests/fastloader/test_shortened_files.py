"""A mapped file that becomes shorter is an error that names it, instead of the process's end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from image_samples import jpeg, photograph

from fastloop import FastLoader

SCRIPT = """
import os, sys
import numpy as np
import torch
from torch.utils.data import Dataset
from fastloop import CenterCrop, FastLoader, Images, Windows, converted, open_store, write_store

class Texts(Dataset):
    def __len__(self):
        return 500
    def __getitem__(self, index):
        return torch.full((index % 50 + 1, 400), index % 256, dtype=torch.uint8)

def as_it_is(rows):
    return rows

folder = sys.argv[1]
twice = {"transform": lambda batch: batch}
cases = {
    "rows": ("r", as_it_is, {}),
    "copy-on-write": ("c", as_it_is, {"shuffle": True}),
    "writable": ("r+", as_it_is, twice),
    "part": ("r", lambda rows: rows[100:3900], {}),
    "view": ("r", lambda rows: (np.asarray(rows), torch.arange(4000)), {}),
    "converted": ("r", converted, {}),
    "windows": ("r", lambda rows: Windows(rows.view(np.uint16).reshape(-1), 2000, count=4000), {}),
    "cut windows": ("r", lambda rows: Windows(rows.view(np.uint16).reshape(-1), 2000), twice),
}
for name, (mode, make, settings) in cases.items():
    path = f"{folder}/{name}.npy"
    for num_threads in (0, 2):
        np.save(path, np.zeros((4000, 5000), np.uint8))
        source = make(np.load(path, mmap_mode=mode))
        read(FastLoader(source, 64, num_threads=num_threads, **settings), path)
with open(sys.argv[2], "rb") as file:
    photographs = [file.read()] * 400
for num_threads in (0, 2):
    for way in (None, CenterCrop(16, 16)):
        root = f"{folder}/photos"
        write_store(photographs, root, images="as_is", overwrite=True)
        images = Images(open_store(root), crop=way)
        read(FastLoader(images, 16, num_threads=num_threads), f"{root}/0.npy")
for num_threads in (0, 2):
    root = write_store(Texts(), f"{folder}/ragged", ragged=True, overwrite=True)
    read(FastLoader(open_store(root), 64, num_threads=num_threads), f"{root}/0.npy")
"""
READ = """
def read(loader, path):
    # in the middle of an epoch a thread may be copying, which nothing can save
    print(path, flush=True)
    for _ in range(1 if loader.num_threads else 0):
        for _ in loader:
            pass
        os.truncate(path, os.path.getsize(path) // 2)
    for _ in range(2):
        try:
            for number, _ in enumerate(loader):
                if number == 1:
                    os.truncate(path, os.path.getsize(path) // 2)
        except OSError as error:
            print(error, flush=True)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("pure", [pytest.param("", id="core"), pytest.param("1", id="no core")])
def test_file_that_becomes_shorter_is_named(tmp_path, pure):
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(jpeg(photograph()))
    process = subprocess.run(
        [sys.executable, "-c", READ + SCRIPT, str(tmp_path), str(photo)],
        env=os.environ | {"FASTLOOP_PURE": pure, "FASTLOOP_NATIVE": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = process.stdout.splitlines()
    assert process.returncode == 0, f"after {lines[-1]}: {process.stderr}"
    assert len(lines) == 11 * 2 * 3
    for path, *errors in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        for error in errors:
            assert error.startswith(f"{path}: this file has become shorter than the ")


def test_file_that_is_replaced_or_deleted_is_read_to_its_end(tmp_path):
    path, other = tmp_path / "rows.npy", tmp_path / "other.npy"
    np.save(path, np.ones((1000, 64), np.uint8))
    np.save(other, np.zeros((10, 64), np.uint8))
    loader = FastLoader(np.load(path, mmap_mode="r"), 100)
    Path(other).replace(path)
    assert sum(int(batch.sum()) for batch in loader) == 64_000
    path.unlink()
    assert sum(int(batch.sum()) for batch in loader) == 64_000
