"""Describe a loop that makes no progress: which side holds it up, who waits for whom, and why."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from fastloop.core.number_text import significant
from fastloop.core.text import wrap
from fastloop.explain.attach.live_loops import LiveLoop
from fastloop.explain.attach.stack_files import read_stack
from fastloop.processes.positions import THREAD, locate_by_stacks, workers_of

BUSY_SHARE = 0.1
"""A process that keeps this share of a core busy computes, even if it shares its core with others.
One that waits uses far less."""
SHARED_MEMORY, LEAST_FREE = Path("/dev/shm"), 0.01
"""The file system through which workers send batches. It counts as full if less than the share
LEAST_FREE of it is free."""
LOCK, NETWORK = "a lock", "the network"
# Names of kernel functions in which a thread sleeps, in /proc/<pid>/wchan.
KERNEL_WAITS = {
    "futex": LOCK,
    "sk_wait": NETWORK,
    "wait_woken": NETWORK,
    "unix_stream": NETWORK,
    "tcp_": NETWORK,
    "inet_": NETWORK,
    "nanosleep": "a pause (sleep)",
    "folio_wait": "storage",
    "io_schedule": "storage",
    "rpc_": "storage",
}
# Matches the stack of a thread that only serves a queue, or multiprocessing's server of file
# descriptors, by its innermost frame.
IDLE_STACK = re.compile(r'^.*\n  File ".*/(threading|queue|selectors|socket|connection)\.py", ')
OWN_FRAME = re.compile(r'"[^"]*fastloop/(explain/attach|observe)/[^"/]*", line')
OF_FORK = (
    "A lock that another thread held when its worker was forked is never released there: "
    "multiprocessing_context='forkserver' or 'spawn' starts workers without such locks"
)


def read_cpu_s(loop: LiveLoop) -> dict[int, float]:
    """CPU seconds so far of the loop's process, and of each process that it has started.

    The keys are process ids. Processes that can't be read, such as ended ones, are left out.
    """
    started = [process.pid for _, process in workers_of(loop.process_id)]
    spent = {}
    for pid in (loop.process_id, *started):
        with suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            spent[pid] = times.user + times.system
    return spent


def describe_hang(
    loop: LiveLoop,
    still_s: float,
    cores: dict[int, float],
    folder: Path,
    pause: Callable[[float], object],
) -> str:
    """The lines about a loop in which nothing has moved for that long.

    still_s: that time in seconds. cores: cores that each process of the loop keeps busy, by process
    id. folder: the folder to which the processes record. pause: waits for this many seconds.
    """
    where, stacks = locate_by_stacks(
        loop.process_id, lambda pid: _shorten_stacks(read_stack(folder, pid, pause))
    )
    since = f"fastloop: the loop at {loop.place} has stood still for {significant(still_s)} s"
    own = cores.get(loop.process_id, 0.0)
    if not loop.is_waiting:
        is_busy = own >= BUSY_SHARE
        does = "computes, and no loader would help" if is_busy else "waits, but not for a batch"
        first = f"{since}. It has its batch, and {does}: {where}"
        return _join([first, _describe_cores(own)], "" if is_busy else stacks)
    busy = sum(cores.values())
    if any(each >= BUSY_SHARE for each in cores.values()):
        first = f"{since}. It waits for a batch that takes long to make: {where}"
        return _join([first, _describe_cores(busy)], stacks)
    first = f"{since}. It waits for a batch, and nothing works on one: {where}"
    return _join([first, _describe_cores(busy), *_find_reasons(loop, stacks)], stacks)


def _shorten_stacks(text: str) -> str:
    """The stacks without threads that only wait for another one, frames of the probe, and frames
    below a worker's loop."""
    *threads, main = THREAD.split(text)
    kept = [stack for stack in threads if stack and not IDLE_STACK.search(stack)]
    lines = [line for stack in (*kept, main) for line in stack.splitlines() if line.strip()]
    shown = [line for line in lines if not OWN_FRAME.search(line)]
    end = next((n for n, line in enumerate(shown, 1) if line.endswith(" in _worker_loop")), None)
    return "".join(f"{line}\n" for line in shown[:end])


def _describe_cores(cores: float) -> str:
    return f"Its processes keep {significant(cores, 2)} cores busy"


def _find_reasons(loop: LiveLoop, stacks: str) -> list[str]:
    """Sentences that say why the processes of a loop without progress wait."""
    # These are not among the workers below: a process that has ended has no command any more.
    # A worker of a stream that has no more samples has ended as it should.
    ended = [] if loop.is_stream else [pid for pid in loop.pids if _has_ended(pid)]
    reasons = [f"a worker (pid {pid}) has ended" for pid in ended]
    workers = workers_of(loop.process_id)
    idle = {name for name, _ in workers if f"{name}, waits for work:" in stacks}
    makers = [(name, process.pid) for name, process in workers if name not in idle]
    if not workers:
        makers = [("the loop's process", loop.process_id)]
    for name, pid in makers:
        if waits_for := _read_wait(pid):
            reasons.append(f"{name} waits for {waits_for}")
        if waits_for == LOCK and workers and loop.start_method == "fork":
            reasons.append(OF_FORK)
    with suppress(OSError):
        usage = shutil.disk_usage(SHARED_MEMORY)
        if usage.free < LEAST_FREE * usage.total:
            reasons.append(f"{SHARED_MEMORY}, through which workers send batches, is full")
    return [*dict.fromkeys(reasons)]


def _has_ended(pid: int) -> bool:
    """True if there is no such process, or only its status, for which nobody has asked."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _read_wait(pid: int) -> str:
    """The object that the process's main thread sleeps for; empty if it is not known."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        peers = [
            f"{each.raddr.ip}:{each.raddr.port}" for each in process.net_connections() if each.raddr
        ]
        with suppress(OSError):
            function = Path(f"/proc/{pid}/wchan").read_text()
            found = next((what for name, what in KERNEL_WAITS.items() if name in function), "")
            # Python polls a socket that has a time limit, so the kernel shows a poll.
            if found == NETWORK or ("poll" in function and peers):
                return f"an answer of {', '.join(peers)}" if peers else found
            return found
    return ""


def _join(sentences: Sequence[str], stacks: str) -> str:
    lines = wrap([". ".join(sentences) + "."])
    return "\n".join([*lines, *(f"    {line}" for line in stacks.splitlines() if line)])
