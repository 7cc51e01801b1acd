"""Gains of page-locked memory, non-blocking copies and prefetching, alone and together.

Pageable memory, DataLoader's pin_memory, and a ring of reused page-locked buffers are compared.
Each is measured with blocking and non-blocking copies, and with 0, 1, 2 and 4 batches prefetched,
by a stream on CUDA and by a thread elsewhere. Without CUDA, the rows with page-locked memory have
no figures but the reason. Gains are relative to the first row.

    python -m experiments.pinning.run [device] [trials]
"""

import sys

from experiments.lib.job_file import Settings, overrides_of
from experiments.lib.side_by_side import Row, measure_rows, table
from experiments.pinning.settings import settings
from fastloop.config.compose import compose_job


def measure(device: str, trials: int = 5, more: Settings | None = None) -> list[Row]:
    """A row for each combination. more: settings that replace those of all combinations."""
    common = {"device": device, **(more or {})}
    jobs = {
        name: compose_job(*overrides_of({**combination, **common}))
        for name, combination in settings(device).items()
    }
    return measure_rows(jobs, "training", trials)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    rows = measure(arguments[0] if arguments else "cpu", int((arguments[1:] or ["5"])[0]))
    print(table(rows, relative_to_first=True))
