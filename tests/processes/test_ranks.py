"""Several ranks: what each one loads, how results are merged, and that no rank hangs."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import rank_functions
import torch
from image_samples import crop, jpeg, write_files
from options import MYDATASET, compose_job, disk_only, options, skip_without_library
from rank_functions import BATCH, SEED
from torch.utils.data import DistributedSampler

from fastloop.config.build_jobs import use_loader_data
from fastloop.core.cgroup import usable_cores
from fastloop.core.index_batches import epoch_indices, index_batches
from fastloop.core.launcher import RankAnswer, RankTask
from fastloop.core.optional_libraries import check_libraries
from fastloop.core.order_parts import order_of_all_ranks
from fastloop.core.prepared_data import PreparedData
from fastloop.core.result import Attribution, Measurement, RankPass, Resources, Result, Trial
from fastloop.core.seeds import epoch_seed
from fastloop.core.spans import now_ns
from fastloop.core.tracked_metrics import metrics
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import JobFailed, Unsupported
from fastloop.data.prepare_dataset import prepare
from fastloop.data.reference import reference_hashes, sample_lengths
from fastloop.data.window_counts import num_delivered
from fastloop.options.launcher.single import SingleLauncher
from fastloop.options.launcher.torchrun import TorchrunLauncher
from fastloop.options.order.random import RandomOrder
from fastloop.options.order.sequential import SequentialOrder
from fastloop.sweep.caveats import find_caveats
from fastloop.sweep.merge_ranks import merge_passes, merge_trials
from fastloop.trial.job import Job
from fastloop.trial.profiling import profile_paths
from fastloop.trial.shadow import run_shadow
from fastloop.trial.support import check_plan
from fastloop.trial.timed_trial import run_trial

TIMEOUT_S = 120
"""Time limit after which a hanging rank fails the test."""


def torchrun(ranks: int) -> TorchrunLauncher:
    return TorchrunLauncher(nproc_per_node=ranks, backend="gloo", isolation="forkserver")


def call_ranks(ranks: int, function, *args) -> list:
    """Result of the function on each rank, in order of ranks."""
    task = RankTask(function=function, args=args)
    return [answer.value for answer in torchrun(ranks).call_ranks(task, timeout_s=TIMEOUT_S)]


def test_ranks_of_one_node_listen_on_the_loopback_interface_only():
    launcher = SingleLauncher(isolation="forkserver")
    assert launcher.call(rank_functions.listening_addresses) == {"127.0.0.1"}


class CreatesFolder:
    """An object whose pickle creates a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_a_pickle_that_a_rank_sends_is_not_unpickled(tmp_path):
    malicious = pickle.dumps(CreatesFolder(tmp_path / "read"))
    received, sent = call_ranks(2, rank_functions.send_pickle, malicious)
    assert sent == "sent"
    assert not (tmp_path / "read").exists()
    assert received == "rank 1 sent no value of the kind <class 'int'>"


# -- every loader and every order

WHOLE, DROPPED, FEW_ROWS = "whole", "drop_last", "fewer samples than ranks"
CASES = [
    f"{loader}, {variant}" for loader in options("loader") for variant in (WHOLE, DROPPED, FEW_ROWS)
]
CASES += [f"order={order}" for order in options("order")]
RAGGED = ("dataset=texts", "dataset.count=203", "collate=pad")
OF_THREE = [f"raw, {WHOLE}", *(case for case in CASES if case.startswith(("fastloop", "order=")))]
"""Cases that are also tested with three ranks; a loader reads what the plan gives its rank."""
SHARED = [(name, 2) for name in CASES]
SHARED += [(name, 3) for name in OF_THREE]


def prepare_job(job: Job) -> tuple[Job, PreparedData] | Unsupported:
    """The job and its prepared data, or the reason why it is unsupported."""
    try:
        check_libraries(job.loader)
        check_plan(job, world_size=2)
        prepared = prepare(job.dataset, job.loader.store, job.collate.tolerant)
        if traits_of(LoaderTraits, job.loader).shuffles_itself:
            with job.loader.open(prepared, rank_functions.plan_of(job, prepared, 2, 0)):
                pass  # it may have fewer shards than ranks
        return job, prepared
    except Unsupported as error:
        return error


