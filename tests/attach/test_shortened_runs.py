"""Shortened runs of a script, in which changes are tried: what counts as the loop's time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastloop.cli.attach_tries import find_loop_to_try
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.attach import cut_run
from fastloop.explain.attach.cut_plan import CutRun, read_results
from fastloop.explain.attach.cut_run import CutLoop, CutPass
from fastloop.explain.attach.run_length import Budget
from fastloop.explain.attach.script_runner import AS_IS, HashedRun
from fastloop.explain.attach.try_changes import try_changes
from fastloop.explain.attach.try_rounds import Attempt, Attempts
from fastloop.explain.change import Change

SECOND = 1_000_000_000
LOOP, ELSEWHERE = "train.py:9", "train.py:4"


class KnownRun:
    """A script's calls of next(), by a clock that moves only in them and in steps."""

    def __init__(self, folder, monkeypatch, batches):
        self.now_ns, self.place, self.folder = 0, LOOP, folder
        monkeypatch.setattr(cut_run, "now_ns", lambda: self.now_ns)
        monkeypatch.setattr(cut_run, "place_in_script", lambda: self.place)
        cut = CutRun(place=LOOP, made_at=("train.py:1",), batches=batches, change=Change())
        self.loop = CutLoop(cut, folder)

    def begin(self):
        return CutPass(self.now_ns, self.place)

    def ask(self, begun, place=LOOP):
        """next(), which takes a second."""
        self.place = place
        return self.loop._next(self._make_batch, begun)

    def step(self):
        self.now_ns += 3 * SECOND

    def end(self, begun):
        """The seconds of the result after the next() that ends the script."""
        with pytest.raises(SystemExit):
            self.ask(begun)
        (result,) = read_results(self.folder)
        return result.seconds

    def _make_batch(self):
        self.now_ns += SECOND
        return "batch"


def test_a_result_is_there_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    run = KnownRun(tmp_path, monkeypatch, batches=1)
    seen = []
    monkeypatch.setattr(cut_run.Path, "replace", lambda path, to: seen.append((path, to)))
    begun = run.begin()
    run.ask(begun)
    with pytest.raises(SystemExit):
        run.ask(begun)
    ((written, result),) = seen
    assert written.parent == result.parent == tmp_path
    assert read_results(tmp_path) == []


def test_time_of_passes_that_the_loop_breaks_off_counts(tmp_path, monkeypatch):
    """As of `for batch in loader: ...; if number == 1: break`."""
    run = KnownRun(tmp_path, monkeypatch, batches=4)
    for _ in range(2):
        begun = run.begin()
        run.ask(begun)
        run.step()
        run.ask(begun)
        # The step after which the loop breaks off has no end that a probe could see.
        run.step()
    # Of each pass two waits of a second, and one step of three.
    assert run.end(run.begin()) == pytest.approx(2 * (2 + 3))
    assert run.loop.result.once_s == pytest.approx(1 + 3), "the first batch, with its step"


def test_time_for_hashing_counts_for_no_part_of_the_loop(tmp_path, monkeypatch):
    run = KnownRun(tmp_path, monkeypatch, batches=2)
    run.loop.cut = replace(run.loop.cut, hashed=2)

    def hash_slowly(batch):
        run.now_ns += 100 * SECOND
        return hash(batch)

    monkeypatch.setattr(cut_run, "_digest", hash_slowly)
    begun = run.begin()
    for _ in range(2):
        run.ask(begun)
        run.step()
    assert run.end(begun) == pytest.approx(2 * (1 + 3))
    assert len(run.loop.result.digests) == 2
    assert run.loop.result.hash_s == pytest.approx(100), "of the second batch"


def test_thread_that_only_calls_next_asks_for_the_loop_that_has_begun_the_pass(
    tmp_path, monkeypatch
):
    """As by `executor.submit(next, batches)`: no function of the script is running there."""
    run = KnownRun(tmp_path, monkeypatch, batches=2)
    begun = run.begin()
    for _ in range(2):
        run.ask(begun, place="")
    assert run.loop.result.batches == 2


def test_whole_pass_counts_once(tmp_path, monkeypatch):
    run = KnownRun(tmp_path, monkeypatch, batches=2)
    begun = run.begin()
    for _ in range(2):
        run.ask(begun)
        run.step()
    assert run.end(begun) == pytest.approx(2 * (1 + 3))


def test_first_batch_may_be_taken_before_the_loop(tmp_path, monkeypatch):
    """As the observed run says: the place of a pass is that of the second next()."""
    run = KnownRun(tmp_path, monkeypatch, batches=2)
    begun = run.begin()
    run.ask(begun, ELSEWHERE)
    for _ in range(2):
        run.ask(begun)
    assert run.loop.result.batches == 2


def test_pass_of_another_loop_does_not_count(tmp_path, monkeypatch):
    run = KnownRun(tmp_path, monkeypatch, batches=2)
    begun = run.begin()
    for _ in range(4):
        run.ask(begun, ELSEWHERE)
    assert (run.loop.result.batches, run.loop.result.seconds) == (0, 0.0)


