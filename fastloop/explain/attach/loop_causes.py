"""Find the causes of a script's slow loop, and for each the change that removes it.

Each cause has a measure of its own. Most causes are reported if they cost at least LEAST_COST_SHARE
of the loop's time, or if the loop reaches a limit, such as that of cores.

Constants that name no other source were chosen by hand. With them the cause of every script of
tests/support/scripts/seeded_causes.py is found, and none in healthy_loops.py.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fastloop.core.cgroup import MOST_THROTTLED, QuotaPeriods, usable_memory_bytes
from fastloop.core.explanation import Cause
from fastloop.core.number_text import show_percent, significant
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.attach.interpreter_lock import is_lock_shared
from fastloop.explain.attach.loop_usage import Fact, LoopUsage
from fastloop.explain.attach.loops import Loop, wait_share
from fastloop.explain.cause_names import CauseName
from fastloop.explain.core_limits_text import describe_cores, describe_quota

LEAST_COST_SHARE = 0.02
"""Least cost of a reported cause, as a share of the loop's time. Stalled steps, and causes that are
measured in another way, such as by a limit, have other bounds. A smaller cost is within the noise
of most loops, and not worth a change."""
REACHED_SHARE = 0.9
"""Share of a limit from which on the limit counts as reached: busy threads rarely fill all cores
all the time, and a reading of /dev/shm may miss the moment in which it is full."""


@dataclass(frozen=True, kw_only=True)
class LoopEvidence:
    """The facts about a loop by which every cause is judged."""

    loop: Loop
    shares: Mapping[Part, Estimate]
    """Share of the loop's time that each part takes."""
    do_workers_pay: bool
    """False if the model predicts that fewer workers save most or, in a loop without workers, that
    workers save nothing."""

    @property
    def usage(self) -> LoopUsage:
        """The loop's use of cores, files and memory."""
        return self.loop.usage

    @property
    def making_share(self) -> float:
        """Share of the loop's time in which it waits for a batch that is being made."""
        return self.sum_shares(Part.DECODE, Part.TRANSFORM, Part.COLLATE)

    def sum_shares(self, *parts: Part) -> float:
        """Share of the loop's time that these parts take together."""
        return sum(self.shares[part].value for part in parts if part in self.shares)


def find_loop_causes(evidence: LoopEvidence) -> tuple[Cause, ...]:
    """The causes that make the loop slow, or that bring it near a limit, ordered by resource."""
    finders = (
        # The cores.
        _find_too_few_cores,
        _find_throttling,
        _find_too_many_threads,
        # Storage, and other machines.
        _find_cold_files,
        _find_waits,
        # The interpreter's lock.
        _find_lock_waits,
        # The way of a batch from a worker to the loop.
        _find_many_tensors,
        _find_many_open_files,
        _find_full_shm,
        # The workers.
        _find_heavy_tail,
        _find_copied_memory,
        # The step.
        _find_stalled_steps,
    )
    return tuple(cause for find in finders if (cause := find(evidence)))


def _tell(name: CauseName, text: str, advice: str) -> Cause:
    """A cause that was found.

    text: the facts about the cause. advice: the change that removes the cause.
    """
    return Cause(name=name, is_found=True, text=text, advice=advice)


def _find_too_few_cores(evidence: LoopEvidence) -> Cause | None:
    """A limit below the machine's number of cores, if nearly all allowed cores are needed."""
    usage = evidence.usage
    if not usage.steps:
        return None
    machine = usage.steps[-1]["machine_cores"]
    allowed = min(each["cores"] for each in (*usage.steps, *usage.makes))
    if allowed >= machine or usage.demand < REACHED_SHARE * allowed:
        return None
    threads = f"for {significant(usage.demand)} busy threads"
    text = f"{describe_cores(allowed, machine)}, {threads}"
    advice = "give the process more cores: see taskset, cpuset, or the job's --cpus-per-task"
    return _tell(CauseName.CORES, text, advice)


