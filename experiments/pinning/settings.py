"""The jobs that are compared: by kind of memory, kind of copy, and number of prefetched batches."""

from itertools import product

from experiments.lib.job_file import Settings

DATA: Settings = {
    "dataset": "synthetic",
    "dataset.count": 4096,
    "dataset.shape": [3, 64, 64],
    "loader": "batch_sampler",
    "benchmark": "training",
    "model.hidden": 32,
    "batch_size": 256,
    "epochs": 3,
}
"""A data set in memory with 12 MiB per batch, so that the loader itself takes little time."""
MEMORY: dict[str, Settings] = {
    "pageable": {},
    "pin_memory": {"pin_memory": True},
    "ring of 4": {"pinned_buffers": 4},
}
COPIES = {"blocking": False, "non_blocking": True}
AHEAD = (0, 1, 2, 4)


def settings(device: str) -> dict[str, Settings]:
    """Name of a combination -> its settings."""
    prefetch_by = "stream" if device.startswith("cuda") else "thread"
    combinations = {}
    for memory, copies, ahead in product(MEMORY, COPIES, AHEAD):
        more = {"device_prefetch": ahead, "device_prefetch_by": prefetch_by} if ahead else {}
        combinations[f"{memory}, {copies}, {ahead}"] = {
            **DATA,
            "placement.non_blocking": COPIES[copies],
            **MEMORY[memory],
            **more,
        }
    return combinations
