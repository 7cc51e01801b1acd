"""Loops over iterables that are no DataLoaders: FastLoaders, and what fastloop.watch gets."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
from commands import run_fastloop
from torch.utils.data import DataLoader

import fastloop
from fastloop.explain.attach.watched_loops import watch_loops

WATCHED = """
import time
import fastloop

class Batches:
    batch_size = 8
    def __len__(self):
        return 20
    def __iter__(self):
        for number in range(20):
            time.sleep(0.01)
            yield number

seen, batches = [], fastloop.watch(Batches())
for epoch in range(2):
    for number in batches:
        time.sleep(0.002)
        seen.append(number)
rest = fastloop.watch(iter([1, 2, 3]))
print(seen == [*range(20)] * 2, len(batches), batches.batch_size, next(rest), list(rest))
"""

FAST = """
import time
import torch
import fastloop

loader = fastloop.watch(fastloop.FastLoader(torch.arange(80), batch_size=4))
for epoch in range(2):
    for numbers in loader:
        time.sleep(0.001)
print(type(loader).__name__)
"""


def attach(text, cwd):
    (cwd / "train.py").write_text(text)
    process = run_fastloop("train.py", cwd=cwd, command="attach")
    assert process.returncode == 0, process.stderr
    (path,) = cwd.glob("outputs/attach/*/attach.json")
    return process, json.loads(path.read_text())["loops"]


def test_without_attach_watch_returns_the_iterable_itself():
    batches = [1, 2]
    assert fastloop.watch(batches) is batches


def test_iterator_of_a_dataloader_is_recorded_once(tmp_path):
    """By the probe of DataLoaders, which sees what happens inside of next()."""
    iterator = iter(DataLoader([1, 2, 3]))
    assert watch_loops(iterator, tmp_path) is iterator
    assert watch_loops(iter([1, 2, 3]), tmp_path) is not iterator


class Batches:
    """An iterable without a length, and with a state of its own."""

    batch_size = 8

    def __iter__(self):
        return iter([1, 2, 3])

    def __setstate__(self, state):
        assert "_iterable" not in state, "the wrapper's state is not the iterable's"


@pytest.mark.parametrize(
    "copied",
    [copy.copy, lambda watched: pickle.loads(pickle.dumps(watched))],
    ids=["copy", "pickle"],
)
@pytest.mark.parametrize("made", [Batches, lambda: [1, 2, 3], lambda: iter([1, 2, 3])])
def test_watched_iterable_can_be_copied(tmp_path, made, copied):
    watched = watch_loops(made(), tmp_path)
    second = copied(watched)
    assert type(second) is type(watched)
    assert list(second) == [1, 2, 3]


def test_watched_iterable_is_true_if_the_iterable_is(tmp_path):
    watched = watch_loops(Batches(), tmp_path)
    assert watched
    assert watched.batch_size == 8
    with pytest.raises(TypeError, match="Batches"):
        len(watched)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = watched.no_such_name
    assert watch_loops([1], tmp_path)
    assert not watch_loops([], tmp_path)
    assert watch_loops(iter([]), tmp_path), "as any iterator is"


@pytest.mark.heavy
def test_watched_iterable_is_seen_and_behaves_as_before(tmp_path):
    process, loops = attach(WATCHED, tmp_path)
    assert process.stdout == "True 20 8 1 [2, 3]\n"
    loop = next(each for each in loops if each["facts"]["type"] == "Batches")
    assert (loop["passes"], loop["batches"], loop["facts"]["place"]) == (2, 40, "train.py:16")
    assert loop["verdict"]["word"] == "decode"
    assert loop["shares"]["decode"]["value"] > 0.5
    assert loop["load_cores"] < 0.5, "it sleeps"
    assert loop["what_ifs"] == []


def test_loop_over_fastloader_is_seen_once(tmp_path):
    process, loops = attach(FAST, tmp_path)
    assert process.stdout == "FastLoader\n"
    (loop,) = loops
    assert loop["facts"]["type"] == "FastLoader"
    assert (loop["passes"], loop["batches"], loop["facts"]["place"]) == (2, 40, "train.py:8")
