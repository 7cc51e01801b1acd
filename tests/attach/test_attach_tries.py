"""Changes of a script's DataLoader that `fastloop attach --try` tries, and the best one's patch."""

from __future__ import annotations

import ast
import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import psutil
import pytest
from commands import run_fastloop

from fastloop.cli.attach_settings import TrySettings
from fastloop.cli.attach_tries import try_loop
from fastloop.core.explanation import Verdict
from fastloop.core.parts import Part
from fastloop.core.spans import pause
from fastloop.core.stats import estimate
from fastloop.core.time_limits import deadline_after
from fastloop.core.types import SignalExit, Unsupported, UsageError
from fastloop.explain.attach import changes_to_try
from fastloop.explain.attach.changes_to_try import (
    choose_changes,
    divide_cores,
    find_fastloader,
    find_prediction,
)
from fastloop.explain.attach.edit_call import edit_call
from fastloop.explain.attach.effects import read_effects, read_files
from fastloop.explain.attach.findings import (
    LoopFindings,
    ScriptFindings,
    find_most_to_gain,
)
from fastloop.explain.attach.loop_what_ifs import LoopWhatIf
from fastloop.explain.attach.loops import PARTS
from fastloop.explain.attach.rank_comparison import RankComparison, RankFindings
from fastloop.explain.attach.run_length import (
    FEWEST_ROUNDS,
    Budget,
    check_budget,
    choose_batches,
)
from fastloop.explain.attach.script_patch import patch_script
from fastloop.explain.attach.script_runner import AS_IS, HashedRun, ScriptRunner
from fastloop.explain.attach.try_changes import try_changes
from fastloop.explain.attach.try_rounds import Attempt, Attempts, RunLimits, run_once
from fastloop.explain.change import Change

SLEEPY = """\
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Sleepy(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.full((8,), float(index)), index % 10


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Sleepy(),
        batch_size=16,
        shuffle=True,
    )
    weights = torch.ones(8, requires_grad=True)
    for epoch in range(2):
        for images, _ in loader:
            (images @ weights).mean().backward()
        with open("losses.txt", "a") as file:
            file.write("one epoch\\n")
    print("done")


if __name__ == "__main__":
    main()
"""
WORKERS = Change(settings={"num_workers": 2})
VERDICT = Verdict(word=Part.STEP, sentences=())


@pytest.mark.parametrize(
    ("call", "change", "edited"),
    [
        ("DataLoader(a)", WORKERS, "DataLoader(a, num_workers=2)"),
        ("DataLoader(a, num_workers=args.n)", WORKERS, "DataLoader(a, num_workers=2)"),
        ("DataLoader(a, 8, True,)", WORKERS, "DataLoader(a, 8, True, num_workers=2,)"),
        ("DataLoader(a, 8, 1, None, None, 4)", WORKERS, "DataLoader(a, 8, 1, None, None, 2)"),
        ("DataLoader((a))", WORKERS, "DataLoader((a), num_workers=2)"),
        ("DataLoader(f(a), 8)", WORKERS, "DataLoader(f(a), 8, num_workers=2)"),
        ("DataLoader(a, **more)", WORKERS, "DataLoader(a, **{**more, 'num_workers': 2})"),
        (
            "data.DataLoader(a, # one)\n 8)",
            WORKERS,
            "data.DataLoader(a, # one)\n 8, num_workers=2)",
        ),
        ("MyLoader('é', a)", WORKERS, "MyLoader('é', a, num_workers=2)"),
        (
            "torch.utils.data.DataLoader(a, num_workers=1)",
            Change(is_fastloader=True, settings={"num_workers": 2}),
            "fastloop.FastLoader(a, num_workers=2)",
        ),
    ],
)
def test_call_is_edited_and_the_rest_stays(call, change, edited):
    before = f"import torch\nx = [1]\nloader = {call}  # kept\ny = 2\n"
    after = edit_call(before, 3, change)
    ast.parse(after)
    head = "import fastloop\n" if change.is_fastloader else ""
    assert after == f"{head}import torch\nx = [1]\nloader = {edited}  # kept\ny = 2\n"


def test_threads_are_set_in_a_line_of_their_own_before_the_call():
    before = "import torch\ndef f():\n    loader = DataLoader(\n        a)\n"
    after = edit_call(before, 3, Change(torch_threads=1))
    line = "    torch.set_num_threads(1)\n"
    assert after == before.replace("    loader", f"{line}    loader")


