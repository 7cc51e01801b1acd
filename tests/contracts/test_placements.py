"""Contract of every placement in conf/placement."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, deque
from datetime import date
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from batch_trees import (
    FLAT,
    NESTED,
    CustomDict,
    CustomList,
    Example,
    Frozen,
    Point,
    _Pair,
    assert_same,
    bind_placement,
    images,
    numbers,
)
from hypothesis import given
from hypothesis import strategies as st
from options import compose_job, options, require_library
from tensordict import LazyStackedTensorDict, TensorDict
from torch.nested import nested_tensor
from torch.nn.utils.rnn import pack_sequence
from torch.utils import _pytree as pytree

from fastloop.core.move_tensors import map_tensors
from fastloop.core.spans import now_ns
from fastloop.core.trees import read_bytes, tree_leaves
from fastloop.core.types import Invalid, Unsupported
from fastloop.data.digest import leaves_of
from fastloop.options.launcher.single import SingleLauncher
from fastloop.trial.support import check_support
from fastloop.trial.timed_trial import run_trial

CPU, META = torch.device("cpu"), torch.device("meta")
NO_META = ("jax",)


TENSORDICTS = {
    "a tensordict": TensorDict({"b": numbers()}, batch_size=[4]),
    "a tensordict of one": [TensorDict({"b": numbers()[:1]}, batch_size=[1])],
    "an empty tensordict": [TensorDict({"b": numbers()[:0]}, batch_size=[0])],
    "a tensordict in a dataclass": Example(TensorDict({"b": {"c": numbers()}}, batch_size=[4])),
    "a tensordict in a dict": {"a": TensorDict({"b": numbers()}, batch_size=[4]), "c": numbers()},
    "a tensordict with a name": [TensorDict({"b": numbers(), "n": "name"}, batch_size=[])],
}
"""Batches with tensordicts, which dm-tree treats as mappings."""
DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)
SHAPES = {
    "no dimension": lambda dtype: torch.ones((), dtype=dtype),
    "empty": lambda dtype: torch.ones((0, 3), dtype=dtype),
    "transposed": lambda dtype: torch.ones((2, 3), dtype=dtype).t(),
    "a slice": lambda dtype: torch.ones((9, 3), dtype=dtype)[1:8:2, 1:],
    "expanded": lambda dtype: torch.ones((1, 3), dtype=dtype).expand(4, 3),
}


def outcome(placement: str, tree, device: torch.device) -> tuple[Any, str]:
    """Result and "", or None and the reason why the placement does not move the tree."""
    place = bind_placement(placement, device)
    try:
        return place(tree), ""
    except Unsupported as error:
        return None, str(error)


def move_tree(placement: str, tree, device: torch.device):
    return bind_placement(placement, device)(tree)


ALL = options("placement")
DEVICES = pytest.mark.parametrize("device", [CPU, META], ids=str)


@DEVICES
@pytest.mark.parametrize("non_blocking", ["false", "true"])
@pytest.mark.parametrize("placement", ALL)
def test_placement_keeps_the_content_of_a_flat_batch(placement, non_blocking, device):
    place = bind_placement(placement, device, non_blocking)
    for name, tree in FLAT.items():
        if name != "a tensordict" or placement != "dm_tree":
            assert_same(tree, place(tree), device)


@DEVICES
@pytest.mark.parametrize("tree", NESTED.values(), ids=NESTED.keys())
@pytest.mark.parametrize("placement", [name for name in ALL if name != "direct"])
def test_placement_keeps_the_content_of_a_nested_batch(placement, tree, device):
    assert_same(tree, move_tree(placement, tree, device), device)


@DEVICES
@pytest.mark.parametrize("tree", TENSORDICTS.values(), ids=TENSORDICTS.keys())
@pytest.mark.parametrize("placement", [name for name in ALL if name != "direct"])
def test_placement_keeps_the_content_of_a_tensordict_or_rejects_it(placement, tree, device):
    after, refusal = outcome(placement, tree, device)
    if refusal:
        assert placement == "dm_tree"
        assert "placement=recursive can" in refusal
    else:
        assert_same(tree, after, device)


@pytest.mark.parametrize("tree", NESTED.values(), ids=NESTED.keys())
def test_direct_moves_a_nested_batch_or_names_the_alternative(tree):
    after, refusal = outcome("direct", tree, META)
    if refusal:
        assert "placement=recursive moves any" in refusal
    else:
        assert_same(tree, after, META)


def test_direct_names_the_types_that_it_cannot_move():
    message = r"got \(dict, Tensor\); placement=recursive moves any"
    with pytest.raises(Unsupported, match=message):
        move_tree("direct", [{"a": numbers()}, numbers()], CPU)


class Opaque:
    """Class that no pytree library knows."""

    def __init__(self, content: Any = None) -> None:
        self.content = content


class WithSlots:
    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content


UNMOVABLE = {
    "numpy.ndarray: torch.from_numpy": {"a": np.zeros(4)},
    "numpy.ndarray: ": [Example(np.zeros(4))],
    "can't move a test_placements.Opaque": (numbers(), Opaque(numbers())),
    "can't move a .*Opaque": {"a": [Opaque({"b": [Opaque(numbers())]})]},
    "can't move a .*WithSlots": [Example(WithSlots(np.zeros(4)))],
    "can't move a set": {"a": {numbers(), 2}},
    "holds tensors in a list": [TensorDict({"a": numbers()}, []).set_non_tensor("b", [numbers()])],
}


@DEVICES
@pytest.mark.parametrize(("message", "tree"), UNMOVABLE.items(), ids=UNMOVABLE.keys())
@pytest.mark.parametrize("placement", [name for name in ALL if name != "direct"])
def test_placement_rejects_a_tree_that_it_would_move_in_part(placement, message, tree, device):
    with pytest.raises(
        Unsupported, match=message if placement != "dm_tree" else f"{message}|dm-tree"
    ):
        move_tree(placement, tree, device)


@DEVICES
@pytest.mark.parametrize("placement", ALL)
def test_placement_keeps_fields_that_are_not_tensors(placement, device):
    place, opaque = bind_placement(placement, device), Opaque("content")
    assert place((images(), opaque))[1] is opaque
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
    """Values of a tensor of any layout, as Python numbers."""
    if tensor.is_nested:
        return [row.tolist() for row in tensor.unbind()]
    return tensor.to_dense().to(torch.complex64).tolist()


@pytest.mark.filterwarnings("ignore:.*(Sparse|sparse|ComplexHalf):UserWarning")
@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL.keys())
@pytest.mark.parametrize("placement", ALL)
def test_placement_keeps_an_unusual_tensor_or_rejects_it(placement, make):
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
def test_placement_moves_a_lazy_stack_of_different_shapes(placement, device):
    stack = LazyStackedTensorDict(*[TensorDict({"a": numbers()[:size]}, []) for size in (2, 3)])
    after, refusal = outcome(placement, [stack], device)
    if refusal:
        assert placement == "dm_tree"
        return
    assert [part["a"].shape for part in after[0].tensordicts] == [(2,), (3,)]
    assert {part["a"].device.type for part in after[0].tensordicts} == {device.type}


@DEVICES
@pytest.mark.parametrize("placement", ALL)
def test_placement_keeps_every_dtype_and_layout(placement, device):
    place = bind_placement(placement, device)
    for dtype in DTYPES:
        batch = tuple(make(dtype) for make in SHAPES.values())
        assert_same(batch, place(batch), device)


@pytest.mark.parametrize("placement", ALL)
def test_placement_never_reuses_an_output(placement):
    place = bind_placement(placement, CPU)
    outputs = [place([torch.full((64,), value), torch.arange(value)]) for value in range(20)]
    for value, (filled, counted) in enumerate(outputs):
        assert torch.equal(filled, torch.full((64,), value))
        assert torch.equal(counted, torch.arange(value))


@pytest.mark.parametrize("tree", [name for name in NESTED if name != "nothing"])
@pytest.mark.parametrize("placement", [name for name in ALL if name != "direct"])
def test_placement_leaves_its_input_unchanged(placement, tree):
    before = NESTED[tree]
    device = CPU if placement in NO_META else META
    after = move_tree(placement, before, device)
    tensors = [leaf for leaf in tree_leaves(before) if isinstance(leaf, torch.Tensor)]
    assert {leaf.device.type for leaf in tensors} == {"cpu"}
    assert after is not before


def test_map_location_does_not_copy_the_whole_storage_of_a_view():
    whole = torch.rand(1000, 8)
    (part,) = move_tree("map_location", [whole[:10]], CPU)
    assert part.untyped_storage().nbytes() == part.nbytes


@pytest.mark.parametrize("placement", [name for name in ALL if name not in NO_META])
def test_placement_moves_a_packed_sequence_or_rejects_it(placement):
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    after, refusal = outcome(placement, [packed], META)
    if refusal:
        assert placement == "dm_tree"
        assert "placement=recursive can" in refusal
        return
    assert (after[0].data.device, after[0].batch_sizes.device) == (META, CPU)


def test_placement_does_not_initialize_a_dataclass_again():
    after = move_tree("recursive", Example(numbers()), META)
    assert after.checked == 1


@dataclasses.dataclass
class CachedDouble:
    values: torch.Tensor

    @cached_property
    def twice(self) -> torch.Tensor:
        return 2 * self.values


def test_placement_moves_cached_properties_of_a_dataclass():
    before = CachedDouble(numbers())
    assert before.twice.device == CPU
    after = move_tree("recursive", before, META)
    assert after.values.device == after.twice.device == META


class PytreeNode(Opaque):
    """Class registered in torch's pytree."""


