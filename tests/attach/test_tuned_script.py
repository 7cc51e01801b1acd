"""`fastloop tune --script`: the DataLoader of a script is tuned where the script uses it."""

from __future__ import annotations

import math
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from commands import run_fastloop
from interrupts import interrupt_after
from torch.utils.data import DataLoader

from fastloop.cli.script_command import read_torchrun
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.core.types import UsageError
from fastloop.explain.attach.findings import LoopFindings, ScriptFindings
from fastloop.explain.attach.loop_what_ifs import LoopWhatIf
from fastloop.explain.change import Change
from fastloop.tune.budget import Spending, TuneBudget, most_ending_s
from fastloop.tune.part_reader import EpochPart
from fastloop.tune.race import YOURS
from fastloop.tune.race_time import SmallBudgetError, check_loop_budget
from fastloop.tune.script_budget import check_outcome, check_rest, look_s
from fastloop.tune.script_plan import ScriptOutcome, ScriptPlan
from fastloop.tune.script_process import RaceProbe
from fastloop.tune.script_race import TRIALS_OF_UNCONFIRMED_RACE, expect_costs
from fastloop.tune.script_tuning import (
    choose_loop,
    choose_settings,
    describe_tuned,
    find_change,
)

WAITING = """\
import sys
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.rand(8)

train = DataLoader(Slow(0.005), batch_size=8, shuffle=True)
valid = DataLoader(Slow(0.0005), batch_size=8)
for epoch in range(20):
    for batch in valid:
        batch.sum()
    for batch in train:
        batch.sum()
"""
FAILING = "from torch.utils.data import DataLoader\nraise RuntimeError('no data here')\n"
ENDING = """\
import os
from torch.utils.data import DataLoader
if os.path.exists("ran"):
    raise RuntimeError("it ran before")
open("ran", "w").close()
for batch in DataLoader([1.0, 2.0, 3.0], batch_size=1):
    batch.sum()
"""
DYING = """\
import os
import time
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        time.sleep(1e-3)
        if RAN and time.monotonic() > BEGUN_S + 6:
            os._exit(3)
        return index

RAN, BEGUN_S = os.path.exists("ran"), time.monotonic()
open("ran", "w").close()
for batch in DataLoader(Numbers(), batch_size=10):
    batch.sum()
"""
HEAVY = """\
import time
import torch
from torch.utils.data import DataLoader

for batch in DataLoader(range(100), batch_size=1, collate_fn=lambda each: time.sleep(2) or each):
    pass
"""


def tune(folder, text: str, *words: str):
    (folder / "train.py").write_text(text)
    arguments = [*words, "--script", "train.py"]
    return run_fastloop(*arguments, cwd=folder, command="tune")


@pytest.mark.heavy
def test_loop_in_which_most_can_be_saved_is_tuned_and_the_patch_applies(tmp_path):
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    process = tune(tmp_path, WAITING, "budget=60s")
    assert process.returncode == 0, process.stderr
    path = tmp_path / "train.py"
    assert f"{path}:15: the DataLoader of the loop at train.py:20" in process.stdout
    text = " ".join(process.stdout.split())
    assert re.search(r"not tuned: DataLoader at train.py:18, in which up to .* may be saved", text)
    (patch,) = tmp_path.glob("outputs/tune/*/tune.patch")
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)
    (line,) = [each for each in path.read_text().splitlines() if each.startswith("train =")]
    found = re.search(r"num_workers=(\d+)", line)
    assert found
    # 400 samples of 5 ms wait, so that many workers at once take a fraction of the two seconds.
    assert int(found[1]) >= 4


DERIVED = """\
import time
from torch.utils.data import DataLoader

class Loader(DataLoader):
    def __init__(self, samples, size, **named):
        self.size = size
        super().__init__(samples, batch_size=size, collate_fn=self.collate, **named)
    @staticmethod
    def collate(samples):
        time.sleep(0.02)
        return [str(each) for each in samples]

loader = Loader(range(200), 10, num_workers=1, persistent_workers=True)
for epoch in range(50):
    for batch in loader:
        len(batch)
"""