@pytest.mark.parametrize(
    ("source", "change", "reason"),
    [
        ("loader = make()\n", WORKERS, "line 1 has no call of a DataLoader"),
        ("loader = MyLoader(a)\n", Change(is_fastloader=True), "MyLoader, which is no"),
        ("loader = DataLoader(a)\n", Change(torch_threads=1), "does not import torch"),
    ],
)
def test_call_that_can_not_be_edited_is_told(source, change, reason):
    with pytest.raises(Unsupported, match=reason):
        edit_call(source, 1, change)


@pytest.mark.parametrize("end", ["\n", ""])
def test_patch_is_applied_by_git(tmp_path, end):
    script = tmp_path / "folder" / "train.py"
    script.parent.mkdir()
    source = f"import torch\nloader = DataLoader(a, 4){end}"
    script.write_text(source)
    patch = patch_script(script, 2, WORKERS, tmp_path)
    command = ["git", "apply", "-"]
    subprocess.run(command, cwd=tmp_path, input=patch, text=True, check=True)
    assert script.read_text() == edit_call(source, 2, WORKERS)


@pytest.mark.heavy
def test_effects_of_a_script_are_listed_once_each(tmp_path):
    program = f"""
import os, pathlib, socket, subprocess, sys
from fastloop.explain.attach.effects import record_effects
record_effects(pathlib.Path({str(tmp_path)!r}))
pathlib.Path("log.txt").write_text("a")
pathlib.Path("log.txt").write_text("b")
pathlib.Path("log.txt").read_text()
os.remove("log.txt")
servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(7)]
for server in servers:
    socket.create_connection(server.getsockname()).close()
subprocess.run(["true"], check=True)
import torch
from fastloop.explain.attach.effects import note_saves
note_saves(torch)
torch.save({{}}, "weights.pt")
pathlib.Path("many").mkdir()
for number in range(9):
    pathlib.Path(f"many/{{number}}.txt").write_text("d")
if os.fork() == 0:
    pathlib.Path("of_a_fork.txt").write_text("c")
    os._exit(0)
os.wait()
"""
    folder = tmp_path / "work"
    folder.mkdir()
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True)
    (folder / "by_c.npy").touch()  # as a library that opens files in C
    before = {"gone_by_c.npy": (0, 0)}
    effects = read_effects(tmp_path, before, read_files(folder))
    connection = [line for line in effects if line.startswith("connects to 127.0.0.1:")]
    assert len(connection) == 7
    others = {"removes log.txt", "starts true", "writes log.txt", "writes of_a_fork.txt"}
    others |= {"writes weights.pt", "writes by_c.npy", "removes gone_by_c.npy"}
    assert {*effects} == {*connection, *others, "writes 9 files or more in many"}


@dataclass
class KnownRunner:
    """Runs that take known times; a change without one fails."""

    times: dict[str, float]
    runs: list[str] = field(default_factory=list)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def cut(self):
        return self

    batches = 40

    def seconds(self, change, limit_s):
        self.runs.append(change.name)
        if change.name not in self.times:
            raise Unsupported("the script ended before batch 40: ValueError: no")
        # Noise of 1 %, other in each run.
        return self.times[change.name] * (1 + 0.01 * (len(self.runs) % 3 - 1))

    def rerun_hashed(self, change, limit_s):
        if change.name not in self.times:
            raise Unsupported("the script ended before batch 40: ValueError: no")
        return HashedRun(digests=[1, 2], seconds=0.0, once_s=0.0, hash_s=0.0)

    def run_hashed(self, change, limit_s):
        return self.rerun_hashed(change, limit_s)


@dataclass
class KnownLoop:
    """A loop's findings, as far as changes are chosen and judged by them."""

    facts: dict
    batches: int = 80
    seconds: float = 8.0
    ranks: RankComparison | None = None
    model_ratio: float | None = 1.0
    what_ifs: tuple = ()
    passes: int = 2
    loaders: int = 1
    samples_wait: bool = False
    load_cores: float = 1.0
    step_cores: float = 1.0
    shares: dict = field(default_factory=dict)


def known_loop(**facts):
    usual = {"place": "train.py:9", "made_at": "/nowhere/train.py:3", "num_workers": 0}
    return KnownLoop(
        usual
        | {"type": "DataLoader", "iterable": False, "most_workers": None, "torch_threads": 1}
        | {"persistent_workers": False}
        | facts
    )