def _find_throttling(evidence: LoopEvidence) -> Cause | None:
    """A CPU quota that stopped the processes in a larger share of periods than MOST_THROTTLED."""
    steps = evidence.usage.steps
    stopped = sum(each["throttled_periods"] for each in steps)
    periods = QuotaPeriods(stopped, sum(each["periods"] for each in steps))
    quota = steps[-1]["quota"] if steps else None
    if quota is None or periods.share_throttled <= MOST_THROTTLED:
        return None
    text = describe_quota(quota, periods.share_throttled)
    advice = "raise the container's CPU limit, or use as few workers and threads as it allows"
    return _tell(CauseName.QUOTA, text, advice)


CROWDED_THREADS_PER_CORE = 1.2
"""Threads are too many if on average at least this number of them for each core could run. The
number is above 1, because the rest of the machine makes a thread of any loop wait at times."""


def _find_too_many_threads(evidence: LoopEvidence) -> Cause | None:
    """More threads of torch and workers than there are cores for them."""
    usage = evidence.usage
    if not usage.steps or not usage.workers:
        return None
    last = usage.steps[-1]
    cores = min(last["cores"], last["quota"] or last["cores"])
    of_loop, of_workers = _other_threads_ratio(usage.steps), _other_threads_ratio(usage.makes)
    is_crowded = usage.demand >= CROWDED_THREADS_PER_CORE * cores
    # torch's threads are not the cause if one thread of each process does nearly all of its work.
    if not is_crowded or max(of_loop, of_workers) < CROWDED_THREADS_PER_CORE - 1:
        return None
    # With another number of threads, torch adds numbers in another order, which may change the last
    # digits of sums.
    if of_loop >= of_workers:
        threads, place = last["torch_threads"], "the loop"
        # The loop gets the cores that its workers leave.
        left = max(1, int(cores) - usage.workers)
        # With fewer threads a step is slower all the time, but workers take cores only for a part
        # of the time. So only a trial shows which of the two costs more.
        advice = (
            f"torch.set_num_threads({left}) in the loop or fewer workers may help, which --try "
            "measures; another number of threads may change the last digits of losses"
        )
    else:
        threads, place = usage.makes[-1]["torch_threads"], "each worker"
        # Each worker makes one batch at a time, and other workers need the other cores.
        advice = (
            "call torch.set_num_threads(1) in each worker, which may change the last digits of "
            "losses"
        )
    text = (
        f"{threads} threads of torch in {place} and {usage.workers} workers: "
        f"{significant(usage.demand)} busy threads for {significant(cores)} cores"
    )
    return _tell(CauseName.THREADS, text, advice)


def _other_threads_ratio(facts: Sequence[Fact]) -> float:
    """CPU time of a process's other threads, divided by the CPU time of its own thread.

    The own thread runs the loop or makes batches; the ratio is 0 if that thread used no CPU time.
    """
    own = sum(each["parts"]["cpu_ns"] for each in facts)
    return sum(each["parts"]["process_ns"] for each in facts) / own - 1 if own else 0.0


LEAST_READ_BYTES, LEAST_READ_BYTES_PER_S = 2**20, 1e6
"""Making batches waits for storage if two conditions hold. At least LEAST_READ_BYTES are read from
storage in all. For each second in which making batches is idle, at least LEAST_READ_BYTES_PER_S are
read or LEAST_FAULTS_PER_S page faults occur. A hard disk that reads 4 KiB at random places, 250
times a second, reads LEAST_READ_BYTES_PER_S."""
LEAST_FAULTS_PER_S = 20
"""Page faults a second that read from storage, as accesses to a mapped file do. Storage that is not
broken answers a page fault in less than 50 ms."""