pytree.register_pytree_node(
    PytreeNode, lambda node: ([node.content], None), lambda parts, _: PytreeNode(*parts)
)


@DEVICES
@pytest.mark.parametrize("placement", [name for name in ALL if name != "direct"])
def test_placement_moves_a_class_registered_in_torchs_pytree(placement, device):
    after = move_tree(placement, [PytreeNode({"a": numbers()}), 3], device)
    assert (type(after[0]), after[1]) == (PytreeNode, 3)
    assert after[0].content["a"].device == device
    assert tree_leaves(after)[1:] == [3]


def leaf_strategy() -> st.SearchStrategy:
    tensors = st.builds(
        lambda make, dtype: make(dtype),
        st.sampled_from([*SHAPES.values()]),
        st.sampled_from(DTYPES),
    )
    return tensors | tensors | st.none() | st.integers() | st.text(max_size=3) | st.booleans()


def tree_strategy(children: st.SearchStrategy) -> st.SearchStrategy:
    keys, lists = st.text(max_size=2), st.lists(children, max_size=3)
    pairs = st.dictionaries(keys, children, max_size=3)
    return st.one_of(
        *(lists.map(kind) for kind in (list, tuple, deque, CustomList)),
        *(pairs.map(kind) for kind in (dict, OrderedDict, CustomDict, UserDict)),
        st.builds(Point, children, children),
        st.builds(Example, children, children),
        st.builds(Frozen, children, keys),
    )


