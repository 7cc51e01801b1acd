"""Gains of each step of a loading pipeline, on photographs and under a training step.

Every row has one more technique than the row above it. It shows the samples/s of training and the
time that the loop waited for batches, relative to the last row that could be run. Without CUDA, a
row that needs it has no figures but the reason.

    python -m experiments.pipeline_steps.run [device] [trials]
"""

import sys

from experiments.lib.job_file import overrides_of
from experiments.lib.side_by_side import Row, measure_rows, table
from experiments.pipeline_steps.settings import settings
from fastloop.config.compose import compose_job


def measure(device: str, trials: int = 5) -> list[Row]:
    """A row for each step of the ladder."""
    jobs = {
        name: compose_job(*overrides_of({**step, "device": device}))
        for name, step in settings(device).items()
    }
    return measure_rows(jobs, "training", trials)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    print(table(measure(arguments[0] if arguments else "cpu", int((arguments[1:] or ["5"])[0]))))
