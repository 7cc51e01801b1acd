"""Tries changes of a script's DataLoader. The beginning of the script runs again and again, once
without a change and once with each change in every round."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fastloop.core import stats
from fastloop.core.number_text import show_estimate, show_percent, significant
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.text import align, wrap
from fastloop.core.types import Unsupported
from fastloop.explain.attach.call_patch import find_options, patch_script, show_command
from fastloop.explain.attach.changes_to_try import (
    COMPARED,
    FEWEST_ROUNDS,
    KEPT,
    KEPT_LATER,
    MARGIN,
    find_prediction,
    least_minutes,
    loop_of_rank,
)
from fastloop.explain.attach.children import BOOTSTRAP
from fastloop.explain.attach.cut_plan import CutResult, CutRun, read_results, write_cut
from fastloop.explain.attach.findings import LoopFindings
from fastloop.explain.attach.further_runs import read_last_line, run_again
from fastloop.explain.attach.loader_places import is_library
from fastloop.explain.change import FASTLOADER, LEAST_GAIN, Change

MOST_ROUNDS = 10
"""Most rounds, even if the budget has time for more."""
MOST_TIMES, LEAST_LIMIT_S = 4, 30.0
"""A run is killed when it has taken MOST_TIMES as long as the first run, but not before
LEAST_LIMIT_S: either its change is slow, or its processes wait for each other forever."""
DIGEST_BATCHES = 200
"""Samples are compared in at most this many batches, because hashing them takes time."""
TRIED, PATCH = "attach_try.json", "attach.patch"
AS_IS = Change()
"""The change that changes nothing."""
LIBRARIES = {
    "transformers": {
        "num_workers": "TrainingArguments(dataloader_num_workers={})",
        "persistent_workers": "TrainingArguments(dataloader_persistent_workers={})",
        "prefetch_factor": "TrainingArguments(dataloader_prefetch_factor={})",
    },
    "timm": {"num_workers": "create_loader(num_workers={}), --workers of train.py"},
    "ultralytics": {"num_workers": "workers={}"},
}
"""Arguments of libraries that make DataLoaders, by the name of the package."""


@dataclass(frozen=True, kw_only=True)
class TriedChange:
    """The gain of a change that was tried."""

    change: str
    """The name of the change."""
    predicted: float | None
    """Share of the loop's time that the model predicted it to save; None: nothing was predicted."""
    gain: stats.Estimate | None
    """Share of the loop's time that it saves; None: its runs failed."""
    rounds: int
    failure: str = ""
    """The last line of the run that failed."""


@dataclass(frozen=True, kw_only=True)
class TriedLoop:
    """The changes of a loop's DataLoader that were tried, the one that saves most first."""

    place: str
    made_at: str
    batches: int
    """Number of batches of the loop in each run."""
    seconds: float
    """Time of the loop in a run without a change, the median."""
    changes: tuple[TriedChange, ...]
    least_minutes: float
    """Minutes that suffice to try one change, by the longest run so far."""
    best: str | None
    """The recommended change; None: none saves anything for certain."""
    same_samples: bool | None = None
    """True: with the recommended change the first pass has the samples that it has without. None:
    runs of the unchanged script differ, too, or no change is recommended."""
    patch: str = ""
    """The recommended change for `git apply`; empty if there is none."""
    notes: tuple[str, ...] = ()
    """Sentences on arguments of DataLoader that have no effect with the recommended change, and on
    values that the patch replaces."""
    advice: str = ""
    """A sentence on the call to change by hand; empty if there is a patch, or nothing to change."""


@dataclass(kw_only=True)
class Attempt:
    """A change with its runs so far."""

    change: Change
    run_s: float
    """Seconds of the last run, from its start to its end."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Seconds of the loop by the number of the round."""
    failure: str = ""


class ScriptEnded(Unsupported):
    """A further run of the script ended before its loop had received all batches to time."""


