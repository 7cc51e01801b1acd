"""Scripts of the usual examples' shapes: they end as without us, and their loops are found.

Others are in test_attached_loops.py, test_attached_ranks.py and test_attached_trainers.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import run_fastloop, run_script

SCRIPTS = Path(__file__).parents[1] / "support" / "scripts"
pytestmark = pytest.mark.heavy


def run_both(folder, name, *arguments):
    """What is found about the script, which prints the same with and without us."""
    (folder / "plain").mkdir()
    plain = run_script(SCRIPTS / name, *arguments, cwd=folder / "plain")
    assert plain.returncode == 0, plain.stderr
    return attach(folder, name, plain.stdout, *arguments)


def attach(folder, name, printed, *arguments):
    """What is found about the script, which prints this."""
    cwd = folder / "attached"
    cwd.mkdir()
    process = run_fastloop(str(SCRIPTS / name), *arguments, cwd=cwd, command="attach")
    assert (process.returncode, process.stdout) == (0, printed), process.stderr
    (path,) = cwd.glob("outputs/attach/*/attach.json")
    loops = json.loads(path.read_text())["loops"]
    assert path.with_name("attach.html").read_text().count("<svg") == len(loops)
    return {loop["facts"]["dataset"]: loop for loop in loops}


def count(loop):
    return loop["passes"], loop["batches"]


@pytest.mark.nightly
@pytest.mark.parametrize("workers", ["0", "2"])
def test_photographs_are_trained_on_and_validated(workers, tmp_path):
    loops = run_both(tmp_path, "photos.py", "data", workers)
    assert {name: count(loop) for name, loop in loops.items()} == {
        "Folder": (2, 12),
        "Subset": (2, 2),
    }
    for loop in loops.values():
        assert loop["coverage"] > 0.9  # passes this short lose more between their events
        assert loop["facts"]["num_workers"] == int(workers)
    if workers == "0":
        assert loops["Folder"]["shares"]["decode"]["value"] > 0


def test_steps_over_an_iterator_that_is_begun_again(tmp_path):
    (loop,) = run_both(tmp_path, "words.py").values()
    assert loop["facts"]["place"].startswith("words.py:")
    assert loop["shares"]["collate"]["value"] > 0


def test_two_loaders_side_by_side(tmp_path):
    loops = run_both(tmp_path, "two_domains.py")
    assert count(loops["TensorDataset"]) == (2, 24)
    slow = loops["Unlabelled"]
    assert slow["batches"] >= 22  # of two epochs of 12, without the last ones, which had no step
    shares = {part: share["value"] for part, share in slow["shares"].items()}
    assert shares["decode"] == max(share for part, share in shares.items() if part != "step")


@pytest.mark.nightly
def test_processes_that_a_script_spawns(tmp_path):
    (loop,) = attach(tmp_path, "spawned.py", "trained\n").values()
    assert count(loop) == (2, 24)
    assert loop["shares"]["decode"]["value"] > 0
    assert loop["ranks"] is None
