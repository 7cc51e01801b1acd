"""The patch of the call that makes a DataLoader: it keeps the meaning of every other argument."""

from __future__ import annotations

import ast
import inspect
import re

import pytest
import torch
from torch.utils.data import DataLoader

from fastloop import FastLoader
from fastloop.core.types import Unsupported
from fastloop.explain.attach.call_patch import ScriptChange, edit_call
from fastloop.explain.attach.fastloader_notes import collect_notes

FAST = ScriptChange(is_fastloader=True)
WITHOUT = ScriptChange(settings={"num_workers": 0})
ARGUMENTS = [*inspect.signature(DataLoader.__init__).parameters][1:]
OF_WORKERS = {
    "persistent_workers": "True",
    "prefetch_factor": "4",
    "timeout": "30",
    "multiprocessing_context": "'fork'",
}
"""Arguments that DataLoader refuses without workers, as a script may give them."""


def edited_call(call: str, change: ScriptChange) -> ast.Call:
    tree = ast.parse(edit_call(f"import torch\nloader = {call}\n", 2, change))
    (assignment,) = [node for node in tree.body if isinstance(node, ast.Assign)]
    assert isinstance(assignment.value, ast.Call)
    return assignment.value


@pytest.mark.parametrize("name", ARGUMENTS)
def test_fastloader_gets_every_argument_of_dataloader(name):
    call = edited_call(f"DataLoader({name}=mine)", FAST)
    assert ast.unparse(call) == f"fastloop.FastLoader({name}=mine)"
    theirs, ours = (
        inspect.signature(kind.__init__).parameters for kind in (DataLoader, FastLoader)
    )
    assert ours[name].kind == theirs[name].kind
    if theirs[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        assert [*ours].index(name) == [*theirs].index(name)


@pytest.mark.parametrize("given", [*({name} for name in OF_WORKERS), {*OF_WORKERS}])
@pytest.mark.parametrize("way", ["named", "packed"])
def test_without_workers_the_call_runs(given, way):
    words = ", ".join(f"{name}={OF_WORKERS[name]}" for name in ["num_workers", *sorted(given)][1:])
    packed = f"**dict({words})" if way == "packed" else words
    call = edited_call(f"DataLoader([1, 2, 3], 2, num_workers=1, {packed})", WITHOUT)
    loader = eval(ast.unparse(call))
    assert loader.num_workers == 0
    assert [each.tolist() for each in loader] == [[1, 2], [3]]


def test_arguments_by_position_are_not_mistaken():
    by_position = "DataLoader(a, 1, False, None, None, 2, None, False, False, 30, None, None, g)"
    kept = edited_call(by_position, ScriptChange(settings={"prefetch_factor": 8}))
    assert ast.unparse(kept) == f"{by_position[:-1]}, prefetch_factor=8)"
    changed = edited_call(by_position, WITHOUT)
    by_now = "DataLoader(a, 1, False, None, None, 0, None, False, False, 0, None, None, g)"
    assert ast.unparse(changed) == by_now


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("DataLoader(*arguments)", "unpacks arguments without their names"),
        ("DataLoader(a), DataLoader(b)", "makes 2 DataLoaders"),
        ("make_loaders(DataLoader(a), DataLoader(b))", "makes 2 DataLoaders"),
    ],
)
def test_call_that_may_be_another_is_told(line, reason):
    with pytest.raises(Unsupported, match=f"line 2 {reason}"):
        edit_call(f"import torch\nloaders = {line}\n", 2, WITHOUT)


def test_call_inside_of_another_loader_is_the_one():
    call = edited_call("prepare_loader(DataLoader(a, 8))", FAST)
    assert ast.unparse(call) == "prepare_loader(fastloop.FastLoader(a, 8))"


def test_call_by_another_name_is_found():
    source = "from torch.utils.data import DataLoader as DL\nloader = DL(a, in_order=False)\n"
    assert edit_call(source, 2, FAST) == (
        "import fastloop\n"
        "from torch.utils.data import DataLoader as DL\n"
        "loader = fastloop.FastLoader(a, in_order=False)\n"
    )


def test_arguments_that_fastloader_drops_are_told_by_its_own_words():
    notes: dict[str, None] = {}
    with collect_notes(notes):
        FastLoader(torch.arange(4), 2, pin_memory=True)
        FastLoader(torch.arange(4), 2, worker_init_fn=print, in_order=False)
    first, second = notes
    assert re.match(r"worker_init_fn=.* has no effect in FastLoader: it is called in worker", first)
    assert second.startswith("in_order=False has no effect in FastLoader: batches come in order")