class ScriptRunner:
    """Runs the script's beginning, with its output in a file."""

    def __init__(
        self, arguments: Sequence[str], found: LoopFindings, batches: int, folder: Path
    ) -> None:
        # An absolute path into the working folder would lead to the original, not to the copy.
        self.arguments = [_place_in_folder(each, folder) for each in arguments]
        self.folder = folder
        self.of_pass = loop_of_rank(found).of_pass
        self.notes: dict[str, tuple[str, ...]] = {}
        """Sentences on arguments that have no effect, by the name of the change."""
        # A script in a copy of the working folder makes its loader there, unless it is in a package
        # that is installed from the original (pip install -e).
        made_at = found.facts["made_at"]
        self.cut = CutRun(
            place=found.facts["place"],
            made_at=tuple(dict.fromkeys((_place_in_folder(made_at, folder), made_at))),
            batches=batches,
            change=AS_IS,
        )

    def seconds(self, change: Change, limit_s: float) -> float:
        """Seconds of the loop with the change; of the slowest rank if there are several.

        Raises ScriptEnded, with the last line of the output, if the script ends before its loop has
        received all batches, and Unsupported if it has to be killed after limit_s.
        """
        results = self._run(replace(self.cut, change=change), limit_s)
        # Each loader and each rank has the same sentences: they are kept once.
        self.notes[change.name] = tuple(
            dict.fromkeys(note for each in results for note in each.notes)
        )
        return max(each.seconds for each in results)

    def digests(self, change: Change, limit_s: float) -> list[int]:
        """Hashes of the samples in the first pass, in ascending order: one of all of its samples,
        or one of each batch if the pass has more than DIGEST_BATCHES."""
        hashed = min(self.cut.batches, self.of_pass, DIGEST_BATCHES)
        cut = replace(self.cut, change=change, hashed=hashed)
        found = [each.digests for each in self._run(cut, limit_s)]
        if not all(found):
            return []
        if hashed == self.of_pass:
            return sorted(sum(digests) % 2**64 for digests in found)
        return sorted(number for digests in found for number in digests)

    def _run(self, cut: CutRun, limit_s: float) -> list[CutResult]:
        with tempfile.TemporaryDirectory(prefix="fastloop-try-") as name:
            folder = Path(name)
            write_cut(folder, cut)
            output = folder / "output.txt"
            command = [sys.executable, BOOTSTRAP, name, *self.arguments]
            try:
                run_again(command, self.folder, output, lambda process: process.wait(limit_s))
            except subprocess.TimeoutExpired:
                late = f"the script had not reached batch {cut.batches} after {limit_s:.0f} s"
                raise Unsupported(late) from None
            if results := read_results(folder):
                return results
            reason = read_last_line(output)
            raise ScriptEnded(f"the script ended before batch {cut.batches}: {reason}")


def _place_in_folder(text: str, folder: Path) -> str:
    """The path, or the argument such as --out=<path>, that names the same file in the folder, if
    the file lies in the working folder."""
    place = 0 if text.startswith("/") else text.find("=/") + 1
    before, path = text[:place], text[place:]
    here, named = str(Path.cwd()), os.environ.get("PWD", "")
    # The shell's name of the working folder may lead through a symbolic link.
    is_here = named.startswith("/") and os.path.realpath(named) == here
    for each in (here, named) if is_here else (here,):
        if path == each or path.startswith(f"{each}/"):
            return f"{before}{folder}{path.removeprefix(each)}"
    return text


def to_json(tried: TriedLoop) -> str:
    """The text of attach_try.json."""
    return json.dumps({"schema": 1, **asdict(tried)}, indent=1) + "\n"


