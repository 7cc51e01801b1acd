"""Compare two versions of code: run their trials in interleaved rounds, in separate processes.

`fastloop check against=` calls `compare_versions` to find out whether the new version is slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fastloop.core.auto_trials import MOST_ROUNDS
from fastloop.core.interleave import rounds
from fastloop.core.result import Result
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.time_limits import within
from fastloop.processes.signals import exit_if_signalled
from fastloop.reporting.comparison import CostChange, seconds_per_sample
from fastloop.reporting.version_changes import (
    RoundTimes,
    find_version_changes,
    needs_no_round,
    round_means,
)
from fastloop.reporting.version_outcome import find_other_samples
from fastloop.sweep.progress import round_reports
from fastloop.sweep.version_process import (
    BASE,
    NEW,
    Results,
    Version,
    VersionProcess,
    start_version,
)

MOST_TRIALS_PER_ROUND = 8
"""Maximum number of trials of each version in a round. The value of a round is the geometric mean
of its trials. With eight trials, the noise of the mean is about a third of the noise of one
trial."""


@dataclass(frozen=True, kw_only=True)
class VersionComparison:
    """The results of both versions, and the changes of their times."""

    base: Results
    """Results of the base version."""
    new: Results
    """Results of the new version."""
    times: dict[tuple[str, str], RoundTimes]
    """(job, benchmark) -> seconds per sample of both versions, with a value for each round."""
    changes: list[CostChange]
    """The change from the base version to the new one, for each job and benchmark."""
    rounds: int
    """Number of rounds that were measured."""
    trials_per_round: int
    """Number of trials of each version in a round."""
    seconds: float
    """Seconds of the whole comparison."""


def compare_versions(
    versions: Mapping[str, Version],
    words: Sequence[str],
    folder: Path,
    fail_above: float,
    seconds: float,
) -> VersionComparison:
    """Run trials of both versions until it is known whether the new version is slower.

    The last trials are those of round MOST_ROUNDS, or those that run when `seconds` have passed.
    versions: BASE and NEW -> the version. words: arguments of `fastloop run`. folder: receives a
    folder of results for each version. fail_above: allowed regression in percent. Raises UsageError
    if the base can run none of the jobs, or if the process of a version reports an error or ends.
    """
    start_ns = now_ns()
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(
                start_version(version, words, folder / name, is_base=name == BASE)
            )
            for name, version in versions.items()
        }
        # Both versions import their modules and prepare their data at the same time.
        for process in processes.values():
            process.receive()
        # Trial 0 of a job also compares the job's data, which takes time. So it does not count.
        for process in processes.values():
            process.run_trial(0)
        base, new = processes[BASE].results(), processes[NEW].results()
        num_rounds, trials_per_round = 0, 1
        # If the versions deliver different samples, their times can't be compared. So no times are
        # measured.
        if comparable_jobs(base, new) and not find_other_samples(base, new):
            left_s = seconds - seconds_between(start_ns, now_ns())
            num_rounds, trials_per_round = _run_rounds(processes, fail_above, left_s)
        for process in processes.values():
            process.end()
            exit_if_signalled()
        base, new = processes[BASE].results(), processes[NEW].results()
    times = round_times(base, new, num_rounds, trials_per_round)
    return VersionComparison(
        base=base,
        new=new,
        times=times,
        changes=find_version_changes(times, trials_per_round),
        rounds=num_rounds,
        trials_per_round=trials_per_round,
        seconds=seconds_between(start_ns, now_ns()),
    )


def _run_rounds(
    processes: Mapping[str, VersionProcess], fail_above: float, seconds: float
) -> tuple[int, int]:
    """Run rounds until enough is known; returns (rounds, trials of each version in a round).

    fail_above: allowed regression in percent. seconds: time limit of all rounds.
    """
    trials_per_round = 1
    done = 0
    most = MOST_ROUNDS * MOST_TRIALS_PER_ROUND
    # Trial 0 has run already, to compare the data.
    numbered = islice(rounds(dict.fromkeys(processes, most + 1)), 1, None)
    begun_ns = now_ns()
    with round_reports(MOST_ROUNDS, "check", seconds) as end_round:
        for number, order in within(numbered, seconds):
            for name in order:
                processes[name].run_trial(number)
            # The time of trial 1 of both versions shows how many trials fit into a round.
            if number == 1:
                trials_per_round = _count_trials(seconds_between(begun_ns, now_ns()), seconds)
            # A round is complete after this many trials of each version.
            if number % trials_per_round:
                continue
            done = number // trials_per_round
            end_round()
            base, new = processes[BASE].results(), processes[NEW].results()
            times = round_times(base, new, done, trials_per_round)
            if needs_no_round(times, done, trials_per_round, fail_above):
                break
    return done, trials_per_round


def _count_trials(both_s: float, seconds: float) -> int:
    """The number of trials of each version in a round that leaves time for MOST_ROUNDS rounds.

    both_s: seconds of one trial of each version. seconds: time limit of all rounds.
    """
    return int(min(max(seconds / (MOST_ROUNDS * both_s), 1), MOST_TRIALS_PER_ROUND))


def comparable_jobs(base: Results, new: Results) -> list[str]:
    """Names of the jobs that both versions have, and that have failed in neither."""
    return [
        name
        for name in base
        if name in new and {base[name].status, new[name].status} <= {"RUNNING", "FINISHED"}
    ]


def round_times(
    base: Results, new: Results, num_rounds: int, trials_per_round: int
) -> dict[tuple[str, str], RoundTimes]:
    """(job, benchmark) -> seconds per sample of both versions in each round.

    The value of a round is the geometric mean of its trials. Empty if no round was measured.
    """
    if not num_rounds:
        return {}
    numbers = range(1, 1 + num_rounds * trials_per_round)

    def means(result: Result, benchmark: str) -> list[float]:
        by_number = {trial.number: trial.benchmarks[benchmark] for trial in result.trials}
        seconds = [seconds_per_sample(by_number[number]) for number in numbers]
        return round_means(seconds, trials_per_round)

    return {
        (name, benchmark): RoundTimes(
            base=means(base[name], benchmark), new=means(new[name], benchmark)
        )
        for name in comparable_jobs(base, new)
        for benchmark in base[name].trials[0].benchmarks
    }
