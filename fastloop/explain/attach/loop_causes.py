"""Find the causes of a script's slow loop, and for each the change that removes it.

Each cause has a measure of its own. A cause is reported if it costs LEAST_COST_SHARE of the loop's
time, or if a limit is reached.

Constants that name no other source were chosen by hand. With them the cause of every script of
tests/support/scripts/seeded_causes.py is found, and none in healthy_loops.py.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence

import numpy as np

from fastloop.core.cgroup import MOST_THROTTLED, QuotaPeriods, usable_memory_bytes
from fastloop.core.explanation import Cause
from fastloop.core.number_text import show_percent, significant
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.attach.loop_usage import Fact
from fastloop.explain.attach.loops import Loop, wait_share
from fastloop.explain.cause_names import CauseName
from fastloop.explain.core_limits_text import describe_cores, describe_quota

LEAST_COST_SHARE = 0.02
"""A cause is reported if it costs at least this share of the loop's time. Less is within the noise
of most loops, and not worth a change."""
REACHED_SHARE = 0.9
"""Share of a limit from which it counts as reached: busy threads rarely fill all cores all the
time, and a reading of /dev/shm may miss the moment in which it is full."""


def find_loop_causes(
    loop: Loop, shares: Mapping[Part, Estimate], *, do_workers_pay: bool
) -> tuple[Cause, ...]:
    """The causes that cost the loop something.

    do_workers_pay: False if the model predicts that fewer workers save most or, in a loop without
    workers, that workers save nothing.
    """
    found = [
        *_find_too_few_cores(loop),
        *_find_throttling(loop),
        *_find_too_many_threads(loop),
        *(_find_cold_files(loop, shares) or _find_waits(loop, shares, do_workers_pay)),
        *_find_lock_waits(loop, shares),
        *_find_many_tensors(loop, shares),
        *_find_many_open_files(loop),
        *_find_full_shm(loop),
        *_find_heavy_tail(loop),
        *_find_copied_memory(loop, shares),
        *_find_stalled_steps(loop, shares),
    ]
    return tuple(found)


def _tell(name: CauseName, text: str, advice: str) -> list[Cause]:
    """A list of one cause, which was found. text: its facts. advice: the change that removes it."""
    return [Cause(name=name, is_found=True, text=text, advice=advice)]


def _find_too_few_cores(loop: Loop) -> list[Cause]:
    """The processes may use only some of the machine's cores, and their threads need nearly all of
    these."""
    usage = loop.usage
    if not usage.steps:
        return []
    machine = usage.steps[-1]["machine_cores"]
    allowed = min(each["cores"] for each in (*usage.steps, *usage.makes))
    if allowed >= machine or usage.demand < REACHED_SHARE * allowed:
        return []
    threads = f"for {significant(usage.demand)} busy threads"
    text = f"{describe_cores(allowed, machine)}, {threads}"
    advice = "give the process more cores: see taskset, cpuset, or the job's --cpus-per-task"
    return _tell(CauseName.CORES, text, advice)


def _find_throttling(loop: Loop) -> list[Cause]:
    """A quota of CPU that stopped the loop's processes in more than a few of its periods."""
    steps = loop.usage.steps
    stopped = sum(each["throttled_periods"] for each in steps)
    periods = QuotaPeriods(stopped, sum(each["periods"] for each in steps))
    quota = steps[-1]["quota"] if steps else None
    if quota is None or periods.share_throttled <= MOST_THROTTLED:
        return []
    text = describe_quota(quota, periods.share_throttled)
    advice = "raise the container's CPU limit, or use as few workers and threads as it allows"
    return _tell(CauseName.QUOTA, text, advice)


CROWDED_THREADS_PER_CORE = 1.2
"""There are too many threads if at least this number of threads for each core could run. On any
loop, the rest of the machine makes one or two threads wait for a moment."""


