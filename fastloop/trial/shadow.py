"""Run the shadow of a timed trial: the same calls in another process, with every epoch compared.

A timed window looks at no sample. Therefore one trial of each job, drawn at random, is run again in
the same way, with a comparison with the dataset instead of the clock. A loader can't know whether
it is in a trial or in its shadow. Work that a loader does outside of the requested epochs is
detected too, because no window would contain it.
"""

from __future__ import annotations

import contextlib
import random
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.core.number_text import significant
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import StreamingDataset
from fastloop.core.result import BenchmarkName, Calls, Shadow, Shuffling
from fastloop.core.spans import now_ns, other_threads_cpu_ns, pause, seconds_between
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import Epochs, Invalid
from fastloop.data.reference import reference_hashes
from fastloop.data.sample_order import check_order, places_in_store
from fastloop.data.shuffling import shuffling_of
from fastloop.processes.rank_group import all_gather, world_size
from fastloop.trial.job import Job
from fastloop.trial.job_check import check_epoch, without_randomness
from fastloop.trial.job_context import JobContext
from fastloop.trial.job_start import start_job
from fastloop.trial.page_cache import ReopenableLoader, set_cache_state
from fastloop.trial.training_limit import replay_batches
from fastloop.trial.window import drain

LEAST_UNFORESEEN = 100_000
"""Smallest of the random epoch numbers that no loader can foresee."""
NUM_UNFORESEEN = 1_000_000
"""The random epoch number is one of this many numbers from LEAST_UNFORESEEN on."""
SHADOW_TIME = 4
"""Time limit of a shadow, as a multiple of the limit of a trial: hashing takes longer than
delivering."""

SETTLE_S = 0.01
"""Seconds for workers and threads of the last epoch to end."""
PAUSE_S = 0.05
"""Seconds in which nothing is asked of the loader."""
MOST_IDLE_S = 0.015
"""CPU seconds that idle threads may take in a pause."""
MOST_IDLE_CHILDREN_S = 0.03
"""CPU seconds that idle child processes may take in a pause; more than threads, because the clocks
of other processes count hundredths of seconds."""
SUSPECT_S = 0.003
"""If idle threads or child processes take more CPU seconds than this, a longer pause decides. On a
busy machine, a thread that works all the time gets a core for only a part of PAUSE_S."""
MOST_IDLE_BYTES = 256 << 10
"""Bytes that may be read in a pause in any case: a thread of the interpreter may read one of its
own files."""
MOST_TIMES_FASTER = 3.0
"""An epoch with a foreseeable number (0, 1, …) may be this many times as fast as an epoch with a
random number, plus LEAST_GAIN_S. A greater difference shows that the loader made the epoch before
it was asked for."""
LEAST_GAIN_S = 0.005
"""Seconds of gain, beyond MOST_TIMES_FASTER, that are attributed to chance."""
LEAST_PAIRS = 3
"""Minimum number of pairs, each of a foreseen and an unforeseen epoch, before their medians are
compared. One pair is not enough for epochs of milliseconds, because an interruption may last as
long as such an epoch."""
LONG_S = 0.3
"""If a pair of epochs takes longer than these seconds, it is compared without further pairs."""
MOST_PAIRS = 10
"""Maximum number of compared pairs; the loader passes as soon as the medians show no gain. Three
pairs are too few: on a busy machine, all three unforeseen epochs were late by chance."""


def run_shadow(job: Job, prepared: PreparedData, number: int, calls: Calls) -> Shadow:
    """Repeat a timed trial, and compare the epochs of its windows with the dataset.

    calls: the calls of the timed trial. Raises Invalid for samples that are not the dataset's, for
    another order than the plan's, and for work outside the windows.
    """
    context = without_randomness(start_job(job, prepared, number))
    observer = _Observer(context)
    with context.open_loader() as loader:
        unread = calls.unread
        if calls.compares_data:
            unread = observer.check(loader.epochs, job.epochs + 1)
        context.first_batch(loader.epochs)
        num_epochs = [_check_windows(observer, loader, calls, name) for name in job.benchmark]
        # This is read before the last comparison, because no window has timed that epoch.
        found_unread = observer.found_unread
        if calls.compares_data:
            observer.check(loader.epochs, job.epochs + 2)
        unforeseen = all_gather(secrets.randbelow(NUM_UNFORESEEN), int)[0]
        check_unforeseen_epoch(loader.epochs, LEAST_UNFORESEEN + unforeseen)
    # The trial reads the bytes of its batches only if the epoch before the windows had unread ones.
    # So batches that are unread only in the windows were timed without reading them.
    if found_unread and not unread:
        raise Invalid("batches of its windows may be unread in a file, those before are not")
    return Shadow(number=number, epochs=sum(num_epochs), shuffling=observer.judge_order())


