"""A broken store is an error that names its file; a store that may not be replaced says why."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from native_jpeg import needs_jpeg
from torch.utils.data import Dataset, IterableDataset

from fastloop import LongestSide, open_store, write_store
from fastloop.core.types import BadData


class Texts(Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int):
        return {"x": torch.arange(index + 1), "y": index}


@pytest.fixture
def store(tmp_path):
    return write_store(Texts(), tmp_path / "store", ragged=True)


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[1, null]", "[" * 3000, '[1, {"type": "no.such"}]', "\ud800"]
)
def test_broken_structure_is_named(store, text):
    path = store / "structure.json"
    path.write_text(text, errors="surrogatepass")
    with pytest.raises(BadData, match=f"^{path}: not the structure of a store: ") as caught:
        open_store(store)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 3, 1, 6, 10, 15, 21],
        [0, 1, 3, 10**12, 10, 15, 21],
        [0, 1, 3, 6, 10, 15, 10**12],
        [1, 1, 3, 6, 10, 15, 21],
        [-1, 1, 3, 6, 10, 15, 21],
        [0, 1, 3, 6, 10, 15, 20],
        [],
        [[0, 21]],
        [0.0, 21.0],
    ],
    ids=str,
)
def test_broken_offsets_are_named(store, offsets):
    path = store / "0.offsets.npy"
    np.save(path, np.array(offsets, np.int64 if offsets and type(offsets[0]) is int else None))
    with pytest.raises(BadData, match=f"^{path}: broken offsets: .* rise from 0 to 21$"):
        open_store(store)


@pytest.mark.parametrize("name", ["0.npy", "1.npy", "0.offsets.npy"])
@pytest.mark.parametrize("part", [0, 5, 100])
def test_cut_off_file_is_named(store, name, part):
    path = store / name
    path.write_bytes(path.read_bytes()[:part])
    with pytest.raises(BadData, match=f"^{path}: a broken .npy file: "):
        open_store(store)


def test_leaves_of_other_lengths_are_named(store):
    np.save(store / "1.npy", np.arange(5))
    with pytest.raises(BadData, match=rf"^{store}: a broken store: its leaves have \[5, 6\] rows$"):
        open_store(store)
    np.save(store / "1.npy", np.array(5))
    with pytest.raises(BadData, match=f"^{store}: a broken store: a leaf has no rows$"):
        open_store(store)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def test_store_that_may_not_be_replaced_says_why(tmp_path):
    root, photos = tmp_path / "store", [b"\x00" * 9, b"\x01" * 5]
    write_store(Stream(), root)
    with pytest.raises(FileExistsError, match="a store is here, and an iterable can't be compared"):
        write_store(Stream(), root)
    with pytest.raises(FileExistsError, match="a store of other data is here; overwrite=True"):
        write_store(torch.arange(6), root)
    with pytest.raises(FileExistsError, match="a store of samples is here, not of encoded images"):
        write_store(photos, root, images="as_is")
    write_store(photos, root, images="as_is", overwrite=True)
    with pytest.raises(FileExistsError, match="a store of other data is here; overwrite=True"):
        write_store(photos[::-1], root, images="as_is")


@needs_jpeg
def test_store_of_images_as_they_are_may_not_be_replaced_by_smaller_ones(tmp_path):
    root, photos = tmp_path / "store", [b"\x00" * 9, b"\x01" * 5]
    write_store(photos, root, images="as_is")
    with pytest.raises(FileExistsError, match="a store of images='as_is' is here; overwrite=True"):
        write_store(photos, root, images=LongestSide(9))
