"""Crops on several ranks: disjoint, complete, and the same whatever the number of ranks."""

from __future__ import annotations

import pytest
import rank_functions
from image_samples import jpeg, photograph, write_files
from options import compose_job

from fastloop.core.launcher import RankTask
from fastloop.core.spans import now_ns
from fastloop.options.launcher.torchrun import TorchrunLauncher
from fastloop.trial.timed_trial import run_trial

TIMEOUT_S = 120
"""Time limit after which a hanging rank fails the test."""
NUM_IMAGES = 12
SETTINGS = ("transform=random_resized_crop", "transform.size=[24,20]", "batch_size=2")
SHORT = ("benchmark=traversal", "min_window_s=0", "epochs=1")
FASTLOOP = ("loader=fastloop", "loader.store=null")
JOBS = {
    "raw": ("loader=raw",),
    "raw, workers": ("loader=raw", "num_workers=1", "device_prefetch=2"),
    "fastloop": FASTLOOP,
    "fastloop, torchvision": (*FASTLOOP, "decoder=torchvision", "loader.num_threads=2"),
}


def call_ranks(ranks: int, function, *args) -> list:
    """Result of the function on each rank, in order of ranks."""
    launcher = TorchrunLauncher(nproc_per_node=ranks, backend="gloo", isolation="forkserver")
    task = RankTask(function=function, args=args)
    return [answer.value for answer in launcher.call_ranks(task, timeout_s=TIMEOUT_S)]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Jobs of crops by name, each with its prepared data."""
    root = tmp_path_factory.mktemp("crops")
    boxes = [(9 * k, 5 * k, 100 + 12 * k, 90 + 10 * k) for k in range(NUM_IMAGES)]
    files = {f"{'ab'[k % 2]}/{k}.jpg": jpeg(photograph().crop(b)) for k, b in enumerate(boxes)}
    write_files(root / "images", files)
    folder = ("dataset=image_folder", f"dataset.root={root / 'images'}")
    prepared = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTLOOP_OUTPUTS", str(root / "outputs"))
        for name, overrides in JOBS.items():
            job = compose_job(*folder, *SETTINGS, *SHORT, *overrides)
            prepared[name] = job, job.data_request.prepare()
    return prepared


@pytest.mark.heavy
def test_ranks_divide_the_crops_of_a_single_process(jobs):
    (alone,) = call_ranks(1, rank_functions.deliver_crops, jobs)
    for ranks in (2, 3):
        shares = call_ranks(ranks, rank_functions.deliver_crops, jobs)
        for name in jobs:
            numbers = [number for share in shares for number in share[name]]
            assert len(numbers) == len(set(numbers)) == 2 * NUM_IMAGES
            together = {number: crop for share in shares for number, crop in share[name].items()}
            assert together == alone[name]
    for crops in alone.values():
        assert all(crops[0, index] != crops[1, index] for index in range(NUM_IMAGES))


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["raw", "fastloop"])
def test_trial_of_two_ranks_compares_their_crops_and_has_their_limit(jobs, name):
    trials = call_ranks(2, run_trial, *jobs[name], 0, now_ns())
    for trial in trials:
        measured = trial.benchmarks["traversal"]
        assert measured.samples == NUM_IMAGES
        assert measured.limit_origin is None or measured.limit_origin.kind == "cropped images"