def try_changes(
    runner: ScriptRunner,
    found: LoopFindings,
    changes: Sequence[Change],
    budget_s: float,
    report: Callable[[str], None],
) -> TriedLoop:
    """Run rounds until the budget is spent, and judge the changes.

    report: called with a line of progress. Raises Unsupported if there is no change, if the script
    can't be run again, or if the budget does not suffice for rounds of a single change.
    """
    if not changes:
        raise Unsupported(f"no change fits the DataLoader of the loop at {found.facts['place']}")
    started_ns = now_ns()
    # This first run gives the samples to compare with, and tells how long a run takes.
    digests = runner.digests(AS_IS, budget_s)
    run_s = seconds_between(started_ns, now_ns())
    baseline = Attempt(change=AS_IS, run_s=run_s)
    attempts = [Attempt(change=each, run_s=run_s) for each in changes]
    limit_s = max(MOST_TIMES * run_s, LEAST_LIMIT_S)

    def rest_s() -> float:
        return budget_s - seconds_between(started_ns, now_ns())

    drawn = random.Random(0)
    for number in range(1, MOST_ROUNDS + 1):
        chosen = _choose_round(attempts, baseline, number, rest_s())
        if not chosen:
            break
        order = [baseline, *chosen]
        drawn.shuffle(order)
        for each in order:
            _run_once(runner, each, number, limit_s, rest_s)
        if baseline.failure:
            raise Unsupported(baseline.failure)
        report(f"round {number}: {budget_s - rest_s():.0f} of at most {budget_s:.0f} s")
    if not baseline.seconds:
        raise Unsupported(
            f"--minutes={budget_s / 60:g}: a run up to batch {runner.cut.batches} takes "
            f"{run_s:.0f} s; allowed: {least_minutes(run_s):.1f} or more"
        )
    can_compare = rest_s() >= COMPARED * baseline.run_s
    tried, change = _judge(runner, found, baseline, attempts)
    if change is None:
        return tried
    call = patch_call(found, change)
    limits_s = (min(limit_s, max(0.0, rest_s())) for _ in range(COMPARED))
    same = _has_same_samples(runner, change, digests, limits_s) if can_compare else None
    notes = (*runner.notes.get(change.name, ()), *call.notes)
    return replace(tried, patch=call.patch, advice=call.advice, same_samples=same, notes=notes)


def _choose_round(
    attempts: Sequence[Attempt], baseline: Attempt, number: int, left_s: float
) -> list[Attempt]:
    """The changes to run in this round, the fastest so far first.
    There are as many as leave time to run the best one in FEWEST_ROUNDS rounds altogether; the list
    is empty if there is no time for a single one.
    """
    alive = _fastest(attempts, baseline)
    later = max(0, FEWEST_ROUNDS - number)
    most = KEPT[number - 1] if number <= len(KEPT) else KEPT_LATER
    # The comparison of the samples is left out if the rounds would not fit beside it.
    for reserved_s in (COMPARED * baseline.run_s, 0.0):
        for count in range(min(len(alive), most), 0, -1):
            needed_s = _round_s(baseline, alive[:count])
            needed_s += later * _round_s(baseline, alive[:1])
            # Only the first run is timed yet. If the others are slower, a further change in this
            # round must not cost the best one its last round.
            if number == 1 and count > 1:
                needed_s *= MARGIN
            if needed_s + reserved_s <= left_s:
                return alive[:count]
        # Enough rounds have been run for an interval. A further one is not worth the comparison of
        # the samples.
        if number > FEWEST_ROUNDS:
            break
    return []


def _round_s(baseline: Attempt, changes: Sequence[Attempt]) -> float:
    return baseline.run_s + sum(each.run_s for each in changes)


def _run_once(
    runner: ScriptRunner,
    attempt: Attempt,
    number: int,
    limit_s: float,
    rest_s: Callable[[], float],
) -> None:
    """Run the script with the change; a run for which the budget does not suffice is ended."""
    start_ns, budget_s = now_ns(), rest_s()
    if budget_s <= 0:
        return
    try:
        attempt.seconds[number] = runner.seconds(attempt.change, min(limit_s, budget_s))
    except Unsupported as error:
        # If the budget is spent, the run was killed for that reason, which is no fault of its
        # change.
        if rest_s() > 0:
            attempt.failure = str(error)
    attempt.run_s = seconds_between(start_ns, now_ns())


