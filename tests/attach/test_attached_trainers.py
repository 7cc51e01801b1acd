"""Scripts that leave the loop to a library's trainer."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import run_fastloop

SCRIPT = Path(__file__).parents[1] / "support" / "scripts" / "trainers.py"


@pytest.mark.heavy
@pytest.mark.parametrize("library", ["lightning", "transformers", "accelerate"])
def test_loop_of_a_trainer_is_found(library, tmp_path):
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    process = run_fastloop(str(SCRIPT), library, cwd=tmp_path, command="attach")
    assert process.returncode == 0, process.stderr
    assert process.stdout.endswith("trained\n")
    (path,) = tmp_path.glob("outputs/attach/*/attach.json")
    loop = json.loads(path.read_text())["loops"][0]
    assert loop["facts"]["dataset"] == "Points"
    unended = 1 if library == "lightning" else 0  # it does not ask for more after the last batch
    assert (loop["passes"], loop["batches"]) == (2, 2 * (24 - unended))
    assert loop["shares"]["decode"]["value"] > 0
    assert "<svg" in path.with_name("attach.html").read_text()