def prepare_all() -> dict[str, tuple[Job, PreparedData] | Unsupported]:
    size, jobs = f"batch_size={BATCH}", {}
    for loader in options("loader"):
        job = compose_job(f"loader={loader}", size, *MYDATASET)
        jobs[f"{loader}, {WHOLE}"] = prepare_job(job)
        jobs[f"{loader}, {DROPPED}"] = prepare_job(
            replace(job, loading=replace(job.loading, drop_last=True))
        )
        small_dataset: Any = replace(cast(Any, job.dataset), count=1)
        jobs[f"{loader}, {FEW_ROWS}"] = prepare_job(replace(job, dataset=small_dataset))
    for order in options("order"):
        data = RAGGED if order == "buckets" else MYDATASET
        jobs[f"order={order}"] = prepare_job(compose_job(f"order={order}", size, *data))
    return jobs


@pytest.fixture(scope="module")
def shares(tmp_path_factory):
    """Jobs by name, and their delivered epochs by number of ranks and rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTLOOP_OUTPUTS", str(tmp_path_factory.mktemp("shares")))
        jobs = prepare_all()
    supported = {name: job for name, job in jobs.items() if not isinstance(job, Unsupported)}
    of_three = {name: job for name, job in supported.items() if name in OF_THREE}
    return jobs, {
        2: call_ranks(2, rank_functions.deliver_epochs, supported),
        3: call_ranks(3, rank_functions.deliver_epochs, of_three),
    }


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize(("name", "ranks"), SHARED)
def test_ranks_share_an_epoch_like_distributed_sampler_of_torch(shares, name, ranks):
    jobs, delivered = shares
    if isinstance(jobs[name], Unsupported):
        skip_without_library(jobs[name])
        assert str(jobs[name]).startswith("launcher=torchrun")
        return
    job, prepared = jobs[name]
    if traits_of(LoaderTraits, job.loader).shuffles_itself:
        check_own_shares(prepared, [epochs[name] for epochs in delivered[ranks]])
        return
    reference = [row.tobytes() for row in reference_hashes(prepared)]
    order = order_of_all_ranks(rank_functions.plan_of(job, prepared, ranks, 0))
    for rank, (first, second, again) in enumerate(epochs[name] for epochs in delivered[ranks]):
        assert first == again
        assert first != second or isinstance(order, SequentialOrder) or prepared.num_samples < ranks
        for epoch, batches in enumerate((first, second)):
            whole = epoch_indices(order, prepared.num_samples, SEED, epoch)
            share = [reference[index] for index in torch_share(order, whole, ranks, rank, epoch)]
            expected = [share[start : start + BATCH] for start in range(0, len(share), BATCH)]
            is_dropped = job.loading.drop_last and len(expected[-1]) < BATCH
            assert batches == (expected[:-1] if is_dropped else expected)
    if order.complete and not job.loading.drop_last:
        rows = [row for epochs in delivered[ranks] for batch in epochs[name][0] for row in batch]
        assert set(rows) == set(reference)


def check_own_shares(prepared: PreparedData, ranks: list[list[list[list[bytes]]]]) -> None:
    """Fail unless ranks of a loader that shuffles itself divide the samples, anew in each epoch."""
    reference = sorted(row.tobytes() for row in reference_hashes(prepared))
    for epoch in (0, 1):
        rows = [row for epochs in ranks for batch in epochs[epoch] for row in batch]
        assert sorted(rows) == reference
    assert all(first == again for first, _, again in ranks)
    assert all(first != second for first, second, _ in ranks) or prepared.num_samples < len(ranks)


def torch_share(order, whole: torch.Tensor, ranks: int, rank: int, epoch: int) -> list[int]:
    """Indices of an epoch that torch's DistributedSampler gives to the rank."""
    data: Any = whole.tolist()
    if isinstance(order, RandomOrder):
        return list(DistributedSampler(data, ranks, rank, seed=epoch_seed(SEED, epoch)))
    return [data[position] for position in DistributedSampler(data, ranks, rank, shuffle=False)]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("drop_last", ["false", "true"])