def _fastest(attempts: Sequence[Attempt], baseline: Attempt) -> list[Attempt]:
    """The changes that still run, the one that has saved most in the rounds so far first."""

    def ratio(attempt: Attempt) -> float:
        # The end of the budget may have cut off the run of a round without a change.
        shared = [number for number in attempt.seconds if number in baseline.seconds]
        ratios = [attempt.seconds[number] / baseline.seconds[number] for number in shared]
        return stats.median(ratios or [0.0])

    # A change that was left out of a round does not come back.
    most = max((len(each.seconds) for each in attempts), default=0)
    going_on = [each for each in attempts if not each.failure and len(each.seconds) == most]
    return sorted(going_on, key=ratio)


def _judge(
    runner: ScriptRunner, found: LoopFindings, baseline: Attempt, attempts: Sequence[Attempt]
) -> tuple[TriedLoop, Change | None]:
    """The judgement on the changes, and the recommended one; None if none saves time for sure."""
    tried = [
        TriedChange(
            change=each.change.name,
            predicted=find_prediction(found, each.change),
            gain=_gain(each, baseline),
            rounds=len(each.seconds),
            failure=each.failure,
        )
        for each in attempts
    ]
    # Changes without a gain, which have failed or were not run, come last.
    tried.sort(key=lambda each: -each.gain.value if each.gain else 1e9)
    best = next((each for each in tried if _is_worth_it(each.gain)), None)
    judged = TriedLoop(
        place=found.facts["place"],
        made_at=found.facts["made_at"],
        batches=runner.cut.batches,
        seconds=stats.median([*baseline.seconds.values()]),
        changes=tuple(tried),
        least_minutes=least_minutes(max(each.run_s for each in (baseline, *attempts))),
        best=best.change if best else None,
    )
    recommended = [each.change for each in attempts if best and each.change.name == best.change]
    return judged, recommended[0] if recommended else None


def _is_worth_it(gain: stats.Estimate | None) -> bool:
    return gain is not None and gain.is_interval and gain.low > 0 and gain.value >= LEAST_GAIN


def _gain(attempt: Attempt, baseline: Attempt) -> stats.Estimate | None:
    """The share of the loop's time that the change saves, over the rounds that both have."""
    rounds = [number for number in attempt.seconds if number in baseline.seconds]
    new, base = ([each.seconds[number] for number in rounds] for each in (attempt, baseline))
    ratio = stats.ratio_or_range(new, base)
    if ratio is None or attempt.failure:
        return None
    return stats.Estimate(
        value=1 - ratio.estimate,
        low=1 - ratio.high,
        high=1 - ratio.low,
        is_interval=ratio.is_interval,
    )


def _has_same_samples(
    runner: ScriptRunner, change: Change, digests: list[int], limits_s: Iterator[float]
) -> bool | None:
    """True if the samples have the given digests; None: this can't be decided.

    limits_s: the most time of each run, asked for as it begins.
    """
    try:
        again, changed = (runner.digests(each, next(limits_s)) for each in (AS_IS, change))
    except Unsupported:
        return None
    # If the script shuffles or crops without a fixed seed, two runs without a change already
    # differ.
    return changed == digests if digests and again == digests else None


@dataclass(frozen=True, kw_only=True)
class PatchedCall:
    """The change of a call: a patch, or advice if there can be none."""

    patch: str = ""
    """For `git apply`."""
    advice: str = ""
    """A sentence on the call to change by hand."""
    notes: tuple[str, ...] = ()
    """Sentences on values that the patch replaces."""