HOUR = Budget(3600.0)


def judged(times, names, budget_s=3600.0):
    changes = [Change(settings={"num_workers": number}) for number in names]
    runner = KnownRunner(times)
    lines = []
    return try_changes(runner, known_loop(), changes, Budget(budget_s), lines.append), runner


def test_change_that_saves_most_is_recommended_with_its_interval():
    tried, runner = judged(
        {"": 10.0, "num_workers=1": 8.0, "num_workers=2": 5.0, "num_workers=4": 20.0}, [1, 2, 4]
    )
    assert tried.best == "num_workers=2"
    first = tried.changes[0]
    assert first.gain is not None
    assert first.gain.low < 0.5 < first.gain.high
    assert first.gain.high - first.gain.low < 0.1
    assert (tried.same_samples, tried.not_compared) == (True, "")
    assert "num_workers=2" in tried.advice, "its file does not exist, so that there is no patch"
    slowest = next(each for each in tried.changes if each.change == "num_workers=4")
    assert slowest.rounds == 1, "a change that loses so much is not run again"
    second = next(each for each in tried.changes if each.change == "num_workers=1")
    assert second.rounds >= FEWEST_ROUNDS, "two changes go on to the third round"
    assert runner.runs.count("num_workers=2") >= FEWEST_ROUNDS


def test_change_that_loses_little_goes_on_to_the_second_round():
    times = {"": 10.0, "num_workers=1": 8.0, "num_workers=2": 9.0, "num_workers=4": 14.0}
    tried, _ = judged(times, [1, 2, 4])
    rounds = {each.change: each.rounds for each in tried.changes}
    assert rounds["num_workers=4"] == 2, "three changes go on to the second round, two to the third"


@pytest.mark.parametrize("times", [{"": 10.0, "num_workers=1": 9.99}, {"": 10.0}])
def test_no_change_is_recommended_if_none_helps_or_none_runs(times):
    tried, _ = judged(times, [1])
    assert tried.best is None
    assert tried.patch == ""
    (change,) = tried.changes
    assert (change.gain is None) == ("num_workers=1" not in times)
    assert ("ValueError: no" in change.failure) == ("num_workers=1" not in times)


def test_budget_that_is_too_small_is_told_with_what_is_needed():
    with pytest.raises(Unsupported, match=r"minutes=0; .*|minutes=0: .*allowed: .* or more"):
        judged({"": 10.0, "num_workers=1": 8.0}, [1], budget_s=0.0)


@pytest.mark.parametrize(
    ("budget_s", "count"), [(3600.0, 5), (80.0, 4), (63.0, 2), (31.0, 1), (25.0, 0)]
)
def test_first_round_has_as_many_changes_as_leave_time_for_the_others(budget_s, count):
    """Runs of 5 s: two further rounds of one change take 20 s. More changes need a margin."""
    baseline = Attempt(change=AS_IS, run_s=5.0)
    attempts = [
        Attempt(change=Change(settings={"num_workers": each}), run_s=5.0) for each in range(1, 6)
    ]
    chosen = Attempts(baseline=baseline, changed=attempts).choose_round(1, budget_s)
    assert len(chosen) == count


class LateRunner(KnownRunner):
    """Runs that are killed at the deadline."""

    def seconds(self, change, limit_s):
        pause(limit_s)
        raise Unsupported(f"the script had not reached batch 40 after {limit_s:.0f} s")


@dataclass
class InterruptedRunner(KnownRunner):
    """Runs until a signal arrives, which is in the run with this number."""

    last: int = 0

    def seconds(self, change, limit_s):
        if len(self.runs) == self.last:
            raise SignalExit(130)
        return super().seconds(change, limit_s)


INTERRUPTED_TIMES = {"": 10.0, "num_workers=1": 5.0}


def test_rounds_before_a_signal_are_judged_without_further_runs():
    """Each round has two runs: the signal arrives in the fifth round."""
    runner = InterruptedRunner(INTERRUPTED_TIMES, last=9)
    changes = [Change(settings={"num_workers": 1})]
    found = known_loop()
    tried = try_changes(cast("ScriptRunner", runner), found, changes, HOUR, lambda _: None)
    assert tried.is_interrupted
    assert tried.best == "num_workers=1"
    assert tried.changes[0].rounds == 4
    assert (tried.same_samples, tried.losses.same) == (None, None)
    assert "interrupted" in tried.not_compared
    assert len(runner.runs) == 9