def _find_cold_files(evidence: LoopEvidence) -> Cause | None:
    """Files that are not in memory, so that making a batch waits for storage."""
    usage = evidence.usage
    cost = evidence.making_share * usage.idle_share
    parts = [each["parts"] for each in usage.makes]
    idle_s = usage.idle_share * sum(each["wall_ns"] for each in parts) / 1e9
    read = sum(each["read_bytes"] for each in parts)
    faults = sum(each["major_faults"] for each in parts)
    is_storage = read >= LEAST_READ_BYTES_PER_S * idle_s or faults >= LEAST_FAULTS_PER_S * idle_s
    if cost < LEAST_COST_SHARE or read < LEAST_READ_BYTES or not is_storage:
        return None
    text = (
        f"{show_percent(cost)} of the time is waiting for storage: {significant(read / 2**20)} MiB "
        f"were read from it, in {faults} page faults besides reads"
    )
    advice = (
        "keep the files in memory, as a smaller or a packed copy, or read ahead by more workers"
    )
    return _tell(CauseName.COLD_FILES, text, advice)


MOST_WORKERS = 32
"""Maximum number of workers that are advised: each takes the memory of a process."""


def _find_waits(evidence: LoopEvidence) -> Cause | None:
    """Samples that wait, for example for another machine, longer than they compute."""
    # Waits for storage are the cause of cold files.
    if _find_cold_files(evidence):
        return None
    usage = evidence.usage
    idle = usage.idle_share
    has_cost = evidence.making_share * idle >= LEAST_COST_SHARE
    workers = evidence.loop.facts["num_workers"]
    if not usage.is_mostly_idle or not has_cost or workers >= MOST_WORKERS:
        return None
    text = f"{show_percent(idle)} of making a batch is neither work nor waiting for a core"
    advice = f"use num_workers={_count_workers_for_waits(evidence.loop)}"
    # The report also lists predicted gains, which advice to use workers would contradict.
    if not evidence.do_workers_pay:
        advice = "workers wait side by side, but take longer to start than they save in this loop"
    return _tell(CauseName.WAITS, text, advice)


def _count_workers_for_waits(loop: Loop) -> int:
    """Number of workers that make batches as fast as the loop steps, if their waits overlap.

    At least 2, and at least twice the present number, but at most MOST_WORKERS. The number is
    computed as if all workers shared one core for their work, and only the waits overlapped.
    """
    load_s = float(np.mean([each.stop_ns - each.start_ns for each in loop.made])) / 1e9
    step_s = float(np.median(loop.steps_ns)) / 1e9
    busy_s = load_s * (1 - loop.usage.idle_share)
    needed = math.ceil(load_s / max(step_s, busy_s, load_s / MOST_WORKERS))
    return min(MOST_WORKERS, max(needed, 2 * loop.facts["num_workers"], 2))


LEAST_OTHER_CORES = 0.1
"""Number of cores from which on a text mentions the use of cores by other programs."""


def _find_lock_waits(evidence: LoopEvidence) -> Cause | None:
    """Threads of Python that wait for each other to release the interpreter's lock.

    If load by other programs hides in all places whether threads do so, the cause is not known.
    """
    usage = evidence.usage
    places = [(usage.steps, "the loop's process")]
    if not usage.workers:
        places.append((usage.makes, "the loop's process"))
    elif evidence.making_share >= LEAST_COST_SHARE:
        places.append((usage.makes, "each worker"))
    other_cores = evidence.loop.other_cores
    causes = [cause for facts, place in places if (cause := _judge_lock(facts, place, other_cores))]
    # False sorts before True: a cause that is known goes first.
    return min(causes, key=lambda each: each.is_found is None, default=None)


def _judge_lock(facts: Sequence[Fact], place: str, other_cores: float) -> Cause | None:
    """The cause that threads wait for the lock in one place; None if they don't.

    facts: the usage of the processes there. place: words for the process. other_cores: number of
    cores that other programs used.
    """
    shared = [each for each in facts if is_lock_shared(each)]
    shared_ns, all_ns = (sum(each["wall_ns"] for each in some) for some in (shared, facts))
    if not shared or shared_ns <= all_ns / 2:
        return None
    threads = f"{len(shared[-1]['python'])} threads of Python in {place}"
    # The time in which a thread could run includes its waits for a core. If other programs have the
    # cores, these waits are longer than the computing. Threads that need no lock then look like
    # threads that share it: together they get one core or less, and switch as often.
    if sum(each["delay_ns"] for each in shared) <= sum(each["cpu_ns"] for each in shared):
        advice = "use processes in place of threads, such as num_workers of the DataLoader"
        return _tell(CauseName.LOCK, f"{threads} hold it by turns", advice)
    others = f", as other programs used {significant(other_cores, 2)} of them"
    text = (
        f"{threads} may hold it by turns, but they waited for cores longer than they computed"
        f"{others if other_cores >= LEAST_OTHER_CORES else ''}: load hides which"
    )
    advice = "run attach again on a quiet machine"
    return Cause(name=CauseName.LOCK, is_found=None, text=text, advice=advice)


