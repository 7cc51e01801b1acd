"""The contract of every placement found in conf/placement."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import optree
import pytest
import torch
from options import compose_job, options
from tensordict import TensorDict, is_tensor_collection, tensorclass

from fastloop.benchmarks.traversal import read
from fastloop.digest import leaves_of
from fastloop.types import Unsupported

Point = namedtuple("Point", "x y")


@tensorclass
class Pair:
    data: torch.Tensor
    targets: torch.Tensor


_Pair: Any = Pair


def images(*channels: int) -> torch.Tensor:
    return torch.rand(4, *channels, 5, 5)


def numbers() -> torch.Tensor:
    return torch.arange(4)


FLAT = {
    "a list": [images(3), numbers()],
    "a tuple": (images(3), numbers().to(torch.uint8)),
    "a named tuple": Point(images(1), numbers()),
    "a tensor": numbers(),
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
    "a tensordict in a dict": {"a": TensorDict({"b": numbers()}, batch_size=[4]), "c": numbers()},
    "a tensorclass in a list": [_Pair(images(), numbers(), batch_size=[4])],
    "nothing": {"a": [], "b": ()},
}
OTHERS = {"name": ["a", "b"], "count": 3, "none": None, "tensor": numbers()}


def assert_same(before, after, device: torch.device) -> None:
    """Same types, keys in the same order, dtypes and shapes, on the device; there on a CPU the same
    values."""
    assert type(after) is type(before)
    if isinstance(before, torch.Tensor):
        assert (after.dtype, after.shape, after.device) == (before.dtype, before.shape, device)
        assert device.type == "meta" or torch.equal(before, after)
    elif isinstance(before, dict) or is_tensor_collection(before):
        before, after = (one if isinstance(one, dict) else one.to_dict() for one in (before, after))
        assert list(after) == list(before)
        for key in before:
            assert_same(before[key], after[key], device)
    elif isinstance(before, list | tuple):
        assert len(after) == len(before)
        for one, other in zip(before, after, strict=True):
            assert_same(one, other, device)
    else:
        assert after == before


def placed(placement: str, tree, device: torch.device, *overrides: str):
    made = compose_job(f"placement={placement}", *overrides).placement
    return made.to(device)(tree)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("non_blocking", ["false", "true"])
@pytest.mark.parametrize("tree", FLAT.values(), ids=FLAT.keys())
@pytest.mark.parametrize("placement", options("placement"))
def test_a_flat_batch_comes_out_as_it_went_in(placement, tree, non_blocking, device):
    setting = f"placement.non_blocking={non_blocking}"
    device = torch.device(device)
    assert_same(tree, placed(placement, tree, device, setting), device)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("tree", NESTED.values(), ids=NESTED.keys())
@pytest.mark.parametrize("placement", options("placement"))
def test_a_nested_batch_comes_out_as_it_went_in_or_is_unsupported(placement, tree, device):
    device = torch.device(device)
    try:
        after = placed(placement, tree, device)
    except Unsupported:
        assert placement != "recursive"
    else:
        assert_same(tree, after, device)


def test_what_direct_can_not_move_is_named():
    said = r"got \(dict, Tensor\); placement=recursive moves any"
    with pytest.raises(Unsupported, match=said):
        placed("direct", [{"a": numbers()}, numbers()], torch.device("cpu"))


def test_other_leaves_pass_through_a_recursive_placement():
    after = placed("recursive", OTHERS, torch.device("meta"))
    assert_same(OTHERS, after, torch.device("meta"))


def test_a_placement_leaves_the_batch_that_it_was_given_as_it_was():
    tree = NESTED["004's dict"]
    after = placed("recursive", tree, torch.device("meta"))
    assert {leaf.device.type for leaf in optree.tree_leaves(tree)} == {"cpu"}
    assert after["pim"] is not tree["pim"]


@pytest.mark.parametrize("tree", ["004's dict", "a list of dicts", "tuples in tuples"])
def test_every_byte_of_a_nested_batch_is_read(tree):
    batch = NESTED[tree]
    leaves = optree.tree_leaves(batch)
    assert read(batch) == sum(leaf.nbytes for leaf in leaves)
    assert len(leaves_of(batch)) == len(leaves)