def test_signal_before_any_change_is_compared_ends_the_command():
    runner = InterruptedRunner(INTERRUPTED_TIMES, last=1)
    changes = [Change(settings={"num_workers": 1})]
    with pytest.raises(SignalExit):
        try_changes(cast("ScriptRunner", runner), known_loop(), changes, HOUR, lambda _: None)


def test_signal_while_samples_are_compared_keeps_the_answer():
    class Comparing(KnownRunner):
        def rerun_hashed(self, change, limit_s):
            if self.runs:
                raise SignalExit(130)
            return super().rerun_hashed(change, limit_s)

    changes = [Change(settings={"num_workers": 1})]
    runner = cast("ScriptRunner", Comparing(INTERRUPTED_TIMES))
    tried = try_changes(runner, known_loop(), changes, HOUR, lambda _: None)
    assert (tried.best, tried.is_interrupted) == ("num_workers=1", False)
    assert "interrupted" in tried.not_compared


def test_run_that_the_budget_ends_is_no_failure_of_its_change():
    attempt, runner = Attempt(change=Change(settings={"num_workers": 3}), run_s=5.0), LateRunner({})
    for left_s, longest_s, failure in [
        (0.1, 30.0, ""),
        (30.0, 0.1, "the script had not reached batch 40 after 0 s"),
    ]:
        limits = RunLimits(budget=HOUR, deadline=deadline_after(left_s), longest_s=longest_s)
        run_once(cast("ScriptRunner", runner), attempt, 1, limits)
        assert (attempt.seconds, attempt.failure) == ({}, failure)


def test_loop_that_no_change_fits_is_told():
    with pytest.raises(Unsupported, match="no change fits the DataLoader of the loop at train"):
        judged({"": 10.0}, [])


def test_folder_that_can_not_be_copied_is_one_line(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text("open('ran', 'w')")
    os.mkfifo(folder / "pipe")
    options = ("--try", "--yes", "--copy", "train.py")
    process = run_fastloop(*options, cwd=folder, command="attach")
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert line.startswith("attach --copy: the working folder can't be copied: ")
    assert "pipe" in line
    assert not (folder / "ran").exists()
    assert {*tmp_path.iterdir()} == {folder}


def test_script_that_can_not_be_run_again_is_told():
    with pytest.raises(Unsupported, match="ValueError: no"):
        judged({}, [1])


class FailingRunner(KnownRunner):
    """Only the first run of the script as it is succeeds, in which samples are hashed."""

    def rerun_hashed(self, change, limit_s):
        return HashedRun(digests=[1, 2], seconds=0.0, once_s=0.0, hash_s=0.0)


def test_no_change_runs_after_the_script_as_it_is_has_failed():
    runner = FailingRunner({f"num_workers={number}": 5.0 for number in (1, 2, 4)})
    changes = [Change(settings={"num_workers": number}) for number in (1, 2, 4)]
    with pytest.raises(Unsupported, match="ValueError: no"):
        try_changes(cast("ScriptRunner", runner), known_loop(), changes, HOUR, lambda _: None)
    assert len(runner.runs) < 1 + len(changes), "the order is drawn, always the same one"
    assert runner.runs[-1] == ""


def known_ranks(*batches):
    ranks = tuple(
        RankFindings(rank=rank, batches=count, seconds=4.0, verdict=VERDICT, shares={})
        for rank, count in enumerate(batches)
    )
    return RankComparison(ranks=ranks, slowest=None, sentence="")


@pytest.mark.parametrize(
    ("loop", "batches"),
    [
        ({}, 80),  # two passes, which take less than 15 s
        ({"seconds": 80.0}, 5),  # of batches that take a second each
        ({"seconds": 0.8}, 80),  # all there are
        ({"ranks": known_ranks(40, 38), "passes": 4}, 38),  # of each rank, not of all together
    ],
)
def test_number_of_batches_fits_the_loop(loop, batches):
    assert choose_batches(replace(known_loop(), **loop), Budget(1800.0), 3.0) == batches


def test_a_short_budget_cuts_runs_shorter():
    """Each run has 3 s outside of the loop, and batches of 0.1 s."""
    numbers = [choose_batches(known_loop(), Budget(seconds), 3.0) for seconds in (10, 60, 90, 180)]
    assert numbers == [30, 30, 30, 80]


def test_minutes_that_can_not_hold_the_runs_are_refused():
    """Seven runs of 30 batches of 0.1 s take 21 s; with 2 s of imports and a margin, 53 s."""
    check_budget(known_loop(), 30, Budget(60 * 0.36), 2.0)
    with pytest.raises(UsageError, match=r"--minutes=0\.3: 7 runs .* allowed: 0\.9 or more"):
        check_budget(known_loop(), 30, Budget(60 * 0.3), 2.0)


def test_workers_of_a_loader_that_is_made_for_each_pass_are_not_kept():
    loop = known_loop(num_workers=2)
    kept = [each for each in choose_changes(loop) if "persistent_workers" in each.settings]
    assert kept
    own = [each.settings for each in choose_changes(replace(loop, loaders=2))]
    assert own
    assert not any("persistent_workers" in settings for settings in own)


HANGING = """
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

for batch in DataLoader(TensorDataset(torch.arange(8))):
    print("now it waits", flush=True)
    time.sleep(600)
"""


def test_run_that_hangs_is_ended_with_its_processes(tmp_path, monkeypatch):
    (tmp_path / "hanging.py").write_text(HANGING)
    monkeypatch.chdir(tmp_path)
    made_at = f"{tmp_path / 'hanging.py'}:6"
    found = known_loop(place="hanging.py:6", made_at=made_at)
    runner = ScriptRunner(["hanging.py"], cast("LoopFindings", found), 2, tmp_path)
    before = {*psutil.Process().children(recursive=True)}
    assert ScriptRunner(
        [f"{tmp_path}/hanging.py"], cast("LoopFindings", found), 2, Path("/x")
    ).arguments == ["/x/hanging.py"]
    with pytest.raises(Unsupported, match="had not reached batch 2 after 0 s"):
        runner.seconds(AS_IS, limit_s=0.3)
    assert {*psutil.Process().children(recursive=True)} <= before


SEEDED = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.arange(32.0)), 4, shuffle=True)
for _ in range(2):
    for batch in loader:
        batch[0].sum()