@pytest.mark.parametrize("placement", [name for name in ALL if name != "direct"])
def test_placement_keeps_the_content_of_any_tree(placement):
    devices = (CPU,) if placement in NO_META else (CPU, META)
    moves = [(device, bind_placement(placement, device)) for device in devices]

    @given(tree=st.recursive(leaf_strategy(), tree_strategy, max_leaves=12))
    def check(tree):
        for device, place in moves:
            assert_same(tree, place(tree), device)

    check()


FORKS = {
    "num_workers=1": ("num_workers=1", "persistent_workers=true"),
    "device_prefetch_by=process": ("device_prefetch_by=process", "device_prefetch=2"),
}
"""Settings that start a loading process."""


@pytest.mark.jax
@pytest.mark.parametrize("setting", FORKS)
def test_jax_rejects_forked_processes_and_names_alternatives(setting):
    require_library("jax")
    job = compose_job("placement=jax", *FORKS[setting], "multiprocessing_context=fork")
    with pytest.raises(Unsupported, match=f"^placement=jax with {setting}: jax runs thr") as error:
        check_support(job)
    assert str(error.value).endswith("use multiprocessing_context=spawn or forkserver")
    for method in (None, "spawn", "forkserver"):
        other_job = dataclasses.replace(
            job, loading=dataclasses.replace(job.loading, multiprocessing_context=method)
        )
        if other_job.start_method() == "fork":  # the default on Linux
            with pytest.raises(Unsupported, match="jax runs threads"):
                check_support(other_job)
        else:
            check_support(other_job)
    check_support(compose_job("placement=recursive", *FORKS[setting]))