def test_filler_samples_of_ranks_are_not_counted(prepared_job, ranks, drop_last):
    for size in (1, 3, 34):
        settings = (f"drop_last={drop_last}", f"batch_size={size}")
        job, prepared = prepared_job("loader=np_memmap", *MYDATASET, *settings)
        plans = [rank_functions.plan_of(job, prepared, ranks, number) for number in range(ranks)]
        distinct = 0
        for epoch in range(3):
            batches = [batch for plan in plans for batch in index_batches(plan, 203, epoch)]
            distinct += len(set(torch.cat(batches).tolist()))
        assert {num_delivered(prepared, plan, 3) for plan in plans} == {distinct}
        assert distinct == 3 * 203 or drop_last == "true"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_bucket_order_batches_similar_lengths_on_every_rank(prepared_job, ranks):
    waste = {}
    for order in ("order=random", "order=buckets"):
        texts = ("dataset=texts", "dataset.count=2000", "collate=pad", "batch_size=16")
        job, prepared = prepared_job(*texts, order)
        lengths = torch.from_numpy(sample_lengths(prepared))
        plans = [rank_functions.plan_of(job, prepared, ranks, number) for number in range(ranks)]
        batches = [batch for plan in plans for batch in index_batches(plan, 2000, 0)]
        padded = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
        waste[order] = padded / int(lengths.sum()) - 1
    assert waste["order=buckets"] < waste["order=random"] / 5


# -- the same data, of all ranks together


MESSAGES = {
    "all ranks deliver everything": "406 samples delivered, not 203",
    "rank 1 delivers nothing": "102 samples delivered, not 203",
    "missing sample": "the samples or their labels are not the dataset's",
    "missing batch": "188 samples delivered, not 203",
    "repeated batch": "220 samples delivered, not 203",
    "wrong batch": "the samples or their labels are not the dataset's",
    "swapped labels": "the samples or their labels are not the dataset's",
    "unknown filler sample": "204 samples delivered, not 203",
    "different dtype": "ranks differ: dtypes and shapes are float64[5, 3]",
    "no tensors": "a batch is tensors of one length",
    "endless epoch": "it yields more than 204 samples an epoch",
}


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTLOOP_OUTPUTS", str(tmp_path_factory.mktemp("faults")))
        prepared = prepare_job(compose_job("loader=np_memmap", f"batch_size={BATCH}", *MYDATASET))
        assert not isinstance(prepared, Unsupported)
    return call_ranks(2, rank_functions.check_faults, *prepared)


@pytest.mark.parametrize("fault", MESSAGES)
def test_gate_reports_a_fault_of_one_rank_to_all_ranks(messages, fault):
    assert MESSAGES[fault] in messages[0].get(fault, "")
    assert messages[1][fault] == messages[0][fault]


# -- no rank hangs

SMALL = ("dataset=mydataset", "dataset.count=33", "dataset.shape=[5,3]", "batch_size=8", "epochs=1")
THREAD, PROCESS = [
    ("device_prefetch=2", f"device_prefetch_by={by}") for by in ("thread", "process")
]
WORKERS = ("num_workers=2", "persistent_workers=true")
DIVISIONS = {
    "rank and world_size": (("loader._target_=rank_loaders.interleave", *THREAD), [3, 2], 33),
    "alternating": (("loader._target_=rank_loaders.alternating", "epochs=3"), [4, 1], 33),
    "loader option": (("loader._target_=rank_loaders.LoaderOption",), [4, 1], 33),
    "DistributedSampler": (
        ("loader._target_=rank_loaders.distributed_sampler", *PROCESS),
        [3, 3],
        33,
    ),
    "sampler": (
        ("loader._target_=rank_loaders.with_sampler", *WORKERS, "drop_last=true"),
        [2, 2],
        32,
    ),
    "workers": (("loader=raw", "num_workers=2", *THREAD), [3, 3], 33),
}
"""Settings, batches of each rank in epoch 0, and distinct samples an epoch."""


