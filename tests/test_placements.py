"""The contract of every placement found in conf/placement."""

from __future__ import annotations

import dataclasses
import re
from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from options import compose_job, library, options, skip_without_its_library
from tensordict import LazyStackedTensorDict, TensorDict, is_tensor_collection, tensorclass
from torch.nested import nested_tensor
from torch.nn.utils.rnn import pack_sequence

from fastloop.ahead.leaves import mapped
from fastloop.benchmarks.traversal import read
from fastloop.digest import leaves_of
from fastloop.job import check_support
from fastloop.launchers.single import Single
from fastloop.spans import now_ns
from fastloop.trees import tree_leaves
from fastloop.trial import run_trial
from fastloop.types import Invalid, Unsupported

Point = namedtuple("Point", "x y")
CPU, META = torch.device("cpu"), torch.device("meta")
WAITS = ("map_location",)
"""Placements that have no non_blocking."""
NO_META = ("jax",)


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


class OwnDict(dict):
    pass


class OwnList(list):
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
    "classes of one's own": [OwnDict(z=numbers(), a=OwnList([images()])), UserDict(b=numbers())],
    "a tensorclass in a list": [_Pair(images(), numbers(), batch_size=[4])],
    "nothing": {"a": [], "b": (), "c": {}},
    "other leaves": {"name": ["a", b"b"], "count": (3, 2.5, 1j, True), "none": None, "t": images()},
    "leaves of numpy": [np.float32(2), np.int64(3), images()],
    "leaves that hold no data": {"day": datetime(2026, 1, 2), "id": UUID(int=1), "t": images()},
    "more of them": [slice(2), timedelta(1), bytearray(b"a"), ..., int, re.compile("a"), images()],
    "a shape": [images().shape, images()],
    "a list of one's own": UserList([images(), [numbers()]]),
}
TENSORDICTS = {
    "a tensordict": TensorDict({"b": numbers()}, batch_size=[4]),
    "a tensordict of one": [TensorDict({"b": numbers()[:1]}, batch_size=[1])],
    "an empty tensordict": [TensorDict({"b": numbers()[:0]}, batch_size=[0])],
    "a tensordict in a dataclass": Example(TensorDict({"b": {"c": numbers()}}, batch_size=[4])),
    "a tensordict in a dict": {"a": TensorDict({"b": numbers()}, batch_size=[4]), "c": numbers()},
    "a tensordict with a name": [TensorDict({"b": numbers(), "n": "name"}, batch_size=[])],
}
"""What dm-tree takes for mappings."""
DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.complex128),
)
SHAPES = {
    "no dimension": lambda dtype: torch.ones((), dtype=dtype),
    "empty": lambda dtype: torch.ones((0, 3), dtype=dtype),
    "transposed": lambda dtype: torch.ones((2, 3), dtype=dtype).t(),
    "a part": lambda dtype: torch.ones((9, 3), dtype=dtype)[1:8:2, 1:],
    "expanded": lambda dtype: torch.ones((1, 3), dtype=dtype).expand(4, 3),
}


def assert_same(before, after, device: torch.device) -> None:
    """Same types, keys in the same order, dtypes and shapes, on the device; there on a CPU the same
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
        before, after = ({name: getattr(one, name) for name in fields} for one in (before, after))
    if isinstance(before, dict | UserDict):
        assert list(after) == list(before)
        before, after = list(before.values()), list(after.values())
    if isinstance(before, list | UserList | tuple | deque):
        assert len(after) == len(before)
        for one, other in zip(before, after, strict=True):
            assert_same(one, other, device)
    else:
        assert after == before


def mover(placement: str, device: torch.device, non_blocking: str = "false"):
    """The bound placement; the test is skipped where it rightly says that it can't be had."""
    option = compose_job(f"placement={placement}", f"placement.non_blocking={non_blocking}")
    try:
        return option.placement.to(device)
    except Unsupported as why:
        skip_without_its_library(why)
        refusal = str(why)
    waits = placement in WAITS and non_blocking == "true"
    assert "non_blocking=true" in refusal if waits else f"jax has no device {device}" in refusal
    pytest.skip(refusal)


def outcome(placement: str, tree, device: torch.device) -> tuple[Any, str]:
    """What came, and "", or why nothing did."""
    place = mover(placement, device)
    try:
        return place(tree), ""
    except Unsupported as why:
        return None, str(why)