MOST_USUAL_TENSORS = 50
"""Batches with up to this many tensors are not reported."""


def _find_many_tensors(evidence: LoopEvidence) -> Cause | None:
    """Many tensors in a batch, each of which is collated and sent by itself."""
    tensors = evidence.usage.tensors
    cost = evidence.sum_shares(Part.COLLATE, Part.HAND_OFF)
    if tensors <= MOST_USUAL_TENSORS or cost < LEAST_COST_SHARE:
        return None
    text = f"{tensors} in a batch; collating and sending take {show_percent(cost)}"
    advice = "put values of one type into one tensor of a sample, and split it in the step"
    return _tell(CauseName.TENSORS, text, advice)


REACHED_FILES_SHARE = 0.8
"""Share of the limit of file descriptors from which on the limit counts as reached. The share is
lower than REACHED_SHARE, because descriptors are counted rarely, and their number grows from batch
to batch."""


def _find_many_open_files(evidence: LoopEvidence) -> Cause | None:
    """So many open files in the loop's process that their number is near the limit or at it."""
    steps = evidence.usage.steps
    most = max((each.get("most_files", 0) for each in steps), default=0)
    used = max((each.get("open_files", 0) for each in steps), default=0)
    is_near = bool(steps) and used >= REACHED_FILES_SHARE * most
    if not is_near and not _has_error(evidence, "Too many open files", "ancdata"):
        return None
    text = f"{used} of {most} (ulimit -n) were open" if steps else "there was none left"
    advice = (
        "raise ulimit -n, keep no batches of workers, or call "
        'torch.multiprocessing.set_sharing_strategy("file_system")'
    )
    return _tell(CauseName.DESCRIPTORS, text, advice)


def _find_full_shm(evidence: LoopEvidence) -> Cause | None:
    """A full or nearly full /dev/shm, through which workers send batches."""
    steps = [each for each in evidence.usage.steps if each.get("shm_all")]
    full = max((1 - each["shm_free"] / each["shm_all"] for each in steps), default=0.0)
    is_near = full >= REACHED_SHARE and evidence.loop.facts["num_workers"]
    if not is_near and not _has_error(evidence, "shared memory", "No space left on device"):
        return None
    text = f"/dev/shm was {show_percent(full)} full" if steps else "/dev/shm was full"
    advice = "give the container a larger /dev/shm (docker run --shm-size), or prefetch less"
    return _tell(CauseName.SHM, text, advice)


def _has_error(evidence: LoopEvidence, *words: str) -> bool:
    """True if one of these texts is in an error that the loop received instead of a batch."""
    return any(word in error for error in evidence.usage.errors for word in words)


TAIL_FACTOR = 4
"""A batch is slow if it takes this many times as long as the median."""
LEAST_TAIL_BATCHES = 3
"""Fewer slow batches than this may be slow by chance."""
MOST_DELAY_FACTOR = 1.3
"""Slow batches are not a heavy tail if their excess, the time beyond the median, is less than this
many times the time in which workers waited for a core: these waits then explain the excess. The
factor allows for inexact readings of the waits."""