def _find_too_many_threads(loop: Loop) -> list[Cause]:
    """More threads of torch and workers than there are cores for them."""
    usage = loop.usage
    if not usage.steps or not usage.workers:
        return []
    last = usage.steps[-1]
    cores = min(last["cores"], last["quota"] or last["cores"])
    if usage.demand < CROWDED_THREADS_PER_CORE * cores:
        return []
    of_loop, of_workers = _other_threads_ratio(usage.steps), _other_threads_ratio(usage.makes)
    if max(of_loop, of_workers) < CROWDED_THREADS_PER_CORE - 1:
        return []
    is_in_loop = of_loop >= of_workers
    where = "the loop" if is_in_loop else "each worker"
    own = last if is_in_loop else usage.makes[-1]
    text = (
        f"{own['torch_threads']} threads of torch in {where} and {usage.workers} workers: "
        f"{significant(usage.demand)} busy threads for {significant(cores)} cores"
    )
    # With another number of threads, sums are added in another order, which changes last digits.
    if is_in_loop:
        # The loop gets the cores that its workers leave.
        left = max(1, int(cores) - usage.workers)
        # A step loses its threads for all of its time, but workers take cores for a part of it, so
        # that only a trial tells which of the two costs more.
        advice = (
            f"torch.set_num_threads({left}) in the loop or fewer workers may help, which --try "
            "measures; another number of threads may change the last digits of losses"
        )
    else:
        # Each worker makes one batch at a time, and other workers need the other cores.
        advice = (
            "call torch.set_num_threads(1) in each worker, which may change the last digits of "
            "losses"
        )
    return _tell(CauseName.THREADS, text, advice)


def _other_threads_ratio(facts: Sequence[Fact]) -> float:
    """CPU time of a process's other threads, divided by the CPU time of the thread that runs the
    loop or makes batches."""
    own = sum(each["parts"]["cpu_ns"] for each in facts)
    return sum(each["parts"]["process_ns"] for each in facts) / own - 1 if own else 0.0


def _making_share(shares: Mapping[Part, Estimate]) -> float:
    """Share of the loop's time in which it waits for a batch that is being made."""
    parts = (Part.DECODE, Part.TRANSFORM, Part.COLLATE)
    return sum(shares[part].value for part in parts if part in shares)


LEAST_READ_BYTES, LEAST_READ_BYTES_PER_S = 2**20, 1e6
"""The fetches of a loop wait for storage if they read at least LEAST_READ_BYTES from storage in
all, and for each second in which fetches are idle LEAST_READ_BYTES_PER_S, or have
LEAST_FAULTS_PER_S page faults. A hard disk that reads 4 KiB at random places, 250 times a second,
reads LEAST_READ_BYTES_PER_S."""
LEAST_FAULTS_PER_S = 20
"""Page faults that read from storage: a mapped file is read by them. Storage that is not broken
answers one in less than 50 ms."""


def _find_cold_files(loop: Loop, shares: Mapping[Part, Estimate]) -> list[Cause]:
    """Files that are not in memory, so that making a batch waits for storage."""
    usage = loop.usage
    cost = _making_share(shares) * loop.usage.idle_share
    parts = [each["parts"] for each in usage.makes]
    idle_s = usage.idle_share * sum(each["wall_ns"] for each in parts) / 1e9
    read = sum(each["read_bytes"] for each in parts)
    faults = sum(each["major_faults"] for each in parts)
    is_storage = read >= LEAST_READ_BYTES_PER_S * idle_s or faults >= LEAST_FAULTS_PER_S * idle_s
    if cost < LEAST_COST_SHARE or read < LEAST_READ_BYTES or not is_storage:
        return []
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


def _find_waits(loop: Loop, shares: Mapping[Part, Estimate], do_workers_pay: bool) -> list[Cause]:
    """Samples that wait, for example for another machine, longer than they compute."""
    idle = loop.usage.idle_share
    making = _making_share(shares)
    workers = loop.facts["num_workers"]
    if not loop.usage.is_mostly_idle or making * idle < LEAST_COST_SHARE or workers >= MOST_WORKERS:
        return []
    text = f"{show_percent(idle)} of making a batch is neither work nor waiting for a core"
    advice = f"use num_workers={_count_workers_for_waits(loop)}"
    # Advice to use workers would contradict the list of predictions.
    if not do_workers_pay:
        advice = "workers wait side by side, but take longer to start than they save in this loop"
    return _tell(CauseName.WAITS, text, advice)


