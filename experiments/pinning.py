"""What do page-locked memory, non-blocking copies and batches ahead gain, alone and together?

Pageable memory, DataLoader's pin_memory and a ring of reused page-locked buffers; each with
blocking and non-blocking copies, and 0, 1, 2 and 4 batches ahead: by a stream on CUDA, by a thread
elsewhere, where all that is page-locked is a row with its reason. Gains are against the first row.

    python experiments/pinning.py [device] [trials]
"""

import sys
from itertools import product
from typing import Any

from plain_jobs import plain_job
from side_by_side import Row, measured_rows, table

from fastloop.job import Job

DATA: dict[str, Any] = {
    "dataset": "synthetic",
    "dataset__count": 4096,
    "dataset__shape": [3, 64, 64],
    "loader": "batch_sampler",
    "benchmark": "training",
    "model__hidden": 32,
    "batch_size": 256,
    "epochs": 3,
}
"""12 MiB a batch, gathered from memory: what the loader itself takes is little."""
MEMORY = {
    "pageable": {},
    "pin_memory": {"pin_memory": True},
    "ring of 4": {"pinned_buffers": 4},
}
COPIES = {"blocking": False, "non_blocking": True}
AHEAD = (0, 1, 2, 4)


def jobs(device: str, **more: Any) -> dict[str, Job]:
    """A job a combination; `more`: other settings for all of them, as plain_job takes them."""
    by = "stream" if device.startswith("cuda") else "thread"
    made = {}
    for memory, copies, ahead in product(MEMORY, COPIES, AHEAD):
        given = DATA | {"device": device, "placement__non_blocking": COPIES[copies]}
        given |= MEMORY[memory]
        if ahead:
            given |= {"device_prefetch": ahead, "device_prefetch_by": by}
        made[f"{memory}, {copies}, {ahead}"] = plain_job(**given | more)
    return made


def rows(device: str, trials: int = 5, **more: Any) -> list[Row]:
    """A row a combination."""
    return measured_rows(jobs(device, **more), "training", trials)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    found = rows(arguments[0] if arguments else "cpu", int((arguments[1:] or ["5"])[0]))
    print(table(found, to_the_first=True))