"""


@pytest.mark.heavy
def test_samples_of_runs_of_another_length_are_compared(tmp_path, monkeypatch):
    (tmp_path / "seeded.py").write_text(SEEDED)
    monkeypatch.chdir(tmp_path)
    made_at = f"{tmp_path / 'seeded.py'}:6"
    found = known_loop(place="seeded.py:8", made_at=made_at)
    found = replace(found, batches=16, passes=2)
    runner = ScriptRunner(["seeded.py"], cast("LoopFindings", found), 12, tmp_path)
    first = runner.run_hashed(AS_IS, 120.0)
    assert 0 < first.once_s < first.seconds
    assert len(first.digests) == 1, "of the first pass, which has eight of the twelve batches"
    runner.lengthen(16)
    assert runner.rerun_hashed(WORKERS, 120.0).digests == first.digests
    assert runner.seconds(AS_IS, 120.0) > 0


def test_changes_fit_the_loop():
    names = [each.name for each in choose_changes(known_loop(torch_threads=4))]
    assert names[0] == "fastloop.FastLoader"
    assert "torch.set_num_threads(1)" in names
    assert AS_IS.name not in names
    of_class = [each.name for each in choose_changes(known_loop(type="MyLoader", num_workers=1))]
    assert "fastloop.FastLoader" not in of_class
    assert "num_workers=0" in of_class


@pytest.mark.parametrize(
    ("cores", "facts", "step_cores", "expected"),
    [
        # loading takes a core for 60 % of the time, the step its cores for 40 %
        (2, {}, 1.8, Change(settings={"num_workers": 1}, torch_threads=1)),
        (8, {}, 7.5, Change(settings={"num_workers": 1}, torch_threads=7)),
        (8, {"most_workers": 0}, 7.5, None),
        (8, {"num_workers": 3}, 7.5, Change(torch_threads=5)),
        (8, {"num_workers": 8}, 7.5, Change(torch_threads=1)),
        (8, {}, 6.9, None),  # a core is left
        (8, {"torch_threads": 1}, 7.5, None),
        (1, {}, 1.0, None),
    ],
)
def test_cores_are_divided_between_workers_and_torchs_threads(
    cores, facts, step_cores, expected, monkeypatch
):
    monkeypatch.setattr(changes_to_try, "usable_cores", lambda: cores)
    shares = dict.fromkeys(PARTS, estimate([0.0]))
    shares |= {Part.DECODE: estimate([0.6]), Part.STEP: estimate([0.4])}
    loop = known_loop(**({"torch_threads": cores} | facts))
    # Each pass has a DataLoader of its own, so workers can't stay.
    loop = replace(loop, step_cores=step_cores, shares=shares, loaders=2)
    assert divide_cores(cast("LoopFindings", loop)) == expected
    assert divide_cores(cast("LoopFindings", replace(loop, samples_wait=True))) is None
    assert expected is None or expected in choose_changes(loop)


@pytest.mark.parametrize(
    ("change", "gain"),
    [
        (Change(settings={"num_workers": 1}, torch_threads=1), None),
        (Change(settings={"num_workers": 2, "persistent_workers": True}), 0.3),
        (Change(settings={"num_workers": 1, "persistent_workers": True}), 0.1),  # of workers alone
        (Change(settings={"num_workers": 4}), None),
        (Change(is_fastloader=True), 0.5),
        (Change(torch_threads=1), None),
    ],
)
def test_prediction_is_of_the_same_settings_or_of_the_first_one(change, gain):
    workers, kept = {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}
    what_ifs = (
        LoopWhatIf(change=Change(is_fastloader=True, text="FastLoader at train.py:3"), gain=0.5),
        LoopWhatIf(change=Change(text="a store"), gain=0.4, is_bound=True),
        LoopWhatIf(change=Change(settings=kept), gain=0.3),
        LoopWhatIf(change=Change(settings=workers), gain=0.1),
    )
    assert find_prediction(replace(known_loop(), what_ifs=what_ifs), change) == gain


@pytest.mark.parametrize(
    ("facts", "settings"),
    [
        ({"group_size": 2, "sampler": "RandomSampler"}, {"rank": 0, "world_size": 1}),
        ({"group_size": 2, "sampler": "DistributedSampler"}, {}),
        ({"group_size": None, "sampler": "RandomSampler"}, {}),
    ],
)
def test_fastloader_in_a_group_reads_the_samples_of_dataloader(facts, settings):
    change = find_fastloader(cast("LoopFindings", known_loop(**facts)))
    assert change == Change(is_fastloader=True, settings=settings)


def test_class_that_is_derived_from_dataloader_is_not_replaced():
    """As PyG's, which has the same name."""
    assert find_fastloader(cast("LoopFindings", known_loop(is_derived=True))) is None