def _count_workers_for_waits(loop: Loop) -> int:
    """Number of workers that load as fast as the loop steps, if waits overlap."""
    load_s = float(np.mean([each.stop_ns - each.start_ns for each in loop.made])) / 1e9
    step_s = float(np.median(loop.steps_ns)) / 1e9
    busy_s = load_s * (1 - loop.usage.idle_share)
    needed = math.ceil(load_s / max(step_s, busy_s, load_s / MOST_WORKERS))
    return min(MOST_WORKERS, max(needed, 2 * loop.facts["num_workers"], 2))


LEAST_HELD_SHARE, MOST_HELD_CORES = 0.85, 1.15
"""If threads of Python share the interpreter's lock, they could run for at least LEAST_HELD_SHARE
of the time together, but all threads of the process together use at most MOST_HELD_CORES. The lock
alone would make both numbers 1; the rest is for work that needs no lock, and for inexact
readings."""
LEAST_RUNNABLE_SHARE = 0.15
"""A thread can share the lock only if it could run for at least this share of the time."""
SHORTEST_NS, LONGEST_NS = 5e5, 2e7
"""Between two switches, a thread that shares the lock could run for a time in this range, because
Python makes it give the lock up after 5 ms (sys.getswitchinterval). One that waits for messages
switches far more often."""
MOST_STARVED_SHARE, LEAST_STARVING_SHARE = 0.5, 0.5
"""A thread is starved of the lock if it runs for at most MOST_STARVED_SHARE of the time, while
another thread could run for at least LEAST_STARVING_SHARE of the time."""
LEAST_OTHER_CORES = 0.1
"""Other programs that use fewer cores are not named."""
LEAST_TIMED_NS = 5e7
"""Making batches takes at least this long before it is judged whether it waits for the lock: ten
times the 5 ms for which another thread may keep it."""


def _find_lock_waits(loop: Loop, shares: Mapping[Part, Estimate]) -> list[Cause]:
    """Threads of Python that wait for each other to release the interpreter's lock."""
    usage = loop.usage
    places = [(usage.steps, "the loop's process")]
    if not usage.workers:
        places.append((usage.makes, "the loop's process"))
    elif _making_share(shares) >= LEAST_COST_SHARE:
        places.append((usage.makes, "each worker"))
    hidden: list[Cause] = []
    for facts, where in places:
        wall_ns = sum(each["wall_ns"] for each in facts)
        shared = [each for each in facts if _is_lock_shared(each)]
        if not shared or sum(each["wall_ns"] for each in shared) <= wall_ns / 2:
            continue
        threads = f"{len(shared[-1]['python'])} threads of Python in {where}"
        # The time in which a thread could run includes its waits for a core. If these are the
        # longer part, because other programs have the cores, threads that need no lock look alike:
        # together they get one core or less, and switch as often.
        if sum(each["delay_ns"] for each in shared) > sum(each["cpu_ns"] for each in shared):
            hidden = hidden or _tell_hidden_lock(loop, threads)
            continue
        advice = "use processes in place of threads, such as num_workers of the DataLoader"
        return _tell(CauseName.LOCK, f"{threads} hold it by turns", advice)
    return hidden


def _tell_hidden_lock(loop: Loop, threads: str) -> list[Cause]:
    others = f", as other programs used {significant(loop.other_cores, 2)} of them"
    text = (
        f"{threads} may hold it by turns, but they waited for cores longer than they computed"
        f"{others if loop.other_cores >= LEAST_OTHER_CORES else ''}: load hides which"
    )
    advice = "run attach again on a quiet machine"
    return [Cause(name=CauseName.LOCK, is_found=None, text=text, advice=advice)]


def _is_lock_shared(fact: Fact) -> bool:
    """True if at least two threads of Python seem to give the lock to each other, or one of them to
    wait while another one has it."""
    wall_ns = fact["wall_ns"]
    # The process uses more than one core, so much of its work needs no lock.
    if fact["cpu_ns"] > MOST_HELD_CORES * wall_ns:
        return False
    sharing = [
        runs_ns
        for runs_ns, switches in fact["python"]
        if runs_ns >= LEAST_RUNNABLE_SHARE * wall_ns
        and SHORTEST_NS * switches <= runs_ns <= LONGEST_NS * switches
    ]
    if len(sharing) >= 2 and sum(sharing) >= LEAST_HELD_SHARE * wall_ns:
        return True
    return _is_starved(fact)