@pytest.mark.heavy
@pytest.mark.nightly
def test_loader_of_a_derived_class_with_batches_of_any_kind_is_tuned(tmp_path):
    process = tune(tmp_path, DERIVED, "budget=40s")
    assert process.returncode == 0, process.stderr
    assert "train.py:13: the DataLoader of the loop at train.py:15" in process.stdout
    assert "num_workers=" in process.stdout
    assert "Error" not in process.stdout


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import torch\n", "it ended before a batch of a DataLoader was seen"),
        (FAILING, "it failed (exit status 1) before a batch of a DataLoader was seen"),
        (ENDING, "second run ended before the loop at train.py:6: RuntimeError: it ran before"),
        (DYING, "second run ended while it measured the loop at train.py:17"),
    ],
)
@pytest.mark.heavy
def test_scripts_that_can_not_be_tuned_are_told_in_a_line(tmp_path, text, reason):
    process = tune(tmp_path, text, "budget=3min")
    assert process.returncode == 1
    assert reason in process.stderr.strip().splitlines()[-1]


@pytest.mark.heavy
@pytest.mark.nightly
def test_budget_that_is_too_small_for_a_script_is_told_in_a_line(tmp_path):
    process = tune(tmp_path, HEAVY, "budget=20s")
    assert process.returncode == 1
    # On a busy machine the first run has no batch in half of it.
    last = process.stderr.strip().splitlines()[-1]
    assert re.search(r"budget=20s is too short.*allowed: |a larger budget=", last)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--script"], "tune --script: allowed: [-m] <script>"),
        (["--script", "none.py"], "tune --script none.py: no such file; allowed: a Python script"),
        (["--script", "-m"], "tune --script -m: allowed: -m <module>"),
        (["--script", "Makefile"], "tune --script Makefile: not Python: invalid syntax, line 1"),
        (["--script", "image.jpg"], "tune --script image.jpg: not Python: "),
        (["--script", "empty"], "tune --script empty: No such file or directory"),
        (["dataset=digits", "--script", "none.py"], "allowed: only budget=, a time"),
        (["budget=60trials", "--script", "none.py"], "allowed: only budget=, a time"),
        (["budget=5s", "--script", "ends.py"], "budget=5s is too short for two runs of a script"),
        (
            ["--script", "torchrun", "--nproc_per_node=2", "ends.py"],
            "`fastloop attach --try torchrun --nproc_per_node=2 ends.py` tries",
        ),
        (
            ["--script", "-m", "torch.distributed.run", "--nproc-per-node", "gpu", "ends.py"],
            "its ranks would have to race",
        ),
        # As with attach, the word python is no script.
        (
            ["--script", "python", "-m", "torch.distributed.run", "--nnodes=2", "ends.py"],
            "its ranks would have to race",
        ),
        (["--script", "accelerate", "launch", "ends.py"], "its ranks would have to race"),
        (["--script", "torchrun"], "tune --script: allowed: [-m] <script>"),
        (["--script", "torchrun", "--standalone", "none.py"], "tune --script none.py: no such"),
        (["--script", "python", "none.py"], "tune --script none.py: no such file"),
    ],
)
def test_wrong_commands_are_told_in_a_line(tmp_path, words, reason):
    (tmp_path / "Makefile").write_text("run:\n\tpython train.py\n")
    (tmp_path / "image.jpg").write_bytes(bytes([0xFF, 0xD8, 0, 0]))
    (tmp_path / "empty").mkdir()
    (tmp_path / "ends.py").write_text("open('ran', 'w')")
    process = run_fastloop(*words, cwd=tmp_path, command="tune")
    assert process.returncode == 1
    (line,) = process.stderr.splitlines()
    assert reason in line
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ("torchrun train.py --nnodes=2", ["train.py", "--nnodes=2"]),
        ("/bin/torchrun --nproc_per_node=1 --standalone train.py", ["train.py"]),
        (
            "torchrun --rdzv-endpoint localhost:0 --nproc-per-node 1 -m train a",
            ["-m", "train", "a"],
        ),
        ("-m torch.distributed.run --nnodes 1:1 train.py", ["train.py"]),
        ("torchrun --nproc_per_node=1 -- train.py data.py", ["train.py", "data.py"]),
        ("torchrun -t3 train.py", ["train.py"]),
        ("torchrun -t 3 train.py", ["train.py"]),
    ],
)
def test_script_of_the_only_rank_of_torchrun_is_found(words, script):
    found = read_torchrun(words.split())
    assert found
    assert found.is_single
    assert found.script == script