def _check_windows(
    observer: _Observer, loader: ReopenableLoader, calls: Calls, name: BenchmarkName
) -> int:
    """Repeat the timed trial's calls for a benchmark, and compare epochs of its windows.

    Returns the number of compared epochs.
    """
    context, job = observer.context, observer.context.job
    deliver = context.step_delivery()
    drain(loader.epochs, deliver, job.epochs, context.device)
    count = 0
    for repeats in calls.windows.get(name, [1]):
        set_cache_state(job.cache, context.prepared.files, loader)
        check_idle(context.prepared.sample_nbytes * job.loading.batch_size)
        drawn = _epochs_to_compare(job.epochs, repeats)
        # Every rank has to compare the same epochs, because a comparison gathers from all ranks.
        compared = all_gather(drawn, set[int])[0]
        for epoch in range(job.epochs * repeats):
            if epoch in compared:
                observer.check(loader.epochs, epoch)
            else:
                drain(loader.epochs, deliver, epoch, context.device)
        count += len(compared)
    if name in calls.replays:
        replay_batches(loader.epochs(job.epochs), deliver)
    return count


def _epochs_to_compare(epochs: int, repeats: int) -> set[int]:
    """Numbers of the epochs of a window to compare.

    They are all `epochs` epochs that the job asks for, and the same number of repeats, drawn at
    random (fewer if there are fewer repeats).
    """
    # Comparing all repeats would take many times as long. The system's source of randomness draws
    # some of them. A loader can't seed it, and so can't foresee which ones are drawn.
    asked, repeated = range(epochs), range(epochs, epochs * repeats)
    return {*asked, *random.SystemRandom().sample(repeated, min(epochs, len(repeated)))}


class _Observer:
    """Compares epochs of a loader with the dataset, and judges the order of their samples."""

    def __init__(self, context: JobContext) -> None:
        self.context = context
        self.found_unread = False
        """True once a batch of an epoch may have been unread in a file."""
        self._places: dict[int, np.ndarray] = {}
        """Number of an epoch -> places of its samples in the dataset, int64, in the order of
        delivery; -1 for a sample that is not in the dataset."""
        self._reference = reference_hashes(context.prepared)

    def check(self, epochs: Epochs, epoch: int) -> bool:
        """Compare an epoch by `check_epoch`, and keep the places of its samples."""
        hashes: list[np.ndarray] = []
        unread = check_epoch(self.context, epochs, epoch, hashes.append)
        self.found_unread = self.found_unread or unread
        delivered = np.concatenate([*hashes, np.zeros((0, 16), np.uint8)])
        self._places[epoch] = places_in_store(delivered, self._reference)
        return unread

    def judge_order(self) -> Shuffling | None:
        """Quality of the epochs' shuffling; None if samples are unknown, as with random ones.

        Raises Invalid for another order than the plan's, unless the data has its own order.
        """
        job, prepared, plan = self.context.job, self.context.prepared, self.context.plan
        if any((places < 0).any() for places in self._places.values()):
            return None
        # No order can be asked of a loader that brings its own data, nor of a stream.
        has_own_order = traits_of(LoaderTraits, job.loader).brings_data or isinstance(
            prepared.dataset, StreamingDataset
        )
        error = ""
        if not has_own_order:
            try:
                check_order(prepared, plan, self._places)
            except Invalid as reason:
                error = str(reason)
        # Ranks with an error gather too, because the others would wait for them.
        if errors := [answer for answer in all_gather(error, str) if answer]:
            raise Invalid(errors[0])
        size = job.loading.batch_size
        shuffling = shuffling_of(self._places, prepared.num_samples, size)
        return replace(shuffling, ranks_disjoint=True) if world_size() > 1 else shuffling