def patch_call(found: LoopFindings, change: Change) -> PatchedCall:
    """The change of the call that makes the DataLoader of the loop."""
    made_at, takes = found.facts["made_at"], found.facts.get("takes")
    path, _, line = made_at.rpartition(":")
    if is_library(path):
        return PatchedCall(advice=_library_advice(Path(path), line, change))
    try:
        patch = patch_script(Path(path), int(line), change, Path.cwd(), takes)
        options = find_options(Path(path).read_text("utf-8"), int(line), change, takes)
    except (Unsupported, SyntaxError, OSError) as error:
        advice = f"There is no patch: {error}. Change the call at {made_at}: {change.name}"
        return PatchedCall(advice=advice)
    notes = tuple(
        f"The call takes {name} from {expression}, which the patch replaces: if the script has an "
        "option for it, that does without a patch"
        for name, expression in options.items()
    )
    return PatchedCall(patch=patch, notes=notes)


def _library_advice(path: Path, line: str, change: Change) -> str:
    names = {name: LIBRARIES[name] for name in LIBRARIES if name in path.parts}
    known = [
        text.format(repr(change.settings[name]))
        for arguments in names.values()
        for name, text in arguments.items()
        if name in change.settings
    ]
    made = f"The DataLoader is made inside of a library, at {path.name}:{line}"
    return f"{made}: set {', '.join(known)}" if known else f"{made}: it needs {change.name}"


def format_tried(tried: TriedLoop, patch_path: Path | None) -> str:
    """The text that is printed: the answer, a row for each change, and the patch."""
    rows = [("tried", "the loop's time", "predicted to save")]
    for each in tried.changes:
        saved = _show_gain(each)
        predicted = "" if each.predicted is None else show_percent(each.predicted)
        rows.append((each.change, saved, predicted))
    lines = [*wrap([_answer(tried)]), "", *align(rows)]
    if tried.same_samples is not None:
        same = "the same samples as" if tried.same_samples else "other samples than"
        is_fast = tried.best is not None and tried.best.startswith(FASTLOADER)
        crops = (
            "; FastLoader decodes images and draws random crops by code of its own"
            if is_fast
            else ""
        )
        other = "" if tried.same_samples else crops
        lines += wrap([f"With the change the first pass has {same} without it{other}."])
    elif tried.best:
        reason = "the script draws other samples in each run, or the time was over"
        lines += wrap([f"It can't be told whether the change keeps the samples: {reason}."])
    lines += wrap([f"{note}." for note in tried.notes])
    if tried.advice:
        lines += ["", *wrap([f"{tried.advice}."])]
    if patch_path:
        lines += ["", show_command(patch_path), "", tried.patch.rstrip("\n")]
    return "\n".join(lines)


def _answer(tried: TriedLoop) -> str:
    loop = f"the loop at {tried.place}"
    if tried.best is None:
        known = [each for each in tried.changes if each.gain]
        if not known:
            return f"No change helps {loop}: none of them runs."
        first = known[0]
        if first.gain and first.gain.value > 0 and first.rounds < FEWEST_ROUNDS:
            least = f"in {first.rounds} of at least {FEWEST_ROUNDS} rounds"
            return (
                f"No answer yet for {loop}: {first.change} {_show_gain(first)} {least}; "
                f"--minutes={tried.least_minutes:.1f} or more will tell."
            )
        return f"No change helps {loop} for certain: the best, {first.change}, {_show_gain(first)}."
    (best,) = [each for each in tried.changes if each.change == tried.best]
    batches = f"in {best.rounds} rounds of its first {tried.batches} batches"
    return f"{tried.best} {_show_gain(best)} of the time of {loop}, {batches}."


def _show_gain(tried: TriedChange) -> str:
    if tried.gain is None:
        return f"failed: {tried.failure}" if tried.failure else "was not run: the time was over"
    if tried.gain.value < 0:
        times = significant(1 - tried.gain.value)
        return f"takes {times} times as long" if times != "1" else "takes as long as it does now"
    return f"saves {show_estimate(tried.gain, show_percent)}"