@pytest.mark.parametrize("most", [0, 1, 2])
def test_stream_gets_no_more_workers_than_divide_it(most):
    changes = choose_changes(known_loop(iterable=True, most_workers=most))
    assert max(each.settings.get("num_workers", 0) for each in changes) == most
    waiting = replace(known_loop(iterable=True, most_workers=most), samples_wait=True)
    changes = choose_changes(waiting)
    assert max(each.settings.get("num_workers", 0) for each in changes) == most


def test_changes_with_a_predicted_gain_come_before_one_without():
    """If there is little time, only the first ones are run."""
    what_if = LoopWhatIf(change=Change(settings={"num_workers": 1}), gain=0.1)
    names = [each.name for each in choose_changes(replace(known_loop(), what_ifs=(what_if,)))]
    assert names[:2] == ["num_workers=1, persistent_workers=True", "fastloop.FastLoader"]
    native = LoopWhatIf(change=Change(is_fastloader=True), gain=0.05)
    found = replace(known_loop(is_native=True), what_ifs=(what_if, native))
    assert choose_changes(found)[0].is_fastloader
    # Over a Dataset of Python it needs a greater gain, too.
    found = replace(known_loop(), what_ifs=(what_if, native))
    assert choose_changes(found)[1].is_fastloader


def test_workers_that_stay_are_tried_only_by_runs_with_a_second_pass():
    found = known_loop(num_workers=4)
    kept = Change(settings={"persistent_workers": True})
    batches_per_pass = found.batches // found.passes
    assert kept not in choose_changes(found, batches=batches_per_pass)
    assert kept in choose_changes(found, batches=batches_per_pass + 1)


FORKED, AHEAD = (
    Change(settings={name: value})
    for name, value in (("multiprocessing_context", "fork"), ("prefetch_factor", 8))
)


