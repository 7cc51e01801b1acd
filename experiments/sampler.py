"""What does looking at a process tree cost the process that looks?

A process with 0, 4 and 16 children, each with torch imported and 64 MiB of its own, sleeps while
the launcher observes it as it observes an instrumented pass. Reported: the looks taken, the CPU
time of the dearest (most see fewer children), the CPU time of the observing thread a second, and
what a fixed rate of 5 looks a second would take.

    python experiments/sampler.py [seconds]
"""

import multiprocessing
import sys
import time

import torch

from fastloop import watch
from fastloop.launchers.single import Single
from fastloop.resources import sample


def sleep_with_children(count: int, seconds: float) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=fill_and_sleep, args=(seconds,)) for _ in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    if not children:
        fill_and_sleep(seconds)


def fill_and_sleep(seconds: float) -> None:
    held = torch.ones(64 << 18)
    time.sleep(seconds)
    del held


def main(seconds: float) -> None:
    looks: list[float] = []

    def timed_sample(pid: int):
        before = time.thread_time()
        seen = sample(pid)
        looks.append(time.thread_time() - before)
        return seen

    watch.sample = timed_sample
    launcher = Single(isolation="forkserver")
    launcher.call(time.sleep, 0)  # the server is up
    print("children  looks  ms a look  % of a core  % at 5 a second  peak PSS, MiB")
    for count in (0, 4, 16):
        looks.clear()
        start, cpu = time.perf_counter(), time.thread_time()
        [(_, seen)] = launcher.call_ranks(sleep_with_children, count, seconds, observed=True)
        share = (time.thread_time() - cpu) / (time.perf_counter() - start)
        a_look = max(looks)
        print(
            f"{count:>8} {seen.samples:>6} {1e3 * a_look:>10.1f} {100 * share:>12.2f}"
            f" {100 * a_look / (a_look + watch.SAMPLE_S):>16.2f} {seen.peak_pss_mib:>14.0f}"
        )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20)
