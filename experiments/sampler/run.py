"""The cost of sampling the resources of a process tree, for the process that samples.

A process with 0, 4 and 16 children, each with torch imported and 64 MiB of its own, sleeps. The
launcher observes it as it observes an instrumented pass. Reported are the number of samples, the
CPU time of the most expensive sample (most samples see fewer children), the CPU time of the
observing thread per second, and the CPU time that a fixed rate of 5 samples per second would take.

    python -m experiments.sampler.run [seconds]
"""

import multiprocessing
import sys
import time

import torch

from fastloop.core.launcher import RankTask
from fastloop.options.launcher.single import SingleLauncher
from fastloop.processes import resources
from fastloop.processes.resources import sample


def sleep_with_children(count: int, seconds: float) -> None:
    """Start this many children, and sleep."""
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=fill_and_sleep, args=(seconds,)) for _ in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    if not children:
        fill_and_sleep(seconds)


def fill_and_sleep(seconds: float) -> None:
    """Fill 64 MiB of memory, and sleep."""
    memory = torch.ones(64 << 18)
    time.sleep(seconds)
    del memory


def main(seconds: float) -> None:
    sample_s: list[float] = []

    def sample_and_time(pid: int):
        before = time.thread_time()
        result = sample(pid)
        sample_s.append(time.thread_time() - before)
        return result

    resources.sample = sample_and_time
    launcher = SingleLauncher(isolation="forkserver")
    # The first call starts the fork server.
    launcher.call(time.sleep, 0)
    print("children  samples  ms a sample  % of a core  % at 5 a second  peak PSS, MiB")
    for count in (0, 4, 16):
        sample_s.clear()
        start, cpu = time.perf_counter(), time.thread_time()
        task = RankTask(function=sleep_with_children, args=(count, seconds))
        used = launcher.call_ranks(task, observed=True)[0].resources
        share = (time.thread_time() - cpu) / (time.perf_counter() - start)
        longest_s, pause_s = max(sample_s), resources.SAMPLE_INTERVAL_S
        print(
            f"{count:>8} {used.samples:>8} {1e3 * longest_s:>12.1f} {100 * share:>12.2f}"
            f" {100 * longest_s / (longest_s + pause_s):>16.2f} {used.peak_pss_mib:>14.0f}"
        )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20)
