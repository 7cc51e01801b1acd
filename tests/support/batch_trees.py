"""Batches of every structure, and a comparison of batches before and after a placement."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from options import compose_job, require_cuda, skip_without_library
from tensordict import TensorDict, is_tensor_collection, tensorclass

from fastloop.core.types import Unsupported

Point = namedtuple("Point", "x y")


@tensorclass
class Pair:
    data: torch.Tensor
    targets: torch.Tensor


_Pair: Any = Pair


@dataclasses.dataclass
class Example:
    image: Any
    label: Any = None
    checked: int = dataclasses.field(default=0, init=False)

    def __post_init__(self):
        self.checked += 1


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    values: Any
    name: str


class CustomDict(dict):
    pass


class CustomList(list):
    pass


def images(*channels: int) -> torch.Tensor:
    return torch.rand(4, *channels, 5, 5)


def numbers() -> torch.Tensor:
    return torch.arange(4)


FLAT = {
    "a dict": {"image": images(3), "label": numbers()},
    "a list": [images(3), numbers()],
    "a tuple": (images(3), numbers().to(torch.uint8)),
    "a named tuple": Point(images(1), numbers()),
    "a tensor": numbers(),
    "a tensordict": TensorDict({"a": images(), "b": {"c": numbers()}}, batch_size=[4]),
    "a tensorclass": _Pair(images(), numbers(), batch_size=[4]),
}
NESTED = {
    "004's dict": {
        "im": {"label": images(1), "image": images(3)},
        "cim": images(3).half(),
        "pim": [images(3), images(3).double()],
    },
    "a list of dicts": [{"z": numbers(), "a": images()}, {"b": numbers() > 1}],
    "tuples in tuples": (numbers(), (images(), Point(numbers(), [numbers()]))),
    "an ordered dict": OrderedDict(z=numbers(), a=images()),
    "a defaultdict": defaultdict(list, a=[numbers()]),
    "a dataclass": Example(images(), numbers()),
    "a frozen dataclass": {"a": Frozen([images(), {"b": numbers()}], "one")},
    "dataclasses in a dataclass": Example((Example(images()), Frozen(numbers(), "two"))),
    "a deque": deque([images(), [numbers()]]),
    "user classes": [
        CustomDict(z=numbers(), a=CustomList([images()])),
        UserDict(b=numbers()),
    ],
    "a tensorclass in a list": [_Pair(images(), numbers(), batch_size=[4])],
    "nothing": {"a": [], "b": (), "c": {}},
    "other leaves": {"name": ["a", b"b"], "count": (3, 2.5, 1j, True), "none": None, "t": images()},
    "leaves of numpy": [np.float32(2), np.int64(3), images()],
    "leaves that are no data": {"day": datetime(2026, 1, 2), "type": int, "t": images()},
    "a shape": [images().shape, images()],
    "a UserList": UserList([images(), [numbers()]]),
    "a read-only mapping": MappingProxyType({"z": numbers(), "a": [images()]}),
}


def assert_same(before, after, device: torch.device) -> None:
    """Assert equal types, order of keys, dtypes and shapes, the device, and (except on meta) equal
    values."""
    assert type(after) is type(before)
    if isinstance(before, torch.Tensor):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert after.device.type == device.type
        assert device.type == "meta" or torch.equal(before, after.cpu())
        return
    if is_tensor_collection(before):
        assert after.batch_size == before.batch_size
        assert after.device in (None, device)
        before, after = before.to_dict(), after.to_dict()
    elif dataclasses.is_dataclass(before):
        fields = [field.name for field in dataclasses.fields(before)]
        before, after = (
            {name: getattr(batch, name) for name in fields} for batch in (before, after)
        )
    if isinstance(before, Mapping):
        assert list(after) == list(before)
        before, after = list(before.values()), list(after.values())
    if isinstance(before, list | UserList | tuple | deque):
        assert len(after) == len(before)
        for child, other in zip(before, after, strict=True):
            assert_same(child, other, device)
    else:
        assert after == before


BLOCKING_PLACEMENTS = ("map_location",)
"""Placements without the setting non_blocking."""


def bind_placement(placement: str, device: torch.device, non_blocking: str = "false"):
    """The job's placement bound to the device; skips the test where it is rightly unsupported."""
    job = compose_job(f"placement={placement}", f"placement.non_blocking={non_blocking}")
    if device.type == "cuda":
        require_cuda()
    try:
        return job.placement.to(device)
    except Unsupported as error:
        skip_without_library(error)
        reason = str(error)
    is_blocking = placement in BLOCKING_PLACEMENTS and non_blocking == "true"
    assert "non_blocking=true" in reason if is_blocking else f"jax has no device {device}" in reason
    pytest.skip(reason)
