"""A change of settings: its name, what it refuses, and its way through a file."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from options import CONF

from fastloop.config.compose import compose_all
from fastloop.explain.change import Change, change_from
from fastloop.explain.what_ifs import list_what_ifs

OF_JOB = Change(overrides=("loader=np_memmap", "num_workers=0"), is_asked=True)
OF_SCRIPT = Change(settings={"num_workers": 2, "multiprocessing_context": "spawn"}, torch_threads=1)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (Change(), ""),
        (OF_JOB, "loader=np_memmap num_workers=0"),
        (Change(overrides=OF_JOB.overrides, text="loader=np_memmap"), "loader=np_memmap"),
        (OF_SCRIPT, "num_workers=2, multiprocessing_context='spawn', torch.set_num_threads(1)"),
        (
            Change(is_fastloader=True, settings={"batch_size": 8}),
            "fastloop.FastLoader, batch_size=8",
        ),
        (Change(text="write a store"), "write a store"),
    ],
)
def test_name_holds_all_that_is_changed_unless_a_text_stands_for_it(change, name):
    assert change.name == name


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"overrides": "num_workers=2"}, "overrides='num_workers=2'"),
        ({"overrides": ("num_workers=2", "")}, "overrides="),
        ({"overrides": ["num_workers=2"]}, r"overrides=\['num_workers=2'\]"),
        ({"is_asked": True}, "is_asked=True"),
        ({"overrides": ("epochs=1",), "settings": {"num_workers": 2}}, "num_workers"),
        ({"overrides": ("epochs=1",), "is_fastloader": True}, "epochs=1"),
        ({"overrides": ("epochs=1",), "torch_threads": 1}, "epochs=1"),
        ({"settings": {"num workers": 2}}, "num workers"),
        ({"torch_threads": 0}, "torch_threads=0: allowed: 1 or more"),
    ],
)
def test_change_that_can_not_be_carried_out_is_refused(values: dict[str, Any], named):
    with pytest.raises(ValueError, match=named):
        Change(**values)


@pytest.mark.parametrize("change", [Change(), OF_JOB, OF_SCRIPT])
def test_change_is_equal_after_its_way_through_json(change):
    assert change_from(json.loads(json.dumps(asdict(change)))) == change


def test_command_of_a_change_has_the_flags_of_the_present_one(tmp_path, monkeypatch):
    (tmp_path / "dataset").mkdir()
    shutil.copy(CONF / "dataset" / "digits.yaml", tmp_path / "dataset" / "mine.yaml")
    arguments = ["-cd", str(tmp_path), "dataset=mine", "num_workers=0"]
    monkeypatch.setattr(sys, "argv", ["fastloop", *arguments])
    (request,) = compose_all(lambda _: 0)
    change = Change(overrides=("num_workers=2",))
    candidate = SimpleNamespace(name=change.name, change=change, predicted_gain=None)
    (found,) = list_what_ifs([candidate], {}, request)
    words = ["--config-dir", str(tmp_path), "dataset=mine", "num_workers=2"]
    assert shlex.split(found.command) == ["python", "-m", "fastloop.run", *words]