@pytest.mark.parametrize(
    ("gains", "first"),
    [
        ({}, []),
        ({FORKED.name: 0.5, AHEAD.name: 0.1}, [FORKED, AHEAD]),
        ({FORKED.name: 0.1, AHEAD.name: 0.5}, [AHEAD, FORKED]),
        ({AHEAD.name: 0.1}, [AHEAD]),
    ],
)
def test_other_arguments_of_workers_are_tried_if_they_are_predicted_to_help(gains, first):
    what_ifs = tuple(
        LoopWhatIf(change=each, gain=gains[each.name])
        for each in (FORKED, AHEAD)
        if each.name in gains
    )
    found = replace(known_loop(num_workers=2, type="MyLoader"), what_ifs=what_ifs, loaders=2)
    changes = choose_changes(found)
    assert changes[: len(first)] == first
    assert (FORKED in changes, AHEAD in changes) == (FORKED in first, AHEAD in first)
    # One with a smaller gain than a number of workers comes after it.
    more = LoopWhatIf(change=Change(settings={"num_workers": 1}), gain=0.7)
    changes = choose_changes(replace(found, what_ifs=(more, *what_ifs)))
    assert changes[: 1 + len(first)] == [more.change, *first]


@pytest.mark.parametrize(("gain", "place"), [(0.6, 0), (0.4, 3)])
def test_forks_come_before_many_workers_if_starting_workers_takes_half_of_the_time(gain, place):
    """Samples that wait: 16 more workers would be started in each epoch, too."""
    what_if = LoopWhatIf(change=FORKED, gain=gain)
    found = replace(known_loop(num_workers=2), samples_wait=True, loaders=2, what_ifs=(what_if,))
    assert choose_changes(found)[place] == FORKED


@pytest.mark.parametrize(
    ("facts", "is_tried"),
    [
        ({"num_workers": 2, "uses_cuda": True, "pin_memory": False}, True),
        ({"num_workers": 2, "uses_cuda": True, "pin_memory": True}, False),
        ({"num_workers": 2, "uses_cuda": False, "pin_memory": False}, False),
        ({"num_workers": 0, "uses_cuda": True, "pin_memory": False}, False),
    ],
)
@pytest.mark.parametrize("threads", [1, 4])
def test_memory_is_pinned_only_for_a_device_beside_workers(facts, is_tried, threads):
    changes = choose_changes(known_loop(torch_threads=threads, **facts))
    assert (Change(settings={"pin_memory": True}) in changes) is is_tried
    assert threads == 1 or any(each.torch_threads for each in changes)


def test_minutes_and_effects_are_told_before_a_further_run(tmp_path, monkeypatch, capsys):
    """The script does not exist: a run of it would be told as a failure."""
    shares = dict.fromkeys(PARTS, estimate([0.0])) | {Part.STEP: estimate([0.4])}
    found = cast("LoopFindings", replace(known_loop(), shares=shares))
    findings = ScriptFindings(command="absent.py", status=0, loops=(found,), seconds=10.0)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    settings = TrySettings(minutes=3.0)
    try_loop(["writes losses.txt"], ["absent.py"], settings, findings, tmp_path, tmp_path)
    said = capsys.readouterr().err
    assert "the script runs again, up to the loop's batch 80, for at most 180 s in all\n" in said
    assert "The script writes losses.txt, and each run may again.\n" in said
    assert [*map(str.strip, said.splitlines()[2:-2])] == [
        each.name for each in choose_changes(found, 80)
    ]
    assert said.endswith("Run it again? [y/N] ")
    assert not [*tmp_path.iterdir()]


def loop_with_gain(place, wait, seconds, gain, ratio=1.0, **settings):
    """A loop that waits for this share of its time, with a predicted change."""
    shares = dict.fromkeys(PARTS, estimate([0.0])) | {Part.STEP: estimate([1 - wait])}
    what_if = LoopWhatIf(change=Change(settings={"num_workers": 2}), gain=gain, **settings)
    loop = replace(known_loop(place=place), shares=shares, seconds=seconds, what_ifs=(what_if,))
    loop.model_ratio = ratio
    return loop


@pytest.mark.parametrize(
    ("other", "chosen"),
    [
        (("b", 0.5, 20.0, 0.05), "a"),  # 1 s instead of 2 s, although it waits longer
        (("b", 0.5, 20.0, 0.2), "b"),
        (("b", 0.5, 20.0, 0.2, 2.0), "b"),  # its model misses it: the whole wait counts
        (("b", 0.5, 20.0, None), "b"),
    ],
)
def test_loop_in_which_most_can_be_saved_is_tried(other, chosen):
    loops = [loop_with_gain("a", 0.4, 10.0, 0.2), loop_with_gain(*other)]
    for each in (loops, loops[::-1]):
        found = find_most_to_gain(cast("list[LoopFindings]", each))
        assert found is not None
        assert found.facts["place"] == chosen


