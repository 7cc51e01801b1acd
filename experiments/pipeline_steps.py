"""What does each step of seed 002's ladder gain, on photographs and under a training step?

Every row is the row above and one technique more; each is told in samples/s of training and in what
the loop waited for batches, against the last row that could be run. What needs CUDA is a row with
its reason elsewhere.

    python experiments/pipeline_steps.py [device] [trials]
"""

import sys
from typing import Any

from plain_jobs import plain_job
from side_by_side import Row, measured_rows, table

from fastloop.job import Job

PHOTOS: dict[str, Any] = {
    "dataset": "photos",
    "dataset__count": 400,
    "dataset__crop": [160, 160],
    "benchmark": "training",
    "model__hidden": 32,
    "batch_size": 32,
    "epochs": 3,
}
"""The step takes about as long as loading does, so that hiding one behind the other can be seen."""
AHEAD = 2


def ladder(device: str) -> dict[str, dict[str, Any]]:
    """The steps, from the first on, each with all that it has."""
    fast = {"loader": "raw", "decoder": "turbojpeg", "collate": "fast"}
    pinned = {"pin_memory": True, "placement__non_blocking": True}
    then = pinned if device.startswith("cuda") else {}
    workers = fast | then | {"num_workers": 2}
    ahead = {"device_prefetch": AHEAD}
    by_process = {"device_prefetch_by": "process"}
    if then:
        by_process |= {"pinned_buffers": 4, "placement__non_blocking": True}
    memmap = {"loader": "np_memmap"} | then | ahead
    return {
        "naive": {"loader": "raw", "decoder": "pil"},
        "faster decode": {"loader": "raw", "decoder": "turbojpeg"},
        "fast collate": fast,
        "pinned": fast | pinned,
        "workers": workers,
        "prefetch in a process": fast | ahead | by_process,
        "prefetch in a thread": workers | ahead,
        "prefetch by a stream": workers | ahead | {"device_prefetch_by": "stream"},
        "memmap, not decoded": memmap,
        "device resident": {"loader": "device_resident"},
    }


def jobs(device: str, **more: Any) -> dict[str, Job]:
    """A job a step; `more`: other settings for all of them, as plain_job takes them."""
    given = PHOTOS | {"device": device}
    return {name: plain_job(**given | step | more) for name, step in ladder(device).items()}


def rows(device: str, trials: int = 5, **more: Any) -> list[Row]:
    """A row a step."""
    return measured_rows(jobs(device, **more), "training", trials)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    print(table(rows(arguments[0] if arguments else "cpu", int((arguments[1:] or ["5"])[0]))))