def _is_starved(fact: Fact) -> bool:
    """True if making a batch waits while another thread of Python has the lock.

    A thread that gives the lock up for each tensor gets it back after up to 5 ms each time, and so
    runs for a small share of the time. A step is not judged: it may wait for a device.
    """
    part = fact["parts"]
    if fact["role"] != "makes" or part["wall_ns"] < LEAST_TIMED_NS:
        return False
    own_ns = part["cpu_ns"] + part["delay_ns"]
    all_ns = own_ns + part["process_ns"] - part["cpu_ns"]
    longest_ns = max((runs_ns for runs_ns, _ in fact["python"]), default=0)
    return (
        own_ns <= MOST_STARVED_SHARE * part["wall_ns"]
        and all_ns >= LEAST_HELD_SHARE * part["wall_ns"]
        and longest_ns >= LEAST_STARVING_SHARE * fact["wall_ns"]
    )


MOST_USUAL_TENSORS = 50
"""Batches with up to this many tensors are not reported."""


def _find_many_tensors(loop: Loop, shares: Mapping[Part, Estimate]) -> list[Cause]:
    """Many tensors in a batch, each of which is collated and sent by itself."""
    cost = sum(shares[part].value for part in (Part.COLLATE, Part.HAND_OFF) if part in shares)
    if loop.usage.tensors <= MOST_USUAL_TENSORS or cost < LEAST_COST_SHARE:
        return []
    text = f"{loop.usage.tensors} in a batch; collating and sending take {show_percent(cost)}"
    advice = "put values of one type into one tensor of a sample, and split it in the step"
    return _tell(CauseName.TENSORS, text, advice)


REACHED_FILES_SHARE = 0.8
"""Share of the limit of file descriptors from which it counts as reached. This is lower than
REACHED_SHARE because descriptors are counted rarely, and their number grows from batch to batch."""


def _find_many_open_files(loop: Loop) -> list[Cause]:
    """Open files of the loop's process, the number of which is near its limit or has reached it."""
    steps = loop.usage.steps
    most = max((each.get("most_files", 0) for each in steps), default=0)
    used = max((each.get("open_files", 0) for each in steps), default=0)
    failed = _has_error(loop, "Too many open files", "ancdata")
    if not failed and (not steps or used < REACHED_FILES_SHARE * most):
        return []
    text = f"{used} of {most} (ulimit -n) were open" if steps else "there was none left"
    advice = (
        "raise ulimit -n, keep no batches of workers, or call "
        'torch.multiprocessing.set_sharing_strategy("file_system")'
    )
    return _tell(CauseName.DESCRIPTORS, text, advice)


def _find_full_shm(loop: Loop) -> list[Cause]:
    """A full or nearly full /dev/shm, through which workers send batches."""
    steps = [each for each in loop.usage.steps if each.get("shm_all")]
    full = max((1 - each["shm_free"] / each["shm_all"] for each in steps), default=0.0)
    failed = _has_error(loop, "shared memory", "No space left on device")
    if not failed and (full < REACHED_SHARE or not loop.facts["num_workers"]):
        return []
    text = f"/dev/shm was {show_percent(full)} full" if steps else "/dev/shm was full"
    advice = "give the container a larger /dev/shm (docker run --shm-size), or prefetch less"
    return _tell(CauseName.SHM, text, advice)


def _has_error(loop: Loop, *words: str) -> bool:
    return any(word in error for error in loop.usage.errors for word in words)


TAIL_FACTOR = 4
"""A batch is slow if it takes this many times as long as the median."""
LEAST_TAIL_BATCHES = 3
"""Fewer slow batches than this may be slow by chance."""
MOST_DELAY_FACTOR = 1.3
"""Slow batches are not a heavy tail if their excess is less than this many times the time in which
workers waited for a core. The factor allows for inexact readings of that time."""


