"""Scripts under torchrun: a verdict on each rank, and the slowest of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import run_fastloop

from fastloop.core.parts import Part
from fastloop.explain.attach.loops import Loop
from fastloop.explain.attach.rank_comparison import compare_ranks

SCRIPT = str(Path(__file__).parents[1] / "support" / "scripts" / "slow_rank.py")
TORCHRUN = ("--standalone", "--nproc_per_node=2")
BATCHES = 40


def rank_of(number, decode_ns, step_ns):
    """A rank's loop over batches that are decoded in the loop itself."""
    waits = np.zeros((BATCHES, 4), np.int64)
    waits[:, 0] = decode_ns
    return Loop(
        facts={"type": "DataLoader", "place": "train.py:9", "num_workers": 0},
        passes=(),
        waits_ns=waits,
        steps_ns=np.full(BATCHES, step_ns, np.int64),
        pass_of=np.zeros(BATCHES, np.int64),
        starts_ns=np.zeros(0, np.int64),
        transform_share=None,
        made=(),
        rank=number,
    )


def compare(*ranks):
    comparison = compare_ranks(Loop(**{**vars(ranks[0]), "rank": None, "ranks": ranks}))
    assert comparison is not None
    return comparison


def test_ranks_that_keep_step_wait_in_their_steps_for_the_one_that_waits_for_data():
    ms = 10**6
    found = compare(rank_of(0, 0, 30 * ms), rank_of(1, 20 * ms, 10 * ms), rank_of(2, 0, 30 * ms))
    assert [each.rank for each in found.ranks] == [0, 1, 2]
    assert [each.verdict.word for each in found.ranks] == [Part.STEP, Part.DECODE, Part.STEP]
    assert found.slowest == 1
    assert found.sentence == (
        "All ranks take equally long, but rank 1 slows down the others: it waits 0.8 s for data, "
        "the others 0 s on average, and in their steps they wait for rank 1; 0.8 s of the "
        "difference is decode"
    )


def test_rank_that_takes_longest_is_named_with_what_takes_longer():
    ms = 10**6
    found = compare(rank_of(4, 5 * ms, 10 * ms), rank_of(5, 5 * ms, 35 * ms))
    assert found.slowest == 5
    assert found.sentence == (
        "Rank 5 is the slowest: its loop takes 1.6 s, the others' 0.6 s on average; "
        "1 s of the difference is step"
    )


def test_like_ranks_are_not_told_apart():
    found = compare(rank_of(0, 10**6, 10**6), rank_of(1, 10**6, 10**6))
    assert found.slowest is None
    assert found.sentence == "The 2 ranks take equally long and wait equally long for data"


def check_findings(process, cwd):
    assert process.returncode == 0, process.stderr
    assert process.stdout == "trained\n"
    (path,) = cwd.glob("outputs/attach/*/attach.json")
    (loop,) = json.loads(path.read_text())["loops"]
    assert (loop["passes"], loop["batches"]) == (4, 48)
    ranks = loop["ranks"]
    assert [(each["rank"], each["batches"]) for each in ranks["ranks"]] == [(0, 24), (1, 24)]
    assert ranks["slowest"] == 1
    assert ranks["sentence"] in " ".join(process.stderr.split())
    page = path.with_name("attach.html").read_text()
    assert "slow_rank.py:33 in rank 1: pass" in page, "the picture is of the slowest"
    for each in ranks["ranks"]:
        assert f"in rank {each['rank']} " in each["verdict"]["sentences"][0]
    return ranks["ranks"]


@pytest.mark.heavy
@pytest.mark.nightly
def test_slow_rank_of_torchrun_is_named(tmp_path):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    arguments = ("--", "torchrun", *TORCHRUN, SCRIPT)
    process = run_fastloop(*arguments, cwd=tmp_path, command="attach", PATH=path)
    fast, slow = check_findings(process, tmp_path)
    assert slow["shares"]["decode"]["value"] > fast["shares"]["decode"]["value"]


@pytest.mark.heavy
@pytest.mark.nightly
def test_ranks_that_attach_by_themselves_write_a_verdict_each(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", *TORCHRUN]
    process = subprocess.run(
        [*command, "-m", "fastloop", "attach", SCRIPT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    found = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/attach/*/attach.json")]
    loops = [loop for each in found for loop in each["loops"]]
    assert sorted(loop["facts"]["rank"] for loop in loops) == ["0", "1"]
    assert [(loop["passes"], loop["batches"]) for loop in loops] == [(2, 24)] * 2