def placed(placement: str, tree, device: torch.device):
    return mover(placement, device)(tree)


ALL = options("placement")
DEVICES = pytest.mark.parametrize("device", [CPU, META], ids=str)


@DEVICES
@pytest.mark.parametrize("non_blocking", ["false", "true"])
@pytest.mark.parametrize("placement", ALL)
def test_a_flat_batch_comes_out_as_it_went_in(placement, non_blocking, device):
    place = mover(placement, device, non_blocking)
    for name, tree in FLAT.items():
        if name != "a tensordict" or placement != "dm_tree":
            assert_same(tree, place(tree), device)


@DEVICES
@pytest.mark.parametrize("tree", NESTED.values(), ids=NESTED.keys())
@pytest.mark.parametrize("placement", [one for one in ALL if one != "direct"])
def test_a_nested_batch_comes_out_as_it_went_in(placement, tree, device):
    assert_same(tree, placed(placement, tree, device), device)


@DEVICES
@pytest.mark.parametrize("tree", TENSORDICTS.values(), ids=TENSORDICTS.keys())
@pytest.mark.parametrize("placement", [one for one in ALL if one != "direct"])
def test_a_tensordict_inside_comes_out_as_it_went_in_or_is_unsupported(placement, tree, device):
    after, refusal = outcome(placement, tree, device)
    if refusal:
        assert placement == "dm_tree"
        assert "placement=recursive can" in refusal
    else:
        assert_same(tree, after, device)


@pytest.mark.parametrize("tree", NESTED.values(), ids=NESTED.keys())
def test_direct_names_what_it_can_not_move(tree):
    after, refusal = outcome("direct", tree, META)
    if refusal:
        assert "placement=recursive moves any" in refusal
    else:
        assert_same(tree, after, META)


def test_what_direct_can_not_move_is_named():
    said = r"got \(dict, Tensor\); placement=recursive moves any"
    with pytest.raises(Unsupported, match=said):
        placed("direct", [{"a": numbers()}, numbers()], CPU)


LEFT_BEHIND = {
    "numpy.ndarray: torch.from_numpy": {"a": np.zeros(4)},
    "numpy.ndarray: ": [Example(np.zeros(4))],
    "object": (numbers(), object()),
    "holds tensors in a list": [TensorDict({"a": numbers()}, []).set_non_tensor("b", [numbers()])],
}


@DEVICES
@pytest.mark.parametrize(("said", "tree"), LEFT_BEHIND.items(), ids=LEFT_BEHIND.keys())
@pytest.mark.parametrize("placement", [one for one in ALL if one != "direct"])
def test_what_would_be_left_behind_is_refused(placement, said, tree, device):
    with pytest.raises(Unsupported, match=said if placement != "dm_tree" else f"{said}|dm-tree"):
        placed(placement, tree, device)


@DEVICES
@pytest.mark.parametrize("placement", ALL)
def test_fields_that_are_no_tensors_stay_as_they_are(placement, device):
    place = mover(placement, device)
    for tree in (
        (images(), "a name", 3, None),
        {"image": images(), "name": "a", "none": None},
        Point(images(), date(2026, 1, 2)),
        [None, numbers()],
    ):
        assert_same(tree, place(tree), device)


UNUSUAL = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "jagged": lambda: nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "conjugate": lambda: torch.tensor([1 + 2j, 3j]).conj(),
    "half complex": lambda: torch.ones(2, dtype=torch.complex32),
}


def values_of(tensor: torch.Tensor) -> list:
    """Of a tensor of any layout, as Python has them."""
    if tensor.is_nested:
        return [one.tolist() for one in tensor.unbind()]
    return tensor.to_dense().to(torch.complex64).tolist()


@pytest.mark.filterwarnings("ignore:.*(Sparse|sparse|ComplexHalf):UserWarning")
@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL.keys())
@pytest.mark.parametrize("placement", ALL)
def test_an_unusual_tensor_comes_out_as_it_went_in_or_is_unsupported(placement, make):
    tensor = make()
    after, refusal = outcome(placement, (tensor, numbers()), CPU)
    if refusal:
        assert placement in ("map_location", "jax")
        assert "placement=recursive moves any" in refusal
        return
    assert (after[0].dtype, after[0].layout) == (tensor.dtype, tensor.layout)
    assert values_of(after[0]) == values_of(tensor)