@pytest.mark.heavy
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize(("setting", "method"), [*zip(FORKS, ("spawn", "forkserver"), strict=True)])
def test_jax_runs_next_to_processes_that_are_not_forked(prepared_job, setting, method):
    require_library("jax")
    overrides = ("dataset=mydataset", "dataset.count=64", "loader=raw", "epochs=1")
    overrides = (*overrides, "min_window_s=0")
    job, prepared = prepared_job(
        *("placement=jax", *overrides, *FORKS[setting], f"multiprocessing_context={method}")
    )
    trial = SingleLauncher(isolation="forkserver").call(run_trial, job, prepared, 0, now_ns())
    assert {measurement.samples for measurement in trial.benchmarks.values()} == {64}


class PinnedTensor(torch.Tensor):
    """Tensor that reports itself to DLPack as page-locked."""

    def is_pinned(self, device=None):
        return True


@pytest.mark.jax
def test_jax_treats_page_locked_memory_as_host_memory():
    (after,) = move_tree("jax", [images(3).as_subclass(PinnedTensor)], CPU)
    assert type(after) is torch.Tensor
    assert after.device == CPU


def pin_leaf(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.contiguous().pin_memory()  # an expanded tensor is not contiguous


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
@pytest.mark.parametrize("non_blocking", ["false", "true"])
@pytest.mark.parametrize("placement", ALL)
def test_placement_on_cuda_keeps_the_values_of_every_leaf(placement, non_blocking, pinned):
    device = torch.device("cuda", 0)
    place = bind_placement(placement, device, non_blocking)
    trees = list(FLAT.values())[:4] if placement == "direct" else list(NESTED.values())
    trees += [tuple(make(dtype) for make in SHAPES.values()) for dtype in DTYPES]
    for tree in trees:
        source = map_tensors(pin_leaf, tree) if pinned else tree
        after = place(source)
        torch.cuda.synchronize()
        assert_same(tree, after, device)


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ALL)
def test_placement_on_cuda_never_overwrites_an_earlier_batch(placement):
    place = bind_placement(placement, torch.device("cuda", 0))
    sums, earlier = [], []
    for value in range(200):
        batch = place((torch.full((1 << 18,), value), torch.full((64,), float(value))))
        sums.append(batch[0].sum() + batch[1].sum())  # the sum is enqueued and the batch released
        if value % 50 == 0:
            earlier.append((value, batch))
    wanted = [((1 << 18) + 64) * value for value in range(200)]
    assert [int(total) for total in sums] == wanted
    assert all(bool((batch[0] == value).all()) for value, batch in earlier)


@pytest.mark.parametrize("tree", ["004's dict", "a list of dicts", "tuples in tuples"])
def test_read_bytes_reads_every_byte_of_a_nested_batch(tree):
    batch = NESTED[tree]
    leaves = tree_leaves(batch)
    assert read_bytes(batch) == sum(leaf.nbytes for leaf in leaves)
    assert len(leaves_of(batch)) == len(leaves)


CONTAINERS = {
    "a dataclass": Example(images(), numbers()),
    "a tensorclass": _Pair(images(), numbers(), batch_size=[4]),
    "a tensordict": TensorDict({"a": images(), "b": numbers()}, batch_size=[4]),
    "a user dict": CustomDict(a=images(), b=numbers()),
}


@pytest.mark.parametrize("name", ["a tensorclass", "a tensordict", "a user dict"])
def test_leaves_of_looks_into_containers_unknown_to_optree(name):
    assert leaves_of(CONTAINERS[name]) == leaves_of((images(), numbers()))
    assert read_bytes(CONTAINERS[name]) == images().nbytes + numbers().nbytes


def test_leaves_of_rejects_a_dataclass_with_a_number():
    with pytest.raises(Invalid, match="int"):
        leaves_of(CONTAINERS["a dataclass"])