def _find_heavy_tail(evidence: LoopEvidence) -> Cause | None:
    """A heavy tail: ready batches wait behind a few that take far longer to make than others."""
    loop, usage = evidence.loop, evidence.usage
    if usage.workers < 2 or loop.facts.get("in_order") is False or usage.delay_share is None:
        return None
    took = np.array([each.stop_ns - each.start_ns for each in loop.made], float)
    usual = float(np.median(took)) if len(took) else 0.0
    slow = took >= TAIL_FACTOR * usual
    excess_ns = float((took[slow] - usual).sum())
    # A batch is also slow if its worker has waited for a core, which is not a heavy tail.
    passes_ns = sum(each.stop_ns - each.start_ns for each in loop.passes)
    delayed_ns = usage.delay_share * passes_ns * usage.workers
    is_tail = slow.sum() >= LEAST_TAIL_BATCHES and excess_ns >= MOST_DELAY_FACTOR * delayed_ns
    cost = loop.blocked_ns / 1e9 / loop.seconds
    if not is_tail or cost < LEAST_COST_SHARE:
        return None
    text = (
        f"{slow.sum()} of {len(took)} batches take {TAIL_FACTOR} times as long as the median or "
        f"longer; ready batches wait behind one for {show_percent(cost)} of the time"
    )
    return _tell(CauseName.TAIL, text, "set in_order=False if the order of batches does not matter")


MOST_COPIED_SHARE = 0.1
"""Copies of the parent's memory are reported if they take at least this share of the usable memory,
even if they cost little time, because they grow with each epoch."""


def _find_copied_memory(evidence: LoopEvidence) -> Cause | None:
    """Copies of the parent's memory, made as forked workers count references to objects in it."""
    usage = evidence.usage
    if not usage.workers:
        return None
    unshared = sum(each["unshared_bytes"] for each in usage.makes)
    if unshared <= 0:
        return None
    copied = max(each["unshared_bytes"] for each in usage.makes) * usage.workers
    cost = _copying_share(evidence, unshared)
    if cost < LEAST_COST_SHARE and copied < MOST_COPIED_SHARE * usable_memory_bytes():
        return None
    text = (
        f"workers have copied {significant(copied / 2**20)} MiB of the parent's memory as they "
        f"counted references, {show_percent(cost)} of the time"
    )
    advice = "keep the dataset's items in an array of NumPy or a tensor, not in a list or dict"
    return _tell(CauseName.PER_SAMPLE, text, advice)


def _copying_share(evidence: LoopEvidence, unshared: int) -> float:
    """Share of the loop's time in which it waits for workers that copy the parent's memory.

    unshared: number of bytes that all makers of batches together have stopped sharing.
    """
    usage = evidence.usage
    # Bytes for each nanosecond.
    copied = unshared / sum(each["unshared_after_ns"] for each in usage.makes)
    faulted = usage.share_of_makes("minor_faults") * mmap.PAGESIZE
    # Memory that is new to a process also causes page faults, so only the share of the faults that
    # unshared bytes explain is counted. The share is limited to 1, because the loop's process also
    # ends the sharing of memory, by writing to it.
    of_copies = min(1.0, copied / faulted) if faulted else 0.0
    # On a busy machine all work waits for cores, the copies as much as the rest. So the copies are
    # a share of the time without these waits.
    runs = max(1e-9, 1 - usage.share_of_makes("delay_ns"))
    return evidence.making_share * usage.share_of_makes("system_ns") / runs * of_copies


LEAST_STALL_SHARE = 0.15
"""Least share of the loop's time for which reported steps wait. It is larger than LEAST_COST_SHARE,
because on a busy machine the two torch threads of a convolution waited for each other for 12 % of a
loop's time: one of them had no core."""


def _find_stalled_steps(evidence: LoopEvidence) -> Cause | None:
    """Steps that neither compute nor wait for data or a core, for example in a sleep."""
    loop = evidence.loop
    cost = loop.usage.stall_share(1 - wait_share(evidence.shares).value)
    # Ranks wait for each other in their steps, which is not a fault of the step.
    is_rank = loop.ranks or loop.facts["rank"] is not None
    if cost < LEAST_STALL_SHARE or is_rank:
        return None
    text = f"{show_percent(cost)} of the time the step neither computes nor waits for data"
    longest = loop.step_lines.longest
    place = f"in the step, first at {longest.name}" if longest else "in the step"
    advice = f"no loader mends it: look for printing, logging, .item(), a lock or a sleep {place}"
    return _tell(CauseName.STALL, text, advice)