def test_store_that_may_save_much_does_not_choose_the_loop_to_try():
    store = loop_with_gain("b", 0.5, 20.0, 0.5, is_bound=True)
    found = find_most_to_gain(
        cast("list[LoopFindings]", [store, loop_with_gain("a", 0.4, 10.0, 0.2)])
    )
    assert found is not None
    assert found.facts["place"] == "a"


INTERRUPTED_SCRIPT = SLEEPY.replace("0.005", "0.001")


@pytest.mark.heavy
@pytest.mark.slow
def test_ctrl_c_during_the_rounds_prints_those_that_have_ended(tmp_path):
    (tmp_path / "train.py").write_text(INTERRUPTED_SCRIPT)
    command = [sys.executable, "-m", "fastloop", "attach", "--try", "--yes", "train.py"]
    said = []
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # The child of a process that ignores SIGINT, as under nohup, would ignore it too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if line.startswith("round 1:"):
                process.send_signal(signal.SIGINT)
    assert process.returncode == 130, "".join(said)
    (path,) = tmp_path.glob("outputs/attach/*/attach_try.json")
    tried = json.loads(path.read_text())
    assert tried["is_interrupted"] is True
    assert {each["rounds"] for each in tried["changes"]} <= {0, 1}
    assert any(each["gain"] for each in tried["changes"])
    assert said.count("interrupted\n") == 1
    assert not any("Traceback" in line for line in said)


def test_samples_that_wait_get_many_workers():
    waiting = replace(known_loop(), samples_wait=True)
    names = [each.name for each in choose_changes(waiting)]
    assert names[:2] == [f"num_workers={count}, persistent_workers=True" for count in (16, 8)]
    assert names[2] == "fastloop.FastLoader", "its gain is not predicted"
    assert not any("num_workers=16" in each.name for each in choose_changes(known_loop()))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--try", "--minute=2"], "did you mean --minutes=2?"),
        (["--try", "--minutes", "2"], "did you mean --minutes=2?"),
        (["--batch=9"], "did you mean --batches=9?"),
        (["--hang"], "did you mean --hang=<number>?"),
        (["--yes"], "--yes"),
        (["--try"], "--yes"),
        (["--try", "--yes", "--minutes=no"], "--minutes=no"),
        (["--try", "--yes", "--minutes=0"], "--minutes=0"),
        (["--try", "--yes", "--minutes=0.4"], "--minutes=0.4"),
        (["--batches=1.5"], "--batches=1.5"),
        (["--seconds=-1"], "--seconds=-1"),
        (["--tryy"], "did you mean --try?"),
        (["--tries"], "did you mean --try?"),
        (["--min=2"], "did you mean --minutes=2?"),
        (["--yse"], "--yse: allowed"),
    ],
)
def test_options_that_can_not_be_used_are_one_line_and_nothing_runs(tmp_path, options, named):
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    process = run_fastloop(*options, "train.py", cwd=tmp_path, command="attach")
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert named in line
    assert "allowed" in line
    assert not (tmp_path / "ran").exists()


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.alone
def test_changes_of_a_script_are_tried_and_the_patch_runs(tmp_path):
    (tmp_path / "train.py").write_text(SLEEPY)
    options = ("--try", "--yes", "--copy", "--minutes=2", "train.py")
    process = run_fastloop(*options, cwd=tmp_path, command="attach")
    assert process.returncode == 0, process.stderr
    assert process.stdout == "done\n", "only the observed run prints"
    assert "The script writes losses.txt, and each run may again." in process.stderr
    assert (tmp_path / "losses.txt").read_text() == 2 * "one epoch\n", "others ran in a copy"
    (path,) = tmp_path.glob("outputs/attach/*/attach_try.json")
    tried = json.loads(path.read_text())
    assert tried["made_at"].endswith("train.py:18")
    assert 0 < tried["batches"] <= 40
    assert not any(each["failure"] for each in tried["changes"])
    assert tried["best"], process.stderr
    assert tried["same_samples"] is True, tried["not_compared"]
    assert tried["losses"]["same"] is True
    assert 0 < tried["losses"]["count"] <= 20, "of the first pass"
    subprocess.run(["git", "apply", path.with_name("attach.patch")], cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_text() != SLEEPY
    after = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert after.stdout == "done\n"
