"""Two versions side by side: trials in interleaved rounds, each version in its own processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

from fastloop.core.alpha_spending import MOST_ROUNDS
from fastloop.core.interleave import rounds, within
from fastloop.core.result import Result
from fastloop.core.result_io import RESULT_FILE, load_results
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.text import describe_exit
from fastloop.core.types import UsageError
from fastloop.processes.signals import exit_if_signalled
from fastloop.reporting.comparison import CostChange, seconds_per_sample
from fastloop.reporting.version_changes import (
    RoundTimes,
    find_version_changes,
    needs_no_round,
    round_means,
)
from fastloop.reporting.version_text import find_other_samples
from fastloop.sweep.progress import round_reports

BASE, CANDIDATE = "base", "candidate"
"""Names of the two versions."""
SCRIPT = Path(__file__).parents[1] / "cli" / "version_side.py"
"""The program of a version's process."""
MOST_PAIRS = 8
"""The most trials of each version in a round. Their mean counts: with eight trials, the noise of a
round is a third of a trial's."""
END_S = 10
"""Time for a side's process to end by itself."""
Results = dict[str, Result]
"""The results of jobs, by name."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version, by the interpreter and the import path of its processes."""

    label: str
    """The name in messages, such as `HEAD~1 (4f0c2d1)`."""
    python: str = sys.executable
    path: tuple[str, ...] = ()
    """Folders that come first on the import path."""
    tree: str = ""
    """The folder of the user's modules in this version."""
    elsewhere: str = ""
    """A folder from which this version may import nothing, except from its own tree in it; empty:
    it may import from anywhere."""
    package: str = ""
    """The package that this is a version of; empty: it is one of the user's modules."""
    number: str = ""
    """The number of the package's version that its processes have to see; empty: any."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The trials of both versions."""

    base: Results
    new: Results
    times: dict[tuple[str, str], RoundTimes]
    """(job, benchmark) -> times of both versions, a value for each round."""
    changes: list[CostChange]
    rounds: int
    pairs: int
    """Trials of each version in a round."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Side:
    """The process of a version."""

    version: Version
    folder: Path
    """Folder of its results."""
    process: subprocess.Popen[bytes]
    connection: Connection
    log: IO[bytes]
    """The output of the process."""

    def run_trial(self, number: int) -> None:
        """Run that trial of all of its jobs."""
        self._send({"trial": number})
        self.receive()

    def end(self) -> None:
        """Let it write its last results, and end."""
        self._send({"trial": None})
        self.receive()

    def results(self) -> Results:
        """The results of its jobs so far, by name."""
        if not any(self.folder.rglob(RESULT_FILE)):
            return {}
        return {each.name: each for each in load_results(self.folder, self.version.label)}

    def receive(self) -> dict[str, Any]:
        """The next message. Raises UsageError, in one line, for an error and for its end."""
        try:
            message: dict[str, Any] = json.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            message = {"error": self._describe_end()}
        if "error" in message:
            raise UsageError(f"{self.version.label}: {message['error']}")
        return message

    def _send(self, message: dict[str, Any]) -> None:
        # If the process has ended, the next `receive` reports it.
        with suppress(BrokenPipeError):
            self.connection.send_bytes(json.dumps(message).encode())

    def _describe_end(self) -> str:
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        ended = f"its process has ended, {describe_exit(self.process.wait())}"
        return f"{ended}: {lines[-1]}" if lines else ended


@contextmanager
def start_side(
    version: Version, words: Sequence[str], folder: Path, *, is_base: bool
) -> Iterator[Side]:
    """The process of a version, ready for the trials of the job of these words.

    It ends with the context, and when this process is killed. Raises UsageError if the version
    can't run the job. is_base: True if it reports an error when it can run none of the jobs.
    """
    ours, theirs = Pipe(duplex=True)
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(version.path)}
    with ours, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [version.python, str(SCRIPT), str(theirs.fileno())],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs.fileno()],
            # In a session of its own it gets no Ctrl-C from the terminal: this process handles it.
            start_new_session=True,
        )
        try:
            theirs.close()
            side = Side(version=version, folder=folder, process=process, connection=ours, log=log)
            plan: dict[str, Any] = {"words": [*words], "folder": str(folder), "is_base": is_base}
            plan |= {"package": version.package, "number": version.number}
            side._send(plan | {"tree": version.tree, "elsewhere": version.elsewhere})
            yield side
        finally:
            ours.close()
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    # On this signal the process ends its trial, and then itself.
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def compare_versions(
    versions: Mapping[str, Version],
    words: Sequence[str],
    folder: Path,
    fail_above: float,
    seconds: float,
) -> Compared:
    """Run trials of both versions until it is known whether the candidate is slower, for at most
    20 rounds or `seconds`.

    versions: BASE and CANDIDATE. folder: a folder for each version's results is made in it.
    Raises UsageError if a version can't run the job.
    """
    start_ns = now_ns()
    with ExitStack() as stack:
        sides = {
            name: stack.enter_context(
                start_side(version, words, folder / name, is_base=name == BASE)
            )
            for name, version in versions.items()
        }
        # Both import and prepare their data at the same time.
        for side in sides.values():
            side.receive()
        # The first trial of a job compares its data, which takes time: it does not count.
        for side in sides.values():
            side.run_trial(0)
        base, new = sides[BASE].results(), sides[CANDIDATE].results()
        number_of_rounds, pairs = 0, 1
        # If the versions deliver other samples, their times can't be compared: none are measured.
        if comparable_jobs(base, new) and not find_other_samples(base, new):
            left_s = seconds - seconds_between(start_ns, now_ns())
            number_of_rounds, pairs = _run_rounds(sides, fail_above, left_s)
        for side in sides.values():
            side.end()
            exit_if_signalled()
        base, new = sides[BASE].results(), sides[CANDIDATE].results()
    times = round_times(base, new, number_of_rounds, pairs)
    return Compared(
        base=base,
        new=new,
        times=times,
        changes=find_version_changes(times, pairs),
        rounds=number_of_rounds,
        pairs=pairs,
        seconds=seconds_between(start_ns, now_ns()),
    )


def _run_rounds(sides: Mapping[str, Side], fail_above: float, seconds: float) -> tuple[int, int]:
    """Run rounds until enough is known; returns their number, and the trials of each version in
    one."""
    pairs, done = 1, 0
    most = MOST_ROUNDS * MOST_PAIRS
    # Trial 0 has run already, to compare the data.
    numbered = islice(rounds(dict.fromkeys(sides, most + 1)), 1, None)
    begun_ns = now_ns()
    with round_reports(MOST_ROUNDS, "check", seconds) as end_round:
        for number, order in within(numbered, seconds):
            for name in order:
                sides[name].run_trial(number)
            # The time of the first pair shows how many pairs there is time for.
            if number == 1:
                pairs = _count_pairs(seconds_between(begun_ns, now_ns()), seconds)
            # A round is complete after `pairs` trials of each version.
            if number % pairs:
                continue
            done = number // pairs
            end_round()
            base, new = sides[BASE].results(), sides[CANDIDATE].results()
            if needs_no_round(round_times(base, new, done, pairs), done, pairs, fail_above):
                break
    return done, pairs


def _count_pairs(pair_s: float, seconds: float) -> int:
    """The number of trials of each version in a round for which all rounds have time."""
    return int(min(max(seconds / (MOST_ROUNDS * pair_s), 1), MOST_PAIRS))


def comparable_jobs(base: Results, new: Results) -> list[str]:
    """Names of the jobs that run in both versions."""
    return [
        name
        for name in base
        if name in new and {base[name].status, new[name].status} <= {"RUNNING", "FINISHED"}
    ]


def round_times(
    base: Results, new: Results, num_rounds: int, pairs: int
) -> dict[tuple[str, str], RoundTimes]:
    """(job, benchmark) -> seconds per sample of both versions: the geometric mean of the trials of
    each round."""
    times: dict[tuple[str, str], RoundTimes] = {}
    for name in comparable_jobs(base, new):
        for benchmark in base[name].trials[0].benchmarks:
            both = [_of_rounds(each[name], benchmark, num_rounds, pairs) for each in (base, new)]
            if num_rounds:
                times[name, benchmark] = (both[0], both[1])
    return times


def _of_rounds(result: Result, benchmark: str, num_rounds: int, pairs: int) -> list[float]:
    by_number = {trial.number: trial.benchmarks[benchmark] for trial in result.trials}
    numbers = range(1, 1 + num_rounds * pairs)
    return round_means([seconds_per_sample(by_number[number]) for number in numbers], pairs)