def assert_finishes(job, prepared, folder, batches: list[int], samples: int) -> None:
    """Assert that every pass of two ranks ends: batches per rank, samples per epoch."""
    passes = call_ranks(2, rank_functions.run_every_pass, job, prepared, folder)
    assert [len(attribution.wait_s) for _, attribution in passes] == batches
    for trial, attribution in passes:
        measurement = trial.benchmarks["training"]
        assert measurement.samples == job.epochs * samples
        assert len(measurement.losses) == job.epochs
        assert attribution.step_s
        assert attribution.local_step_s
    assert all(path.exists() for path in profile_paths(folder, "training"))


@pytest.mark.heavy
@pytest.mark.parametrize("name", DIVISIONS)
def test_ranks_finish_training_however_samples_are_divided(prepared_job, tmp_path, name):
    settings, batches, samples = DIVISIONS[name]
    job, prepared = prepared_job("benchmark=training", *SMALL, *settings)
    assert_finishes(job, prepared, tmp_path, batches, samples)


@pytest.mark.heavy
def test_ranks_finish_training_with_many_broken_files_on_one_rank(outputs, tmp_path):
    names = [f"{index // 12}/{index:02}.jpg" for index in range(24)]
    whole = {name: jpeg(crop(8, 8, place)) for place, name in enumerate(names)}
    root = write_files(tmp_path / "images", whole | dict.fromkeys(names[1:16:2], b""))
    folder = ("dataset=image_folder", f"dataset.root={root}", "collate=skip_broken")
    training = ("order=sequential", "batch_size=4", "benchmark=training", "epochs=2")
    job = compose_job(*folder, *training)
    prepared = prepare(job.dataset, None, job.collate.tolerant)
    assert len(prepared.broken) == 8
    assert_finishes(job, prepared, tmp_path, [3, 1], 16)


def test_preparing_a_loader_with_data_has_a_process_group(outputs):
    job = compose_job("loader._target_=rank_loaders.with_data", "benchmark=traversal", "epochs=1")
    job = use_loader_data(job)
    prepared = torchrun(2).call(prepare, job.dataset, None, False, timeout_s=TIMEOUT_S)
    assert prepared.num_samples == 33
    for ranks in (1, 2):
        trials = call_ranks(ranks, run_trial, job, prepared, 0, now_ns())
        assert [trial.benchmarks["traversal"].samples for trial in trials] == [33] * ranks


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ("load_everything", "invalid: 66 samples delivered, not 33"),
        (
            "first_rank_only",
            "unsupported: rank 1 gets no samples: 33 samples are divided among 2 ranks",
        ),
    ],
)
def test_trial_fails_unless_ranks_divide_the_samples(prepared_job, loader, reason):
    job, prepared = prepared_job(f"loader._target_=rank_loaders.{loader}", *SMALL)
    with pytest.raises(JobFailed) as caught:
        call_ranks(2, run_trial, job, prepared, 0, now_ns())
    assert str(caught.value) == reason


def test_random_samples_of_one_rank_end_the_comparison_on_all_ranks(prepared_job):
    overrides = ("dataset._target_=my_code.HalfRandomSamples", "same_data=false", "loader=raw")
    settings = ("order=sequential", "benchmark=traversal", "epochs=1", "batch_size=4")
    job, prepared = prepared_job(*overrides, *settings)
    trial = call_ranks(2, run_trial, job, prepared, 0, now_ns())[0]
    shadows = call_ranks(2, run_shadow, job, prepared, 0, trial.calls)
    assert [shadow.shuffling for shadow in shadows] == [None, None]


@disk_only
@pytest.mark.heavy
def test_every_rank_starts_with_a_cold_cache(prepared_job):
    overrides = ("dataset=mydataset", "dataset.count=10000", "benchmark=traversal", "epochs=1")
    job, prepared = prepared_job(*overrides, "loader=np_memmap", "cache=cold")
    for fractions in call_ranks(2, rank_functions.measure_cold_cache, job, prepared):
        assert [before > 0.99 for before, _ in fractions] == [True, True]
        assert [after < 0.05 for _, after in fractions] == [True, True]