@DEVICES
@pytest.mark.parametrize("placement", ALL)
def test_a_lazy_stack_of_different_shapes_moves(placement, device):
    stack = LazyStackedTensorDict(*[TensorDict({"a": numbers()[:size]}, []) for size in (2, 3)])
    after, refusal = outcome(placement, [stack], device)
    if refusal:
        assert placement == "dm_tree"
        return
    assert [one["a"].shape for one in after[0].tensordicts] == [(2,), (3,)]
    assert {one["a"].device.type for one in after[0].tensordicts} == {device.type}


@DEVICES
@pytest.mark.parametrize("placement", ALL)
def test_every_dtype_and_layout_comes_out_as_it_went_in(placement, device):
    place = mover(placement, device)
    for dtype in DTYPES:
        batch = tuple(make(dtype) for make in SHAPES.values())
        assert_same(batch, place(batch), device)


@pytest.mark.parametrize("placement", ALL)
def test_an_output_is_never_reused(placement):
    place = mover(placement, CPU)
    outputs = [place([torch.full((64,), value), torch.arange(value)]) for value in range(20)]
    for value, (filled, counted) in enumerate(outputs):
        assert torch.equal(filled, torch.full((64,), value))
        assert torch.equal(counted, torch.arange(value))


@pytest.mark.parametrize("tree", [one for one in NESTED if one != "nothing"])
@pytest.mark.parametrize("placement", [one for one in ALL if one != "direct"])
def test_the_batch_that_was_given_stays_as_it_was(placement, tree):
    before = NESTED[tree]
    device = CPU if placement in NO_META else META
    after = placed(placement, before, device)
    tensors = [leaf for leaf in tree_leaves(before) if isinstance(leaf, torch.Tensor)]
    assert {leaf.device.type for leaf in tensors} == {"cpu"}
    assert after is not before


def test_a_view_does_not_take_its_whole_storage_along():
    whole = torch.rand(1000, 8)
    (part,) = placed("map_location", [whole[:10]], CPU)
    assert part.untyped_storage().nbytes() == part.nbytes


@pytest.mark.parametrize("placement", [one for one in ALL if one not in NO_META])
def test_a_packed_sequence_moves_as_torch_moves_it_or_is_unsupported(placement):
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    after, refusal = outcome(placement, [packed], META)
    if refusal:
        assert placement in ("tensordict", "map_location", "dm_tree")
        assert "placement=recursive c" in refusal
        return
    assert (after[0].data.device, after[0].batch_sizes.device) == (META, CPU)


def test_a_dataclass_is_not_initialized_once_more():
    after = placed("recursive", Example(numbers()), META)
    assert after.checked == 1


def leaf() -> st.SearchStrategy:
    tensors = st.builds(
        lambda make, dtype: make(dtype),
        st.sampled_from([*SHAPES.values()]),
        st.sampled_from(DTYPES),
    )
    return tensors | tensors | st.none() | st.integers() | st.text(max_size=3) | st.booleans()


def grown(children: st.SearchStrategy) -> st.SearchStrategy:
    keys, some = st.text(max_size=2), st.lists(children, max_size=3)
    pairs = st.dictionaries(keys, children, max_size=3)
    return st.one_of(
        *(some.map(kind) for kind in (list, tuple, deque, OwnList)),
        *(pairs.map(kind) for kind in (dict, OrderedDict, OwnDict, UserDict)),
        st.builds(Point, children, children),
        st.builds(Example, children, children),
        st.builds(Frozen, children, keys),
    )


@pytest.mark.parametrize("placement", [one for one in ALL if one != "direct"])
def test_any_tree_comes_out_as_it_went_in(placement):
    devices = (CPU,) if placement in NO_META else (CPU, META)
    moves = [(device, mover(placement, device)) for device in devices]

    @settings(max_examples=60, deadline=None)
    @given(tree=st.recursive(leaf(), grown, max_leaves=12))
    def check(tree):
        for device, place in moves:
            assert_same(tree, place(tree), device)

    check()


FORKS = {
    "num_workers=1": ("num_workers=1", "persistent_workers=true"),
    "device_prefetch_by=process": ("device_prefetch_by=process", "device_prefetch=2"),
}
"""What starts a process that loads."""


