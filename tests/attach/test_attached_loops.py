"""The loops of scripts that are attached to: what is recorded, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import run_fastloop

SCRIPTS = Path(__file__).parents[1] / "support" / "scripts"


def attach(*arguments, cwd):
    """The ended command, and what it has found."""
    process = run_fastloop(*arguments, cwd=cwd, command="attach")
    paths = sorted(cwd.glob("outputs/attach/*/attach.json"))
    return process, json.loads(paths[0].read_text()) if paths else None


def check_plain_loop(findings, workers):
    (loop,) = findings["loops"]
    assert (loop["passes"], loop["batches"]) == (2, 48)
    assert loop["facts"]["place"] == "plain_loop.py:38"
    assert loop["facts"]["num_workers"] == workers
    shares = {part: share["value"] for part, share in loop["shares"].items()}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["decode"] > shares["transform"] > 0
    assert loop["step_ms"] >= 1


def test_plain_loop_waits_for_its_dataset(tmp_path):
    process, findings = attach(str(SCRIPTS / "plain_loop.py"), "{}", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "True DataLoader\n"
    check_plain_loop(findings, workers=0)
    assert findings["loops"][0]["shares"]["decode"]["low"] > 0.4
    assert findings["loops"][0]["verdict"]["word"] == "decode"
    assert "verdict: decode" in process.stderr
    assert "files:" in process.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_carry_the_probe(tmp_path, context):
    settings = {"num_workers": 2, "multiprocessing_context": context, "persistent_workers": True}
    settings["persistent_workers"] = context != "fork"
    process, findings = attach(str(SCRIPTS / "plain_loop.py"), json.dumps(settings), cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "True DataLoader\n"
    check_plain_loop(findings, workers=2)
    assert findings["loops"][0]["facts"]["start_method"] == context