def run_program(text: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has to end with status 0."""
    command = [sys.executable, "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def test_script_ends_although_its_loop_is_in_a_thread():
    """The main thread waits for batches that no longer come."""
    program = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'the end')\n"
        "from fastloop.explain.attach.early_stop import end_script\n"
        "print('a line')\n"
        "threading.Thread(target=end_script).start()\n"
        "time.sleep(600)\n"
    )
    process = run_program(program)
    assert process.stdout == "a line\nthe end\n"
    assert process.stderr == "fastloop: the script is ended by force: its loop is in a thread\n"


def test_function_that_hangs_at_the_end_loses_no_output():
    program = (
        "import atexit, threading\n"
        "from fastloop.explain.attach import early_stop\n"
        "early_stop.CLEAN_UP_S = 0.5\n"
        "def hang():\n"
        "    print('of the function')\n"
        "    threading.Event().wait()\n"
        "atexit.register(hang)\n"
        "print('of the script')\n"
        "early_stop.end_script(1, most=1)\n"
    )
    process = run_program(program)
    assert process.stdout == "of the script\nof the function\n"
    assert "ended by force: it goes on after SystemExit" in process.stderr


def test_script_that_catches_its_end_ends_all_the_same():
    """As one that goes on with its next epoch after any error."""
    program = (
        "import atexit\n"
        "from fastloop.explain.attach.early_stop import end_script\n"
        "atexit.register(print, 'the end')\n"
        "for epoch in range(9):\n"
        "    try:\n"
        "        end_script(epoch)\n"
        "    except BaseException as error:\n"
        "        print(epoch, type(error).__name__)\n"
    )
    process = run_program(program)
    assert process.stdout == "0 SystemExit\n1 SystemExit\nthe end\n"
    assert "ended by force: it goes on after SystemExit" in process.stderr


def test_function_of_atexit_that_asks_for_batches_ends_quietly():
    """As a last evaluation, in a script that has caught SystemExit."""
    program = (
        "import atexit\n"
        "from fastloop.explain.attach.early_stop import end_script\n"
        "atexit.register(print, 'the end')\n"
        "def evaluate():\n"
        "    print('begun')\n"
        "    end_script(2)\n"
        "    print('ended')\n"
        "atexit.register(evaluate)\n"
        "end_script(2)\n"
    )
    process = run_program(program)
    assert process.stdout == "begun\nthe end\n"
    assert process.stderr == "fastloop: the script is ended by force: it goes on after SystemExit\n"


@pytest.mark.parametrize("second", ["main", "thread"])
def test_clean_up_of_a_forced_end_waits_for_another_thread_that_ends_meanwhile(second):
    program = (
        "import atexit, threading\n"
        "from fastloop.explain.attach.early_stop import end_script\n"
        "begun, ended = threading.Event(), threading.Event()\n"
        "def clean_up():\n"
        "    begun.set()\n"
        "    ended.wait()\n"
        "    print('clean')\n"
        "atexit.register(clean_up)\n"
        "def ask():\n"
        "    begun.wait()\n"
        "    try:\n"
        "        end_script(2)\n"
        "    finally:\n"
        "        ended.set()\n"
        "threading.Thread(target=end_script).start()\n"
    )
    start = "ask()\n" if second == "main" else "threading.Thread(target=ask).start()\n"
    process = run_program(program + start + "threading.Event().wait()\n")
    assert process.stdout == "clean\n"
    assert process.stderr == "fastloop: the script is ended by force: its loop is in a thread\n"


@pytest.mark.heavy
@pytest.mark.parametrize(("trials", "asked", "is_forced"), [(6, 1, False), (99, 1, True)])
def test_script_that_goes_on_after_its_end_may_finish(tmp_path, trials, asked, is_forced):
    """As a search over hyperparameters, which reports the end of each trial."""
    program = (
        "import sys\n"
        "from fastloop.explain.attach.early_stop import EarlyStop, StopCounter\n"
        f"counter = StopCounter(EarlyStop(batches={asked}))\n"
        f"for trial in range({trials}):\n"
        "    try:\n"
        "        counter.count_step(('train.py:9', 'train.py:5'), 1000)\n"
        "    except SystemExit:\n"
        "        print('ended')\n"
        "print('summary')\n"
    )
    process = run_program(program)
    lines = process.stdout.splitlines()
    assert ("summary" in lines) is not is_forced
    assert lines.count("ended") == (20 if is_forced else trials)
    assert ("fastloop: the script is ended by force" in process.stderr) is is_forced


def test_round_that_the_budget_has_cut_off_is_left_out():
    """The changes of the second round ran, and then there was no time for the script as it is."""
    baseline = Attempt(change=AS_IS, run_s=10.0, seconds={1: 10.0})
    slow, fast = (
        Attempt(change=Change(settings={"num_workers": count}), run_s=5.0, seconds=seconds)
        for count, seconds in ((1, {1: 8.0, 2: 1.0}), (2, {1: 5.0, 2: 9.0}))
    )
    attempts = Attempts(baseline=baseline, changed=[slow, fast])
    assert attempts.choose_round(3, remaining_s=1000.0) == [fast, slow]
    assert attempts.choose_round(3, remaining_s=0.0) == []


def test_minutes_are_those_of_changes_that_would_run_again():
    """A change that was killed, or that takes 35 times as long, asked for 25 minutes."""
    baseline = Attempt(change=AS_IS, run_s=10.0, seconds={1: 5.0})
    runs = [({1: 4.0}, 9.0, ""), ({}, 12.0, ""), ({1: 50.0}, 60.0, ""), ({}, 60.0, "killed")]
    changed = [
        Attempt(change=Change(settings={"num_workers": n}), run_s=run_s, seconds=s, failure=failure)
        for n, (s, run_s, failure) in enumerate(runs)
    ]
    assert Attempts(baseline=baseline, changed=changed).longest_run_s == 12.0


@pytest.mark.parametrize(("changed_s", "is_run"), [([9.0, 4.0, 12.0], True), (3 * [5.0], False)])
def test_time_for_comparing_samples_is_used_for_rounds_while_no_change_is_sure(changed_s, is_run):
    baseline = Attempt(change=AS_IS, run_s=10.0, seconds={1: 10.0, 2: 10.2, 3: 9.9})
    change = Change(settings={"num_workers": 2})
    attempt = Attempt(change=change, run_s=10.0, seconds=dict(enumerate(changed_s, 1)))
    # A round takes 20 s, and the comparison as much again.
    attempts = Attempts(baseline=baseline, changed=[attempt])
    assert bool(attempts.choose_round(4, remaining_s=30.0)) is is_run


@pytest.mark.parametrize(
    ("seconds", "remaining_s", "chosen"),
    [
        ({1: 11.0}, 70.0, 2),  # it saves nothing, and there is time for three rounds of the next
        ({1: 11.0, 2: 10.0, 3: 10.0}, 70.0, 2),
        ({1: 11.0}, 50.0, 1),
        ({1: 5.0}, 70.0, 1),
    ],
)
def test_change_that_saves_nothing_makes_room_for_one_that_has_not_run(
    seconds, remaining_s, chosen
):
    baseline = Attempt(change=AS_IS, run_s=10.0, seconds={1: 10.0, 2: 10.0, 3: 10.0})
    first, second = (
        Attempt(change=Change(settings={"num_workers": n}), run_s=10.0) for n in (1, 2)
    )
    first.seconds |= seconds
    attempts = Attempts(baseline=baseline, changed=[first, second])
    (next_one,) = attempts.choose_round(len(seconds) + 1, remaining_s)
    assert next_one.change.settings == {"num_workers": chosen}
    # It goes on if it saves time, and the one that it has replaced does not come back.
    second.seconds = {len(seconds) + 1: 5.0}
    baseline.seconds |= {4: 10.0}
    assert attempts.choose_round(len(seconds) + 2, 60.0) == [second]


@dataclass
class QuickRunner:
    """Runs that take no time, and the most time that each of them was given."""

    cut: Any = field(default_factory=lambda: SimpleNamespace(batches=40))
    limits_s: list[float] = field(default_factory=list)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def seconds(self, change, limit_s):
        self.limits_s.append(limit_s)
        noise = 1 + 0.01 * (len(self.limits_s) % 3)
        return noise * (5.0 if change.settings else 10.0)

    def rerun_hashed(self, change, limit_s):
        self.limits_s.append(limit_s)
        return HashedRun(digests=[1, 2], seconds=0.0, once_s=0.0, hash_s=0.0)

    def run_hashed(self, change, limit_s):
        return self.rerun_hashed(change, limit_s)


def test_no_run_gets_more_time_than_is_left():
    """Nor do the runs in which the samples are compared, at the end."""
    runner, change = QuickRunner(), Change(settings={"num_workers": 2})
    facts = {"place": LOOP, "made_at": "/nowhere/train.py:1", "num_workers": 0}
    found = cast("Any", SimpleNamespace(facts=facts, what_ifs=()))
    tried = try_changes(cast("Any", runner), found, [change], Budget(10.0), lambda _: None)
    assert (tried.best, tried.same_samples) == ("num_workers=2", True)
    assert max(runner.limits_s) <= 10.0


def known_findings(**facts):
    step = Estimate(value=0.5, low=0.5, high=0.5, is_interval=True)
    loop = SimpleNamespace(
        facts={"place": LOOP, **facts},
        seconds=1.0,
        shares={Part.STEP: step},
        ranks=None,
        what_ifs=(),
        model_ratio=1.0,
    )
    return cast("Any", SimpleNamespace(loops=(loop,)))


def test_loader_that_no_call_makes_is_told(capsys):
    """As one that a library has copied."""
    assert find_loop_to_try(known_findings(made_at="train.py:1"))
    assert capsys.readouterr().err == ""
    assert find_loop_to_try(known_findings(made_at="")) is None
    assert f"no call was seen to make the DataLoader of the loop at {LOOP}" in (
        capsys.readouterr().err
    )