@pytest.mark.jax
@pytest.mark.parametrize("starts", FORKS)
def test_jax_with_what_forks_is_unsupported_and_what_works_is_named(starts):
    library("jax")
    job = compose_job("placement=jax", *FORKS[starts], "multiprocessing_context=fork")
    with pytest.raises(Unsupported, match=f"^placement=jax with {starts}: jax runs thr") as why:
        check_support(job)
    assert str(why.value).endswith("multiprocessing_context=spawn and forkserver start without one")
    for method in (None, "spawn", "forkserver"):
        other = dataclasses.replace(job, multiprocessing_context=method)
        if other.start_method() == "fork":  # what a plain script gets on Linux
            with pytest.raises(Unsupported, match="jax runs threads"):
                check_support(other)
        else:
            check_support(other)
    check_support(compose_job("placement=recursive", *FORKS[starts]))


@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize("starts", FORKS)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_jax_beside_processes_that_are_not_forked(prepared_job, starts, method):
    library("jax")
    small = ("dataset=mydataset", "dataset.count=64", "loader=raw", "epochs=1")
    job, prepared = prepared_job(
        *("placement=jax", *small, *FORKS[starts], f"multiprocessing_context={method}")
    )
    trial = Single(isolation="forkserver").call(run_trial, job, prepared, 0, now_ns())
    assert {one.samples for one in trial.benchmarks.values()} == {64}


class PageLocked(torch.Tensor):
    """A tensor that tells DLPack what one in page-locked memory tells it."""

    def is_pinned(self, device=None):
        return True


@pytest.mark.jax
def test_jax_takes_page_locked_memory_for_the_hosts():
    (after,) = placed("jax", [images(3).as_subclass(PageLocked)], CPU)
    assert type(after) is torch.Tensor
    assert after.device == CPU


def page_locked(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.contiguous().pin_memory()  # which no expanded one is


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
@pytest.mark.parametrize("non_blocking", ["false", "true"])
@pytest.mark.parametrize("placement", ALL)
def test_on_cuda_every_leaf_arrives_with_its_values(placement, non_blocking, pinned):
    device = torch.device("cuda", 0)
    place = mover(placement, device, non_blocking)
    trees = list(FLAT.values())[:4] if placement == "direct" else list(NESTED.values())
    trees += [tuple(make(dtype) for make in SHAPES.values()) for dtype in DTYPES]
    for tree in trees:
        given_ = mapped(page_locked, tree) if pinned else tree
        after = place(given_)
        torch.cuda.synchronize()
        assert_same(tree, after, device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
@pytest.mark.parametrize("placement", ALL)
def test_on_cuda_what_came_holds_while_others_come(placement):
    place = mover(placement, torch.device("cuda", 0))
    sums, held = [], []
    for value in range(200):
        batch = place((torch.full((1 << 18,), value), torch.full((64,), float(value))))
        sums.append(batch[0].sum() + batch[1].sum())  # asked for, and the batch let go
        if value % 50 == 0:
            held.append((value, batch))
    wanted = [((1 << 18) + 64) * value for value in range(200)]
    assert [int(one) for one in sums] == wanted
    assert all(bool((batch[0] == value).all()) for value, batch in held)


@pytest.mark.parametrize("tree", ["004's dict", "a list of dicts", "tuples in tuples"])
def test_every_byte_of_a_nested_batch_is_read(tree):
    batch = NESTED[tree]
    leaves = tree_leaves(batch)
    assert read(batch) == sum(leaf.nbytes for leaf in leaves)
    assert len(leaves_of(batch)) == len(leaves)


LOOKED_INTO = {
    "a dataclass": Example(images(), numbers()),
    "a tensorclass": _Pair(images(), numbers(), batch_size=[4]),
    "a tensordict": TensorDict({"a": images(), "b": numbers()}, batch_size=[4]),
    "a dict of one's own": OwnDict(a=images(), b=numbers()),
}


@pytest.mark.parametrize("name", ["a tensorclass", "a tensordict", "a dict of one's own"])
def test_what_optree_does_not_know_is_looked_into(name):
    assert leaves_of(LOOKED_INTO[name]) == leaves_of((images(), numbers()))
    assert read(LOOKED_INTO[name]) == images().nbytes + numbers().nbytes


def test_a_dataclass_with_a_number_is_no_batch():
    with pytest.raises(Invalid, match="int"):
        leaves_of(LOOKED_INTO["a dataclass"])