# -- merged results


def losses(trials: list[Trial]) -> list[float]:
    return [loss for trial in trials for loss in trial.benchmarks["training"].losses]


@pytest.mark.heavy
def test_two_ranks_train_like_one_process_with_double_batch_size(prepared_job):
    data = ("dataset=mydataset", "dataset.count=192", "dataset.shape=[5,3]", "batch_size=16")
    training = ("benchmark=training", "epochs=3", "learning_rate=0.5", "order=sequential")
    job, prepared = prepared_job(*data, *training, "torch_threads=1")
    jobs = [job, replace(job, order=RandomOrder())]
    first, second = map(losses, call_ranks(2, rank_functions.run_trials, jobs, prepared))
    single = losses(
        *call_ranks(
            1,
            rank_functions.run_trials,
            [replace(job, loading=replace(job.loading, batch_size=32)) for job in jobs],
            prepared,
        )
    )
    assert first != pytest.approx(second, rel=1e-3)  # each rank reports its own losses
    together = [sum(pair) / 2 for pair in zip(first, second, strict=True)]
    assert together == pytest.approx(single, rel=1e-5)
    assert single[:3] != pytest.approx(single[3:], rel=1e-4)
    assert single[0] - single[2] > 1e-3  # the loss falls


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [1, 2])
def test_torch_threads_of_a_rank_are_its_share_of_the_cores(prepared_job, ranks):
    job, prepared = prepared_job(*SMALL, "benchmark=training", "model.hidden=8")
    trials_of_ranks = call_ranks(
        ranks, rank_functions.run_trials, [job, replace(job, torch_threads=3)], prepared
    )
    share = max(1, usable_cores() // ranks)
    for trials, threads in zip(zip(*trials_of_ranks, strict=True), (share, 3), strict=True):
        assert [trial.torch_threads for trial in trials] == [threads] * ranks
        merged = merge_trials(trials)
        assert merged.rank_torch_threads == ([threads] * ranks if ranks > 1 else [])


def trial_of(seconds: float, losses: list[float], limit: float, threads: int = 1) -> Trial:
    measurement = Measurement(
        start_ns=5,
        stop_ns=5 + int(seconds * 1e9),
        epochs=2,
        samples=960,
        limit_samples_per_s=limit,
        losses=losses,
    )
    return Trial(
        number=4,
        seed=40_000,
        benchmarks={"training": measurement},
        torch_threads=threads,
        multiprocessing_context=None,
        load_average=None,
    )


def test_merged_trial_has_the_slowest_ranks_seconds_and_mean_losses():
    ranks = [
        trial_of(1.0, [4.0, 1.0], 100.0),
        trial_of(3.0, [2.0, 2.0], 200.0, threads=2),
        trial_of(2.0, [0.0, 6.0], 300.0),
    ]
    merged = merge_trials(ranks)
    measurement = merged.benchmarks["training"]
    assert (measurement.seconds, measurement.rank_seconds) == (3.0, [1.0, 3.0, 2.0])
    assert (measurement.samples, measurement.samples_per_s) == (960, 320.0)
    assert measurement.losses == [2.0, 3.0]
    assert measurement.limit_samples_per_s == 600.0
    assert (merged.number, merged.rank_torch_threads) == (4, [1, 2, 1])
    assert merge_trials(ranks[:1]) is ranks[0]


def pass_of(
    seconds: float, wait_s: list[float], place_s: list[float], step_s: float
) -> Attribution:
    return Attribution(
        seconds=seconds,
        first_batch_s=seconds / 10,
        wait_s=wait_s,
        place_s=place_s,
        cpu_s=2.0,
        step_s=step_s,
        local_step_s=0.006,
    )


def resources_of(mib: float | None, shm: float) -> Resources:
    return Resources(
        peak_pss_mib=mib,
        peak_shm_mib=shm,
        peak_gpu_mib=None,
        cpu_cores=0.5,
        context_switches=10,
        read_mib=1.0,
        samples=7,
    )


RANKS = [
    RankAnswer(
        value=pass_of(4.0, [0.5, 0.5], [0.5, 0.5], 0.008), resources=resources_of(100.0, 30.0)
    ),
    RankAnswer(value=pass_of(5.0, [2.0, 1.0], [1.0], 0.010), resources=resources_of(50.0, 40.0)),
]


def test_merged_pass_has_all_waits_and_the_slowest_ranks_seconds():
    merged = merge_passes(RANKS)
    assert (merged.seconds, merged.first_batch_s, merged.cpu_s) == (5.0, 0.5, 4.0)
    assert sorted(merged.wait_s) == [0.5, 0.5, 1.0, 2.0]
    assert sorted(merged.place_s) == [0.5, 0.5, 1.0]
    assert (merged.step_s, merged.local_step_s) == (0.010, 0.006)
    assert merged.ranks == [
        RankPass(batches=2, seconds=4.0, wait_s=1.0, place_s=1.0),
        RankPass(batches=2, seconds=5.0, wait_s=3.0, place_s=1.0),
    ]
    assert merged.resources is not None
    assert (merged.resources.peak_pss_mib, merged.resources.peak_shm_mib) == (150.0, 40.0)
    assert (merged.resources.cpu_cores, merged.resources.context_switches) == (1.0, 20)
    unknown = merge_passes(
        [RANKS[0], replace(RANKS[1], resources=resources_of(None, 0.0))]
    ).resources
    assert unknown is not None
    assert unknown.peak_pss_mib is None
    single = merge_passes(RANKS[:1])
    assert (single.ranks, single.resources) == ([], RANKS[0].resources)


def test_rank_metrics_of_known_values():
    trials = [merge_trials([trial_of(3.0, [1.0], 100.0), trial_of(1.0, [1.0], 100.0)])]
    result = Result(
        name="a b",
        loader="a",
        dataset="b",
        params={"world_size": 2},
        tags={},
        trials=trials,
        attribution={"training": merge_passes(RANKS)},
        one_process={"training": [100.0, 300.0, 200.0]},
    )
    figures = metrics(result)
    assert figures["training/scaling_efficiency"] == pytest.approx(320 / (2 * 200))
    assert figures["training/straggler_index"] == pytest.approx(4 / 3)  # 2 s and 4 s
    assert figures["training/sync_fraction"] == pytest.approx(0.4)
    assert figures["training/stall_fraction"] == pytest.approx((2 + 4) / 2 / 5)
    assert figures["training/limit_fraction"] == pytest.approx(320 / 200)
    single = replace(
        result,
        params={},
        trials=[trial_of(3.0, [1.0], 100.0)],
        attribution={"training": replace(merge_passes(RANKS[:1]), step_s=None, local_step_s=None)},
        one_process={},
    )
    absent = ("scaling_efficiency", "straggler_index", "sync_fraction")
    assert not {f"training/{name}" for name in absent} & metrics(single).keys()


def waits_of(first: list[float], second: list[float], **params: object) -> Result:
    """Result of two ranks with these waits: 960 samples in two epochs, in batches of 16."""
    passes = [
        RankAnswer(value=pass_of(1.0, waits, [0.0], 0.01), resources=None)
        for waits in (first, second)
    ]
    return Result(
        name="a b",
        loader="a",
        dataset="b",
        params={"world_size": 2, "batch_size": 16, **params},
        tags={},
        trials=[merge_trials([trial_of(1.0, [1.0], 100.0), trial_of(1.0, [1.0], 100.0)])],
        attribution={"training": merge_passes(passes)},
        environment={"cores_usable": 64},
    )


def test_worker_periodicity_is_checked_per_rank():
    rising = [0.001 + 1e-6 * number for number in range(61)]
    slow = [0.1 if number % 2 else wait_s for number, wait_s in enumerate(rising)]
    (caveat,) = find_caveats(double := waits_of(slow, slow, num_workers=2), [double])
    assert caveat.startswith(
        "training: worker-periodic: the loop waits 100 ms for every 2nd batch "
    )
    single = waits_of(rising, slow, num_workers=2)
    assert find_caveats(single, [single]) == []
