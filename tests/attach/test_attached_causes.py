"""The causes that attach names: each seeded one is told, and none of a healthy loop."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from commands import run_fastloop

SCRIPTS = Path(__file__).parents[1] / "support" / "scripts"
SEEDED = {
    "affinity": "the cores it may use",
    "affinity_alone": "the cores it may use",
    "quota": "a quota of CPU",
    "threads": "torch's threads",
    "worker_threads": "torch's threads",
    "sleep_alone": "samples that wait",
    "sleep_in_workers": "samples that wait",
    "cold_files": "files not in memory",
    "cold_map": "files not in memory",
    "lock_in_dataset": "the interpreter's lock",
    "lock_in_script": "the interpreter's lock",
    "copied_list": "Python per sample",
    "tensors_in_workers": "many tensors a batch",
    "tensors_alone": "many tensors a batch",
    "open_files": "file descriptors",
    "no_more_files": "file descriptors",
    "shared_memory": "/dev/shm",
    "tail_of_waits": "a heavy tail",
    "tail_of_batches": "a heavy tail",
    "printing": "the step's own waits",
    "waiting_step": "the step's own waits",
}
HEALTHY = [
    *("tensors", "large batches", "single samples", "wide", "convolution", "slow start"),
    *("scaled", "scaled wide"),
    *("named", "stream", "stream, convolution", "worker", "worker, wide", "worker, convolution"),
    *("two workers", "two workers, wide", "kept workers", "named worker", "spawned worker"),
    *("stream of workers", "any order"),
]
pytestmark = [pytest.mark.heavy, pytest.mark.alone]
IN_CI = {"threads", "sleep_alone", "lock_in_dataset", "copied_list", "tensors", "worker"}
"""The cases that CI runs; no other test runs beside one of them, so the rest runs at night."""


def cases(names: Iterable[str]) -> list:
    """A parameter of each name."""
    return [pytest.param(n, marks=() if n in IN_CI else pytest.mark.nightly) for n in names]


def find_causes(script: str, *arguments: str, folder: Path) -> list[dict[str, str]]:
    process = run_fastloop(str(SCRIPTS / script), *arguments, cwd=folder, command="attach")
    if process.returncode == 77:
        pytest.skip("mounting a small /dev/shm needs root")
    assert process.returncode == 0, process.stderr
    (path,) = folder.glob("outputs/attach/*/attach.json")
    (loop,) = json.loads(path.read_text())["loops"]
    printed = " ".join(process.stderr.split())
    for cause in loop["causes"]:
        head = "Not known" if cause["is_found"] is None else "Cause"
        assert f"{head}: {cause['name']}: {cause['text']}; {cause['advice']}." in printed
    return loop["causes"]


def was_busy(folder: Path) -> bool:
    """True if other programs kept the machine busy while the script ran."""
    (path,) = folder.glob("outputs/attach/*/attach.json")
    load = json.loads(path.read_text())["machine_load"]
    return load is not None and load["busy"] > 0


@pytest.fixture
def quota_folder():
    """A new cgroup in which a quota of CPU can be set."""
    parents = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    root = next((each for each in parents if (each / "cgroup.procs").exists()), None)
    folder = root / f"fastloop-test-{os.getpid()}" if root else None
    try:
        if folder is None:
            pytest.skip("there are no cgroups")
        folder.mkdir()
        if not any((folder / name).exists() for name in ("cpu.max", "cpu.cfs_quota_us")):
            pytest.skip("this cgroup has no quota of CPU")
        yield folder
    except OSError as error:
        pytest.skip(f"a cgroup can't be made: {error}")
    finally:
        if folder and folder.exists():
            folder.rmdir()


@pytest.mark.parametrize("case", cases(SEEDED))
def test_seeded_cause_is_named(case, tmp_path, request):
    folder = request.getfixturevalue("quota_folder") if case == "quota" else tmp_path
    causes = find_causes("seeded_causes.py", case, str(folder), folder=tmp_path)
    assert SEEDED[case] in [each["name"] for each in causes], causes
    for cause in causes:
        # Beside programs that take the cores, attach rightly says that it can't tell the lock.
        if cause["is_found"] is None and "load hides" in cause["text"] and was_busy(tmp_path):
            pytest.skip(cause["text"])
    assert all(each["is_found"] and each["advice"] for each in causes)


@pytest.mark.parametrize("case", cases(HEALTHY))
def test_healthy_loop_has_no_cause(case, tmp_path):
    assert find_causes("healthy_loops.py", case, folder=tmp_path) == []
