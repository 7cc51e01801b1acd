"""Does a sample take longer of 10^7 rows than of 10^5, and does it in np.take alone?

    python experiments/peers_growth.py [rounds]

FastLoader, and a thread a core that only calls np.take, with the order at hand and memory of its
own: what that takes longer is the machine's. Each number of rows is in a process of its own that
lives through all rounds, with both; see peers.md.
"""

import sys
from dataclasses import dataclass, replace
from functools import cache, partial
from threading import Thread

import numpy as np
import peers
from peers_parts import Workload

from fastloop.fastloader.pace import BLOCK_BYTES
from fastloop.limits import usable_cores
from fastloop.spans import now_ns, seconds_between

GROWTH = {100_000: 20, 1_000_000: 4, 10_000_000: 1}
"""Rows, and epochs of a round."""


@dataclass(frozen=True)
class Taken:
    """The columns of FastLoader's own source."""

    columns: tuple[np.ndarray, ...]

    def epoch_s(self) -> float:
        """Seconds of an epoch, its order drawn before."""
        shares = np.array_split(np.random.permutation(len(self.columns[0])), usable_cores())
        threads = [Thread(target=self._take, args=(share,)) for share in shares]
        start = now_ns()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return seconds_between(start, now_ns())

    def _take(self, share: np.ndarray) -> None:
        rows = BLOCK_BYTES // self.columns[0][0].nbytes
        room = [np.zeros((rows, *column.shape[1:]), column.dtype) for column in self.columns]
        for at in range(0, len(share), rows):
            indices = share[at : at + rows]
            for column, out in zip(self.columns, room, strict=True):
                column.take(indices, axis=0, out=out[: len(indices)], mode="clip")


@cache
def source(workload: Workload) -> tuple:
    """One of the process, from which both gather."""
    return workload.source()


@cache
def loader(workload: Workload):
    from fastloop import FastLoader

    return FastLoader(source(workload), workload.batch_size, shuffle=True)


def fastloader_s(workload: Workload, epochs: int) -> float:
    batches, start = loader(workload), now_ns()
    for _ in range(epochs):
        for _ in batches:
            pass
    return seconds_between(start, now_ns())


def take_s(workload: Workload, epochs: int) -> float:
    taken = Taken(tuple(one.numpy() for one in source(workload)))
    return sum(taken.epoch_s() for _ in range(epochs))


LOOPS = {"FastLoader": fastloader_s, "np.take alone": take_s}


def growth(number: int, workload: Workload, counts: dict[int, int], whose: str) -> list[peers.Line]:
    """counts: epochs of a round, of so many rows."""
    with peers.processes(list(counts)) as call:
        asked = {
            (loop, count): partial(call[count], took_s, replace(workload, count=count), epochs)
            for loop, took_s in LOOPS.items()
            for count, epochs in counts.items()
        }
        seconds = peers.in_rounds(number, asked)
    took = {
        (loop, count): [1e9 * one / (count * counts[count]) for one in values]
        for (loop, count), values in seconds.items()
    }
    return [line for loop in LOOPS for line in _told(loop, whose, counts, took)]


def _told(
    loop: str, whose: str, counts: dict[int, int], took: dict[tuple[str, int], list[float]]
) -> list[peers.Line]:
    few, *_, many = counts
    more = peers.against(took[loop, many], took[loop, few])
    what = f"{loop}, {whose}'s memory"
    bar = ("within 15 %", more.estimate <= 1.15) if loop == "FastLoader" else ()
    return [
        *(
            peers.Line(f"{what}: {count:,} rows", peers.figure(took[loop, count], "ns a sample"))
            for count in counts
        ),
        peers.Line(f"{what}: more time a sample", peers.percent(more), *bar),
    ]


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else peers.ROUNDS
    whose = {"torch": peers.B, "numpy": replace(peers.B, by_numpy=True)}
    lines = [line for one, rows in whose.items() for line in growth(rounds, rows, GROWTH, one)]
    print(peers.table(lines))