@pytest.mark.parametrize(
    "words",
    [
        "--nproc_per_node=2",
        "--nproc-per-node gpu",
        "--nnodes=2",
        "--nnodes 1:2",
        "--nproc-per-node",
    ],
)
def test_more_ranks_of_torchrun_are_told_apart(words):
    found = read_torchrun(["torchrun", *words.split(), "train.py"])
    assert found
    assert not found.is_single


def test_number_of_ranks_may_be_in_the_environment(monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4")
    found = read_torchrun(["torchrun", "train.py"])
    assert found
    assert not found.is_single
    assert read_torchrun(["train.py"]) is None


ONE_RANK = """\
import time
import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Slow(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.rand(8)

distributed.init_process_group("gloo")
assert distributed.is_torchelastic_launched() and distributed.get_world_size() == 1
train = DataLoader(Slow(), batch_size=8, sampler=DistributedSampler(Slow()))
for epoch in range(20):
    for batch in train:
        distributed.all_reduce(batch.sum())
"""


@pytest.mark.heavy
def test_only_rank_of_torchrun_is_tuned(tmp_path):
    (tmp_path / "train.py").write_text(ONE_RANK)
    # On a busy machine 30 s may be too little: both runs of the script import torch, and begin a
    # group of processes.
    words = ["budget=60s", "--script", "torchrun", "--nproc_per_node=1", "train.py"]
    process = run_fastloop(*words, cwd=tmp_path, command="tune")
    assert process.returncode == 0, process.stderr
    assert "train.py:15: the DataLoader of the loop at train.py:17" in process.stdout


def test_one_of_several_ranks_is_refused(tmp_path):
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    process = run_fastloop("--script", "train.py", cwd=tmp_path, command="tune", WORLD_SIZE="2")
    assert process.returncode == 1
    assert "its ranks would have to race together" in process.stderr
    assert not (tmp_path / "ran").exists()


def test_command_needs_no_torch_of_its_own():
    """The script imports it, twice."""
    program = "import sys, fastloop.tune.script_tuning; print('torch' in sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert output == "False\n"


@pytest.mark.heavy
def test_script_without_a_batch_is_stopped_at_half_of_the_budget(tmp_path):
    process = tune(tmp_path, "import time\ntime.sleep(600)\n", "budget=10s")
    assert process.returncode == 1
    assert "stopped after 5 s, 50% of the budget, before a batch" in process.stderr


@dataclass
class KnownLoop:
    """A loop's findings, as far as settings and budgets are chosen by them."""

    passes: int
    loaders: int
    samples_wait: bool = False
    seconds: float = 4.0
    batch_s: float = 0.01
    ranks: None = None
    name: str = ""
    wait: float = 0.0
    model_ratio: float | None = 1.0
    what_ifs: tuple[LoopWhatIf, ...] = ()
    facts: dict[str, Any] = field(
        default_factory=lambda: {
            "type": "DataLoader",
            "num_workers": 1,
            "persistent_workers": False,
            "prefetch_factor": 2,
            "most_workers": None,
            "sampler": "RandomSampler",
        }
    )

    @property
    def batches(self) -> int:
        return math.ceil(self.seconds / self.batch_s)

    @property
    def shares(self) -> dict[Part, Estimate]:
        waits = {Part.START_UP: 0.0, Part.STEP: 1 - self.wait}
        return {
            part: Estimate(value=share, low=share, high=share, is_interval=False)
            for part, share in waits.items()
        }


def spending_of(budget_s: float, spent_s: float) -> Spending:
    """A budget that is spent so far, with the most that is kept for the outcome."""
    return Spending(
        budget=TuneBudget(seconds=budget_s), before_s=spent_s, ending_s=most_ending_s(budget_s)
    )


def run_with(budget_s: float, setup_s: float, loop: KnownLoop) -> None:
    """Spend a budget as `tune --script` does on a script that takes setup_s until its loop.

    Raises UsageError as it does, and SmallBudgetError if the second run has no time for a race.
    """
    loop = replace(loop, seconds=look_s(budget_s))
    found = cast("LoopFindings", loop)
    seconds = setup_s + loop.seconds
    findings = ScriptFindings(command="a.py", status=0, loops=(found,), seconds=seconds)
    check_rest(spending_of(budget_s, seconds), findings, found)
    in_race = spending_of(budget_s, seconds + setup_s)
    part = EpochPart(samples=4, batches=4, is_whole=False, seconds=4 * loop.batch_s, fixed_s=0.0)
    try:
        check_loop_budget(part, in_race.remaining_s, 0.3, TRIALS_OF_UNCONFIRMED_RACE)
    except SmallBudgetError as error:
        check_outcome(in_race, ScriptOutcome(needed_s=error.allowed_s))


@pytest.mark.parametrize("setup_s", [1.0, 5.0, 9.0, 30.0, 200.0])
@pytest.mark.parametrize("batch_s", [0.001, 0.4, 3.0])
def test_budget_that_a_refusal_names_suffices(setup_s, batch_s):
    loop = KnownLoop(passes=1, loaders=1, batch_s=batch_s)
    for budget_s in (4.0, 6.0, 8.0):
        with pytest.raises(UsageError, match=r"allowed: from \d+s$") as refused:
            run_with(budget_s * setup_s / 5, setup_s, loop)
        named = re.search(r"(\d+)s$", str(refused.value))
        assert named
        run_with(float(named[1]), setup_s, loop)


def test_second_run_needs_time_for_a_race():
    with pytest.raises(
        UsageError, match=r"takes 30 s outside of its loops, and runs again; allowed: from"
    ):
        run_with(60.0, 30.0, KnownLoop(passes=1, loaders=1))


def test_script_without_a_loop_is_refused():
    findings = ScriptFindings(command="a.py", status=0, loops=())
    with pytest.raises(UsageError, match=r"--script a\.py: it ended before a batch"):
        choose_loop(findings, ["a.py"])
    failed = replace(findings, status=1)
    with pytest.raises(UsageError, match=r"--script -m a\.b: it failed \(exit status 1\) before"):
        choose_loop(failed, ["-m", "a.b", "--epochs"])


def loop_with_gain(name: str, wait: float, gain: float | None) -> LoopFindings:
    """A loop of 10 s that waits for this share of them, with the predicted gain of a change."""
    loop = KnownLoop(passes=1, loaders=1, seconds=10.0, name=name, wait=wait)
    loop.what_ifs = (LoopWhatIf(change=Change(settings={"num_workers": 2}), gain=gain),)
    loop.facts |= {"place": f"{name}:9", "made_at": f"{name}:1"}
    return cast("LoopFindings", loop)


def test_loop_with_the_most_time_to_save_is_chosen_also_if_another_one_waits_longer():
    waits, saves = loop_with_gain("waits", 0.9, 0.1), loop_with_gain("saves", 0.5, 0.4)
    unknown = loop_with_gain("unknown", 0.6, None)
    for loops, chosen in (((waits, saves), saves), ((waits, saves, unknown), unknown)):
        for each in (loops, loops[::-1]):
            findings = ScriptFindings(command="a.py", status=0, loops=each)
            assert choose_loop(findings, ["a.py"]) is chosen


def test_loop_over_an_iterable_that_no_call_makes_is_not_chosen():
    waits, watched = loop_with_gain("waits", 0.5, 0.1), loop_with_gain("watched", 0.9, 0.8)
    watched.facts["made_at"] = ""
    findings = ScriptFindings(command="a.py", status=0, loops=(watched, waits))
    assert choose_loop(findings, ["a.py"]) is waits


def test_other_loops_are_told_with_the_time_that_can_be_saved_in_them():
    waits, saves = loop_with_gain("waits", 0.9, 0.1), loop_with_gain("saves", 0.5, 0.4)
    findings = ScriptFindings(command="a.py", status=0, loops=(waits, saves))
    tuned = describe_tuned(findings, saves, {YOURS: {}}, ScriptOutcome(best=YOURS))
    last = "not tuned: waits, in which up to 1.0 s of 10.0 s may be saved, as against 4.0 s"
    assert tuned.text.splitlines()[-1] == last


def test_change_names_what_differs_from_the_call():
    present = {
        "num_workers": 2,
        "persistent_workers": True,
        "prefetch_factor": 4,
        "fastloader": False,
    }
    none = present | {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None}
    # The call keeps the arguments that it has: without workers they would be refused.
    assert find_change(none, present).settings == {
        "num_workers": 0,
        "persistent_workers": False,
        "prefetch_factor": None,
    }
    assert find_change(present, present) == Change()


@pytest.mark.parametrize(
    ("passes", "loaders", "is_kept"), [(3, 3, False), (3, 1, True), (1, 1, True)]
)
def test_workers_of_a_loader_that_is_made_for_each_pass_are_not_kept(passes, loaders, is_kept):
    found = cast("LoopFindings", KnownLoop(passes, loaders))
    tried = [*choose_settings(found).values()]
    assert any(each["num_workers"] > 1 for each in tried)
    assert any(each["persistent_workers"] for each in tried) == is_kept


@pytest.mark.parametrize(("most", "many"), [(None, {8, 16, 32}), (12, {8}), (4, set())])
def test_samples_that_wait_get_many_workers(most, many):
    loop = KnownLoop(passes=1, loaders=1, samples_wait=True)
    loop.facts["most_workers"] = most
    tried = {each["num_workers"] for each in choose_settings(cast("LoopFindings", loop)).values()}
    assert many <= tried
    costs = expect_costs(choose_settings(cast("LoopFindings", loop)), pass_s=2.0)
    # The most workers are tried first if they stay, or as many threads as FastLoader has.
    assert min(costs.values()) == 1 / max(*tried, 16)
    if most is None:
        assert costs["num_workers=32"] > costs["num_workers=8"]
    assert most is None or max(tried) <= most


INTERRUPTED = """\
import time
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("saved")
"""


def test_interrupt_of_the_observed_run_ends_the_command(tmp_path):
    """Also if the script ends as if nothing had happened."""
    (tmp_path / "train.py").write_text(INTERRUPTED)
    command = [sys.executable, "-m", "fastloop", "tune", "budget=3min", "--script", "train.py"]
    status, output, errors = interrupt_after(command, "ready\n", tmp_path)
    assert output == "saved\n"
    assert errors.splitlines()[-1:] == ["interrupted"]
    assert status == 128 + signal.SIGINT


@pytest.mark.parametrize(("num_samples", "planned"), [(3, {3}), (2, {2}), (9, {2, 3})])
def test_loader_of_the_plan_is_told_from_others_of_the_same_call(tmp_path, num_samples, planned):
    """As of `{name: DataLoader(samples[name]) for name in ("train", "valid")}`."""
    plan = ScriptPlan(
        place="train.py:9",
        made_at="train.py:3",
        settings={},
        step_s=0.0,
        samples_wait=False,
        pass_s=1.0,
        num_samples=num_samples,
        end_ns=0,
    )
    kinds = {"DataLoader": SimpleNamespace, "_BaseDataLoaderIter": Iterators}
    probe = RaceProbe(plan, tmp_path, cast("Any", SimpleNamespace(**kinds)))
    loaders = [DataLoader([0] * count) for count in (2, 3)]
    for each in loaders:
        probe.made[each] = each, {}
    found = {len(each.dataset) for each in loaders if probe.is_planned(each)}
    assert found == planned


class Iterators:
    """Stands in for torch's iterators, whose functions are kept."""

    def __next__(self):
        raise StopIteration
