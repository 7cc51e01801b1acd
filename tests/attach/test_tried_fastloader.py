"""FastLoader in DataLoader's place in a shortened run: the script gets what the patch would give
it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastloop.explain.attach.script_runner import AS_IS, ScriptEnded, ScriptRunner
from fastloop.explain.change import Change

FAST = Change(is_fastloader=True)
TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

class Mine(DataLoader):
    pass

data = TensorDataset(torch.arange(32))
other = Mine(data, 4)
loader = {call}(data, 4, shuffle=True, worker_init_fn=print)
{use}
torch.manual_seed(0)
for _ in range(2):
    assert len([*other]) == 8
    for batch in loader:
        pass
"""
MADE = "loader = {call}(data, 4, shuffle=True, worker_init_fn=print)"
NAMED = "assert type(loader).__name__ == {!r} and len(loader) == 8 and loader.batch_size == 4"


def begin_run(folder, use, call="DataLoader", made_at=None):
    """A runner of the script, which uses its loader before the loop."""
    path = folder / "train.py"
    path.write_text(TRAIN.format(use=use, call=call))
    lines = path.read_text().splitlines()
    place = f"train.py:{lines.index('    for batch in loader:') + 1}"
    made_at = made_at or f"{path}:{lines.index(MADE.format(call=call)) + 1}"
    facts = {"place": place, "made_at": made_at}
    found = SimpleNamespace(facts=facts, ranks=None, batches=16, passes=2, seconds=1.0)
    return ScriptRunner([str(path)], cast("Any", found), 12, folder)


@pytest.mark.heavy
def test_script_gets_the_fastloader_with_the_same_samples(tmp_path):
    plain = begin_run(tmp_path, NAMED.format("DataLoader"))
    digests = plain.rerun_hashed(AS_IS, 120.0).digests
    assert len(digests) == 1
    runner = begin_run(tmp_path, NAMED.format("FastLoader"))
    assert runner.seconds(FAST, 120.0) > 0
    (note,) = runner.notes[FAST.name]
    assert note.startswith("worker_init_fn=")
    assert runner.rerun_hashed(FAST, 120.0).digests == digests


@pytest.mark.heavy
@pytest.mark.parametrize("call", ["DataLoader[int]", "torch.utils.data.DataLoader"])
def test_call_by_another_name_makes_the_fastloader(tmp_path, call):
    assert begin_run(tmp_path, NAMED.format("FastLoader"), call).seconds(FAST, 120.0) > 0


BESIDE = [
    # A command line that passes only the arguments that a DataLoader has.
    "import inspect; assert 'batch_size' in inspect.signature(DataLoader).parameters",
    """
class Configured:
    def __new__(cls, *args, **named):
        made = super().__new__(cls)
        made.first = args[0]
        return made

class Both(DataLoader, Configured):
    pass

assert Both(data, 4).first is data
""",
]


@pytest.mark.heavy
@pytest.mark.parametrize("use", BESIDE, ids=["signature", "second base"])
def test_other_uses_of_dataloader_are_as_before(tmp_path, use):
    assert begin_run(tmp_path, use).seconds(FAST, 120.0) > 0


@pytest.mark.heavy
def test_dataloader_that_a_library_makes_is_not_timed_as_fastloader(tmp_path):
    """The place of the call is in the library's function, which FastLoader's making never sees."""
    wrapper = tmp_path / "library.py"
    wrapper.write_text(
        "from torch.utils.data import DataLoader\n"
        "original = DataLoader.__init__\n"
        "def wrapped(*args, **named):\n"
        "    original(*args, **named)\n"
        "DataLoader.__init__ = wrapped\n"
    )
    call = "__import__('library').DataLoader"
    runner = begin_run(tmp_path, "", call, made_at=f"{wrapper}:4")
    assert runner.seconds(AS_IS, 120.0) > 0
    with pytest.raises(ScriptEnded, match="can't take the place of a library's DataLoader"):
        runner.seconds(FAST, 120.0)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("use", "reason"),
    [
        ("assert isinstance(loader, DataLoader), 'another class'", "another class"),
        ("loader.check_worker_number_rationality()", "has no attribute 'check_worker_number"),
    ],
)
def test_use_that_fastloader_lacks_fails_in_the_trial(tmp_path, use, reason):
    """And not first when the patch is applied."""
    runner = begin_run(tmp_path, use)
    assert runner.seconds(AS_IS, 120.0) > 0
    with pytest.raises(ScriptEnded, match=reason):
        runner.seconds(FAST, 120.0)