def check_idle(batch_nbytes: int) -> None:
    """Raise Invalid if threads or processes of the loader work, or read more than a batch, while
    nothing is asked of it."""
    pause(SETTLE_S)
    before, before_nbytes = _CpuTimes.now(), _bytes_read()
    pause(PAUSE_S)
    nbytes = _bytes_read() - before_nbytes
    if nbytes > max(batch_nbytes, MOST_IDLE_BYTES):
        work = f"{nbytes:,} bytes read in a pause of {PAUSE_S} s"
        raise Invalid(f"works outside the window: {work} before it")
    if not before.growth().is_above(SUSPECT_S, SUSPECT_S):
        return
    # A small reading may be a single tick of 10 ms, or the small part of a core that a busy machine
    # gives to a thread that works all the time. So the pause is prolonged until the clocks of
    # processes can be trusted. The allowed CPU time stays the same.
    pause(LEAST_SECONDS - PAUSE_S)
    grown = before.growth()
    if grown.is_above(MOST_IDLE_S, MOST_IDLE_CHILDREN_S):
        cpu_s = grown.threads_s + grown.children_s
        work = f"{cpu_s:.3f} s of CPU time in a pause of {LEAST_SECONDS} s"
        raise Invalid(f"works outside the window: {work} before it")


@dataclass(frozen=True)
class _CpuTimes:
    """CPU time of this process's other threads, and of its descendants."""

    threads_s: float
    """CPU seconds of the other threads."""
    children_s: float
    """CPU seconds of the descendants."""

    @staticmethod
    def now() -> _CpuTimes:
        """Take the present times."""
        return _CpuTimes(other_threads_cpu_ns() / 1e9, _children_seconds())

    def growth(self) -> _CpuTimes:
        """The CPU time that was spent since this reading."""
        now = self.now()
        return _CpuTimes(now.threads_s - self.threads_s, now.children_s - self.children_s)

    def is_above(self, most_threads_s: float, most_children_s: float) -> bool:
        """True if the threads have taken more than most_threads_s, or the descendants more than
        most_children_s."""
        return self.threads_s > most_threads_s or self.children_s > most_children_s


def check_unforeseen_epoch(epochs: Epochs, number: int) -> None:
    """Raise Invalid if epochs with foreseeable numbers are faster than others.

    The batches of the faster epochs were made before they were asked for. number: a random number
    of an epoch, which has not been asked for before.
    """
    foreseen, unforeseen = [], []
    foreseen_s = unforeseen_s = 0.0
    for pair in range(MOST_PAIRS):
        foreseen.append(_seconds(epochs, pair))
        unforeseen.append(_seconds(epochs, number + pair))
        foreseen_s, unforeseen_s = median(foreseen), median(unforeseen)
        is_enough = pair + 1 >= LEAST_PAIRS or foreseen_s + unforeseen_s > LONG_S
        if is_enough and unforeseen_s <= MOST_TIMES_FASTER * foreseen_s + LEAST_GAIN_S:
            return
    first, random_one = significant(foreseen_s, 2), significant(unforeseen_s, 2)
    times = f"epoch 0 takes {first} s, one of random number {random_one} s"
    raise Invalid(f"works outside the window: {times}")


def _seconds(epochs: Epochs, number: int) -> float:
    """Seconds of reading an epoch with this number."""
    start_ns = now_ns()
    for _ in epochs(number):
        pass
    return seconds_between(start_ns, now_ns())


def _bytes_read() -> int:
    """Bytes that the other threads of this process, and its living descendants, have read so far by
    system calls, from files or the page cache; 0 if the system does not count them.

    Only the difference between two calls by the same thread is meaningful.
    """
    # Counting itself reads files of /proc, 4 KB for each descendant. So the bytes that this thread
    # has read are subtracted; those of other threads stay in the total.
    process = psutil.Process()
    total = -_bytes_read_here()
    for each in (process, *process.children(recursive=True)):
        # The process may have ended, and macOS has no io_counters.
        with contextlib.suppress(psutil.Error, AttributeError):
            total += each.io_counters().read_chars  # pyright: ignore[reportAttributeAccessIssue]
    return total


def _bytes_read_here() -> int:
    """Bytes that this thread has read so far by system calls; 0 if the system does not count
    them."""
    with contextlib.suppress(OSError):
        # proc_pid_io(5): the first line is `rchar: <bytes>`.
        return int(Path("/proc/thread-self/io").read_text(encoding="ascii").split()[1])
    return 0


def _children_seconds() -> float:
    """CPU time so far of all living descendants."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        # The process may have ended meanwhile.
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
