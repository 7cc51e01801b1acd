"""Compose the jobs of the GPU run with Hydra, and write them to jobs.json.

python -m experiments.gpu.compose
"""

from experiments.gpu.jobs import FILE, all_overrides
from experiments.lib.job_file import write_jobs

if __name__ == "__main__":
    write_jobs(FILE, all_overrides())