def _find_heavy_tail(loop: Loop) -> list[Cause]:
    """A heavy tail: ready batches wait behind a few that take far longer to make than others."""
    if loop.usage.workers < 2 or loop.facts.get("in_order") is False:
        return []
    took = np.array([each.stop_ns - each.start_ns for each in loop.made], float)
    usual = float(np.median(took)) if len(took) else 0.0
    slow = took >= TAIL_FACTOR * usual
    excess_ns = float((took[slow] - usual).sum())
    # A batch is also slow if its worker has waited for a core, which is not a heavy tail.
    passes_ns = sum(each.stop_ns - each.start_ns for each in loop.passes)
    delayed_ns = (loop.usage.delay_share or 0.0) * passes_ns * loop.usage.workers
    is_delayed = loop.usage.delay_share is None or excess_ns < MOST_DELAY_FACTOR * delayed_ns
    cost = loop.blocked_ns / 1e9 / loop.seconds
    if slow.sum() < LEAST_TAIL_BATCHES or is_delayed or cost < LEAST_COST_SHARE:
        return []
    text = (
        f"{slow.sum()} of {len(took)} batches take {TAIL_FACTOR} times as long as the median or "
        f"longer; ready batches wait behind one for {show_percent(cost)} of the time"
    )
    return _tell(CauseName.TAIL, text, "set in_order=False if the order of batches does not matter")


MOST_COPIED_SHARE = 0.1
"""Copies of the parent's memory are reported if they take at least this share of the usable one,
however little time they cost: they grow with each epoch."""


def _find_copied_memory(loop: Loop, shares: Mapping[Part, Estimate]) -> list[Cause]:
    """Forked workers copy the parent's memory as they count references to Python objects in it."""
    usage = loop.usage
    if not usage.workers or not usage.makes:
        return []
    faults = usage.share_of_makes("minor_faults") * mmap.PAGESIZE
    unshared = sum(each["unshared_bytes"] for each in usage.makes)
    rate = unshared / sum(each["unshared_after_ns"] for each in usage.makes)
    # Memory that is new to a process causes page faults, too, and the loop's process also ends the
    # sharing of memory to which it writes. So only faults that copies of shared memory explain are
    # counted.
    of_copies = min(1.0, rate / faults) if faults else 0.0
    # On a busy machine, all of the work waits for cores. The time without these waits is the base
    # of the share, as neither the copies nor the rest is longer by itself.
    runs = max(1e-9, 1 - usage.share_of_makes("delay_ns"))
    cost = _making_share(shares) * usage.share_of_makes("system_ns") / runs * of_copies
    copied = max(each["unshared_bytes"] for each in usage.makes) * usage.workers
    if unshared <= 0 or (
        cost < LEAST_COST_SHARE and copied < MOST_COPIED_SHARE * usable_memory_bytes()
    ):
        return []
    text = (
        f"workers have copied {significant(copied / 2**20)} MiB of the parent's memory as they "
        f"counted references, {show_percent(cost)} of the time"
    )
    advice = "keep the dataset's items in an array of NumPy or a tensor, not in a list or dict"
    return _tell(CauseName.PER_SAMPLE, text, advice)


LEAST_STALL_SHARE = 0.15
"""Steps that wait are reported if they cost at least this share of the loop's time. It is larger
than LEAST_COST_SHARE because, on a busy machine, the two torch threads of a convolution waited for
each other for 12 % of a loop's time while one thread had no core."""


def _find_stalled_steps(loop: Loop, shares: Mapping[Part, Estimate]) -> list[Cause]:
    """Steps that neither compute nor wait for data or a core, for example in a sleep."""
    cost = loop.usage.stall_share(1 - wait_share(dict(shares)).value)
    # Ranks wait for each other in their steps, which is not a fault of the step.
    is_rank = loop.ranks or loop.facts["rank"] is not None
    if cost < LEAST_STALL_SHARE or is_rank:
        return []
    text = f"{show_percent(cost)} of the time the step neither computes nor waits for data"
    longest = loop.step_lines.longest
    where = f"in the step, first at {longest.name}" if longest else "in the step"
    advice = f"no loader mends it: look for printing, logging, .item(), a lock or a sleep {where}"
    return _tell(CauseName.STALL, text, advice)
