"""Compose the jobs of the tests marked gpu into gpu_jobs.json.

python tests/gpu/record_gpu_jobs.py

Runs these tests until they need a device, and collects the jobs that they compose.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import options

from experiments.lib.job_file import write_jobs

if __name__ == "__main__":
    options.gpu_overrides = set()
    folder = str(options.REPOSITORY / "tests")
    status = pytest.main(["-q", "-m", "gpu", "-o", "addopts=", "-p", "no:cacheprovider", folder])
    if status == pytest.ExitCode.OK:
        write_jobs(options.GPU_JOBS, options.gpu_overrides)
    sys.exit(status)
