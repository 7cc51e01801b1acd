"""Samples other than (input, label): every loader delivers them whole or rejects them."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import optree
import pytest
import torch
import yaml
from batches import collate_all, has_planned_order, rows
from options import CONF, compose_job, options, rejects_settings, skip_without_library
from torch.utils.data import default_collate

from fastloop.core.types import Unsupported
from fastloop.data.digest import leaves_of
from fastloop.data.prepare_dataset import prepare
from fastloop.options.store.torch_storage import TorchStorageStore

COUNT = 37


class Pictures:
    """Nested dicts and lists of tensors, with scalars of every kind."""

    label, num_classes, uint8_scale = "pictures", None, None

    def fetch(self):
        return "pictures-1"

    def open(self):
        generator = torch.Generator().manual_seed(0)
        return [
            {
                "im": {
                    "label": torch.rand(1, 2, generator=generator),
                    "image": torch.rand(3, 2, generator=generator),
                },
                "cim": torch.randint(0, 255, (2, 2), generator=generator).to(torch.uint8),
                "pim": [torch.rand(2, generator=generator), (torch.tensor(index), index % 2 == 0)],
                "scalars": [index, index / 7, np.float32(index / 3), np.int16(index)],
            }
            for index in range(COUNT)
        ]


class Integers:
    """Samples of one int each."""

    label, num_classes, uint8_scale = "ints", None, None

    def fetch(self):
        return "ints-1"

    def open(self):
        return range(COUNT)


class Scalars:
    """Zero-dimensional tensors, also of dtypes for which Python has no number."""

    label, num_classes, uint8_scale = "scalars", None, None

    def fetch(self):
        return "scalars-1"

    def open(self):
        names = ("uint16", "float16", "float32", "complex64")
        return [
            [torch.tensor(index / 3).to(getattr(torch, name)) for name in names]
            + [torch.tensor(2**64 - 1 - index, dtype=torch.uint64)]
            for index in range(COUNT)
        ]


class Point(NamedTuple):
    x: torch.Tensor
    y: int


class Points:
    """Samples that are named tuples."""

    label, num_classes, uint8_scale = "points", None, None

    def fetch(self):
        return "points-1"

    def open(self):
        return [Point(torch.full((2,), float(index)), index) for index in range(COUNT)]


class TupleKeys(Points):
    """Points as dicts whose keys are tuples."""

    label = "keyed"

    def fetch(self):
        return "keyed-1"

    def open(self):
        return [{("x", 1): point.x, ("y", 2): point.y} for point in super().open()]


class IntegerKeys(Points):
    """Points as dicts whose keys are integers, out of order."""

    label = "numbered"

    def fetch(self):
        return "numbered-1"

    def open(self):
        return [{7: point.x, 0: point.y} for point in super().open()]


DATASETS = {"a tree": Pictures(), "a bare int": Integers(), "scalars": Scalars()}
DATASETS |= {"a named tuple": Points(), "tuple keys": TupleKeys(), "integer keys": IntegerKeys()}
for name in ("nested", "integers"):
    if name in options("dataset"):
        node = yaml.safe_load((CONF / "dataset" / f"{name}.yaml").read_text())
        small = [f"dataset.count={COUNT}"] if "count" in node else []
        DATASETS[name] = compose_job(f"dataset={name}", *small).dataset


def prepare_if_supported(outputs, loader, dataset, *settings):
    """(job, prepared), or None where the loader or its store rejects such trees."""
    job = dataclasses.replace(
        compose_job(f"loader={loader}", "batch_size=16", *settings), dataset=dataset
    )
    try:
        prepared = prepare(dataset, job.loader.store)
        return None if rejects_settings(job, prepared, settings) else (job, prepared)
    except Unsupported as error:
        skip_without_library(error)
        refusal = str(error)
    store = type(job.loader.store).__module__.rpartition(".")[2]
    assert refusal.startswith((f"store={store} ", f"loader={loader} "))
    return None


FORKED = ("num_workers=1", "multiprocessing_context=fork")
CASES = [(name, ()) for name in DATASETS] + [("a tree", FORKED), ("a bare int", FORKED)]


@pytest.mark.parametrize(("name", "settings"), CASES)
@pytest.mark.parametrize("loader", options("loader"))
def test_loader_delivers_a_tree_whole_or_rejects_it(outputs, loader, name, settings):
    dataset = DATASETS[name]
    preparation = prepare_if_supported(outputs, loader, dataset, *settings)
    if preparation is None:
        return
    job, prepared = preparation
    samples, plan = collate_all(dataset), job.plan(3)
    wanted, first = rows([samples]), default_collate([dataset.open()[0]])
    with job.loader.open(prepared, plan) as epochs:
        batches = list(epochs(1))
    assert has_planned_order(job, plan, 1, rows(batches), wanted)
    for batch in batches:
        assert leaves_of(batch) == prepared.sample == leaves_of(first)
        assert optree.tree_paths(batch) == optree.tree_paths(first)


def test_torch_storage_keeps_every_dtype_and_its_file_unchanged(tmp_path):
    dtypes = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.uint16, torch.float16]
    dtypes += [torch.bfloat16, torch.float32, torch.float64, torch.complex64]
    chunks = [
        [{"a": torch.randint(0, 2, (size, 3)).to(dtype)} for dtype in dtypes] for size in (4, 4, 1)
    ]
    store = TorchStorageStore(root=str(tmp_path))
    store.write(tmp_path, iter(chunks), 9)
    wanted = optree.tree_map(lambda *leaves: torch.cat(leaves), *chunks)
    opened = store.open(tmp_path)
    assert [tree["a"].dtype for tree in opened] == dtypes
    assert all(
        torch.equal(tree["a"], expected["a"]) for tree, expected in zip(opened, wanted, strict=True)
    )
    for tree in opened:
        tree["a"].zero_()
    reopened = store.open(tmp_path)
    assert all(
        torch.equal(tree["a"], expected["a"])
        for tree, expected in zip(reopened, wanted, strict=True)
    )


class Halves:
    """Samples of bfloat16, a dtype that numpy lacks."""

    label, num_classes, uint8_scale = "halves", None, None

    def fetch(self):
        return "halves-1"

    def open(self):
        return [(torch.full((2,), index).to(torch.bfloat16), index) for index in range(COUNT)]


@pytest.mark.parametrize("loader", options("loader"))
def test_loader_delivers_bfloat16_bit_for_bit_or_rejects_it(outputs, loader):
    preparation = prepare_if_supported(outputs, loader, Halves(), "order=sequential")
    assert preparation or loader not in (
        "raw",
        "torch_storage",
        "tensorclass",
        "tensorclass_memmap",
    )
    if preparation:
        job, prepared = preparation
        with job.loader.open(prepared, job.plan(0)) as epochs:
            assert rows(epochs(0)) == rows([collate_all(Halves())])


def test_store_and_loader_without_bfloat16_name_an_alternative(outputs):
    npy = compose_job("loader=np_memmap").loader.store
    with pytest.raises(Unsupported, match=r"^store=npy can't hold bfloat16; store=torch_storage"):
        prepare(Halves(), npy)
    override = "store@loader.store=torch_storage"
    loops = {name: compose_job(f"loader={name}", override) for name in ("numpy_loop", "index_loop")}
    prepared = prepare(Halves(), loops["index_loop"].loader.store)
    with pytest.raises(Unsupported, match=r"^loader=numpy_loop can't hold bfloat16; loader=index_"):
        loops["numpy_loop"].loader.open(prepared, loops["numpy_loop"].plan(0)).__enter__()
    with loops["index_loop"].loader.open(prepared, loops["index_loop"].plan(0)) as epochs:
        assert sorted(rows(epochs(0))) == sorted(rows([collate_all(Halves())]))
