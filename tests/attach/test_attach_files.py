"""The fields of attach.json and attach_try.json are those that docs/attach-files.md has."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from fastloop.core.explanation import Cause, Verdict
from fastloop.core.machine_load import LoadSummary
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.attach import findings, tried_changes
from fastloop.explain.attach.loader_facts import describe_loader
from fastloop.explain.attach.loop_what_ifs import LoopWhatIf
from fastloop.explain.attach.rank_comparison import RankComparison, RankFindings
from fastloop.explain.attach.step_lines import StepLine, StepLines
from fastloop.explain.change import Change

PAGE = Path(__file__).parents[2] / "docs" / "attach-files.md"
ESTIMATE = Estimate(value=0.5, low=0.4, high=0.6, is_interval=True)
OF_ESTIMATE = {each.name for each in dataclasses.fields(Estimate)}
VERDICT = Verdict(word=Part.STEP, sentences=("It steps",))
SHARES = {Part.STEP: ESTIMATE}
LOAD = LoadSummary(
    stretches=1, busy=1, cores=2, other_cores=1.0, most_other_cores=1.0, busiest=("make",)
)
LINE = StepLine(place="train.py:9", code="step()", share=1.0)


def written_names(value: Any, name: str = "") -> Iterator[str]:
    """The dotted names of all values in a file; the fields of an estimate are those of one name."""
    if isinstance(value, dict) and set(value) != OF_ESTIMATE:
        for key, each in value.items():
            word = "<part>" if name.endswith(".shares") else key
            yield from written_names(each, f"{name}.{word}" if name else word)
    elif isinstance(value, list) and value:
        for each in value:
            yield from written_names(each, f"{name}[]")
    else:
        yield name


def documented_names(heading: str) -> set[str]:
    """The names in the first columns of the tables below the heading."""
    section = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (text,) = [each for each in section if each.startswith(f"{heading}\n")]
    columns = re.findall(r"^\| (`[^|]*)", text, flags=re.MULTILINE)
    return {name for column in columns for name in re.findall(r"`([^`]+)`", column)}


def leaves(names: set[str]) -> set[str]:
    """The names that no other name begins with: the page has a row for some objects, too."""
    return {
        name
        for name in names
        if not any(other.startswith((f"{name}.", f"{name}[")) for other in names)
    }


def a_loop() -> findings.LoopFindings:
    loader = DataLoader(TensorDataset(torch.zeros(4, 1)), in_order=True)
    facts = {"loader": 0, "made_at": "train.py:3", "place": "train.py:9", "is_watched": True}
    facts |= {"gives_workers": True}
    of_class = {"takes": ["dataset"], "without_effect": ["timeout"]}
    rank = RankFindings(rank=0, batches=4, seconds=1.0, verdict=VERDICT, shares=SHARES)
    return findings.LoopFindings(
        name="DataLoader at train.py:9",
        facts=describe_loader(loader) | facts | of_class,
        passes=1,
        loaders=1,
        batches=4,
        seconds=1.0,
        step_ms=1.0,
        load_cores=1.0,
        step_cores=1.0,
        other_cores=0.0,
        samples_wait=False,
        verdict=VERDICT,
        shares=SHARES,
        model_ratio=1.0,
        what_ifs=(LoopWhatIf(change=Change(settings={"num_workers": 2}), gain=0.2),),
        causes=(Cause(name="the step", is_found=True, text="It steps", advice="none"),),
        step_lines=StepLines(of_loop=(LINE,), of_called=(LINE,)),
        coverage=1.0,
        ranks=RankComparison(ranks=(rank,), slowest=0, sentence="It is slow"),
    )


def attach_json() -> str:
    found = findings.ScriptFindings(
        command="train.py",
        status=0,
        loops=(a_loop(),),
        begun=("It began",),
        unseen=("DataLoader",),
        machine_load=LOAD,
        seconds=2.0,
    )
    return findings.to_json(found)


def attach_try_json() -> str:
    change = tried_changes.TriedChange(
        change="num_workers=2", predicted=0.2, gain=ESTIMATE, rounds=3
    )
    tried = tried_changes.TriedLoop(
        place="train.py:9",
        made_at="train.py:3",
        batches=4,
        seconds=1.0,
        changes=(change,),
        least_minutes=1.0,
        best="num_workers=2",
        notes=("A note",),
        minutes=3.0,
        is_out_of_time=True,
        machine_load=LOAD,
    )
    return tried_changes.to_json(tried)


@pytest.mark.parametrize(
    ("heading", "text"),
    [("attach.json", attach_json), ("attach_try.json", attach_try_json)],
)
def test_each_field_is_documented_and_each_documented_one_is_written(heading, text):
    written = set(written_names(json.loads(text())))
    assert leaves({name.removesuffix("[]") for name in documented_names(heading)}) == {
        name.removesuffix("[]") for name in written
    }


def test_fields_of_an_estimate_are_documented():
    assert documented_names("An estimate") == OF_ESTIMATE
