"""Several ranks: what each loads, what all of them come to, and that none waits for good."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import in_ranks
import pytest
import torch
from in_ranks import BATCH, SEED
from options import MYDATASET, compose_job, disk_only, options, skip_without_its_library
from pictures import crop, jpeg, write
from torch.utils.data import DistributedSampler

from fastloop.caveats import caveats
from fastloop.gate import num_delivered
from fastloop.job import Job
from fastloop.launchers.torchrun import Torchrun
from fastloop.limits import usable_cores
from fastloop.of_ranks import one_pass, one_trial
from fastloop.optional import check_libraries
from fastloop.orders.random import Random
from fastloop.orders.sequential import Sequential
from fastloop.own_data import on_its_own_data
from fastloop.plans import epoch_indices, index_batches, whole_order
from fastloop.prepared import prepare, reference_hashes, sample_lengths
from fastloop.profiling import profile_paths
from fastloop.resources import Resources
from fastloop.result import Attribution, Measured, RankPass, Result, Trial, metrics
from fastloop.spans import now_ns
from fastloop.trial import run_trial
from fastloop.types import JobFailed, Prepared, Unsupported

PATIENCE_S = 120
"""Whoever waits for another rank for good ends as a failure after that."""


def torchrun(ranks: int) -> Torchrun:
    return Torchrun(
        nproc_per_node=ranks,
        nnodes=1,
        node_rank=0,
        rdzv_endpoint=None,
        backend="gloo",
        isolation="forkserver",
    )


def by_ranks(ranks: int, function, *args) -> list:
    """What each rank has given, by rank."""
    found = torchrun(ranks).call_ranks(function, *args, timeout_s=PATIENCE_S)
    return [value for value, _ in found]


# -- every loader and every order

WHOLE, DROPPED, FEW_ROWS = "whole", "drop_last", "fewer samples than ranks"
CASES = [f"{loader}, {how}" for loader in options("loader") for how in (WHOLE, DROPPED, FEW_ROWS)]
CASES += [f"order={order}" for order in options("order")]
RAGGED = ("dataset=texts", "dataset.count=203", "collate=pad")
SLOW_TO_START = ("tf_data", "ffcv")
"""What they import or compile takes seconds in each process: by two ranks only."""
SHARED = [(name, 2) for name in CASES]
SHARED += [(name, 3) for name in CASES if not name.startswith(SLOW_TO_START)]


def ready(job: Job) -> tuple[Job, Prepared] | Unsupported:
    """The job with its store written, or why that can't be."""
    try:
        check_libraries(job.loader)
        return job, prepare(job.dataset, job.loader.store, job.collate.tolerant)
    except Unsupported as why:
        return why


def all_ready() -> dict[str, tuple[Job, Prepared] | Unsupported]:
    size, made = f"batch_size={BATCH}", {}
    for loader in options("loader"):
        job = compose_job(f"loader={loader}", size, *MYDATASET)
        made[f"{loader}, {WHOLE}"] = ready(job)
        made[f"{loader}, {DROPPED}"] = ready(replace(job, drop_last=True))
        few: Any = replace(cast(Any, job.dataset), count=1)
        made[f"{loader}, {FEW_ROWS}"] = ready(replace(job, dataset=few))
    for order in options("order"):
        data = RAGGED if order == "buckets" else MYDATASET
        made[f"order={order}"] = ready(compose_job(f"order={order}", size, *data))
    return made


@pytest.fixture(scope="module")
def shares(tmp_path_factory):
    """Jobs by name, and what ranks have delivered of them, by how many there are and by rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTLOOP_OUTPUTS", str(tmp_path_factory.mktemp("shares")))
        made = all_ready()
    here = {name: one for name, one in made.items() if not isinstance(one, Unsupported)}
    quick = {name: one for name, one in here.items() if not name.startswith(SLOW_TO_START)}
    return made, {
        2: by_ranks(2, in_ranks.delivered, here),
        3: by_ranks(3, in_ranks.delivered, quick),
    }


@pytest.mark.parametrize(("name", "ranks"), SHARED)
def test_ranks_share_an_epoch_as_torchs_distributed_sampler_does(shares, name, ranks):
    made, found = shares
    if isinstance(made[name], Unsupported):
        skip_without_its_library(made[name])
    job, prepared = made[name]
    truth = [one.tobytes() for one in reference_hashes(prepared)]
    order = whole_order(in_ranks.plan_of(job, prepared, ranks, 0))
    for number, (first, second, again) in enumerate(one[name] for one in found[ranks]):
        assert first == again
        assert first != second or isinstance(order, Sequential) or prepared.num_samples < ranks
        for epoch, batches in enumerate((first, second)):
            whole = epoch_indices(order, prepared.num_samples, SEED, epoch)
            mine = [truth[index] for index in of_torch(order, whole, ranks, number, epoch)]
            wanted = [mine[start : start + BATCH] for start in range(0, len(mine), BATCH)]
            left_out = job.drop_last and len(wanted[-1]) < BATCH
            assert batches == (wanted[:-1] if left_out else wanted)
    if order.complete and not job.drop_last:
        came = [row for one in found[ranks] for batch in one[name][0] for row in batch]
        assert set(came) == set(truth)


def of_torch(order, whole: torch.Tensor, ranks: int, number: int, epoch: int) -> list[int]:
    """What torch's DistributedSampler gives that rank of an epoch's indices."""
    data: Any = whole.tolist()
    if isinstance(order, Random):
        sampler = DistributedSampler(data, ranks, number, seed=SEED)
        sampler.set_epoch(epoch)
        return list(sampler)
    return [data[place] for place in DistributedSampler(data, ranks, number, shuffle=False)]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("drop_last", ["false", "true"])
def test_what_fills_a_rank_up_is_not_counted(prepared_job, ranks, drop_last):
    for size in (1, 3, 34):
        settings = (f"drop_last={drop_last}", f"batch_size={size}")
        job, prepared = prepared_job("loader=np_memmap", *MYDATASET, *settings)
        plans = [in_ranks.plan_of(job, prepared, ranks, number) for number in range(ranks)]
        distinct = 0
        for epoch in range(3):
            batches = [one for plan in plans for one in index_batches(plan, 203, epoch)]
            distinct += len(set(torch.cat(batches).tolist()))
        assert {num_delivered(prepared, plan, 3) for plan in plans} == {distinct}
        assert distinct == 3 * 203 or drop_last == "true"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_batches_of_a_rank_are_of_like_lengths_in_buckets(prepared_job, ranks):
    waste = {}
    for order in ("order=random", "order=buckets"):
        texts = ("dataset=texts", "dataset.count=2000", "collate=pad", "batch_size=16")
        job, prepared = prepared_job(*texts, order)
        lengths = torch.from_numpy(sample_lengths(prepared))
        plans = [in_ranks.plan_of(job, prepared, ranks, number) for number in range(ranks)]
        batches = [one for plan in plans for one in index_batches(plan, 2000, 0)]
        padded = sum(len(one) * int(lengths[one].max()) for one in batches)
        waste[order] = padded / int(lengths.sum()) - 1
    assert waste["order=buckets"] < waste["order=random"] / 5


# -- the same data, of all ranks together


LIES = {
    "everything to everybody": "406 samples came, not 203",
    "honest on rank 0 only": "102 samples came, not 203",
    "a sample is missing": "the samples or their labels are not the dataset's",
    "a batch is missing": "188 samples came, not 203",
    "a batch comes twice": "220 samples came, not 203",
    "another batch": "the samples or their labels are not the dataset's",
    "labels are swapped": "the samples or their labels are not the dataset's",
    "filled up with something unknown": "204 samples came, not 203",
    "another dtype": "ranks differ: dtypes and shapes are float64[5, 3]",
    "no batches": "a batch is tensors of one length",
    "without an end": "it yields more than 204 samples an epoch",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTLOOP_OUTPUTS", str(tmp_path_factory.mktemp("lies")))
        made = ready(compose_job("loader=np_memmap", f"batch_size={BATCH}", *MYDATASET))
        assert not isinstance(made, Unsupported)
    return by_ranks(2, in_ranks.verdicts, *made)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_of_one_rank_is_told_to_all_in_the_same_words(told, lie):
    assert LIES[lie] in told[0].get(lie, "")
    assert told[1][lie] == told[0][lie]


# -- none waits for good

FEW = ("dataset=mydataset", "dataset.count=33", "dataset.shape=[5,3]", "batch_size=8", "epochs=1")
THREAD, PROCESS = [
    ("device_prefetch=2", f"device_prefetch_by={by}") for by in ("thread", "process")
]
KEPT = ("num_workers=2", "persistent_workers=true")
WORKING = {
    "rank and world_size": (("loader._target_=dealt.every_other", *THREAD), [3, 2], 33),
    "in turns": (("loader._target_=dealt.in_turns", "epochs=3"), [4, 1], 33),
    "an option": (("loader._target_=dealt.ByProtocol",), [4, 1], 33),
    "torch's own": (("loader._target_=dealt.by_torch", *PROCESS), [3, 3], 33),
    "sampler": (("loader._target_=dealt.over", *KEPT, "drop_last=true"), [2, 2], 32),
    "workers": (("loader=raw", "num_workers=2", *THREAD), [3, 3], 33),
}
"""Settings, batches of each rank in epoch 0, and distinct samples an epoch."""


def assert_worked(job, prepared, folder, batches: list[int], samples: int) -> None:
    """Every pass of two ranks ends, and tells that many batches by rank and samples an epoch."""
    found = by_ranks(2, in_ranks.every_pass, job, prepared, folder)
    assert [len(seen.wait_s) for _, seen in found] == batches
    for trial, seen in found:
        measured = trial.benchmarks["training"]
        assert measured.samples == job.epochs * samples
        assert len(measured.losses) == job.epochs
        assert seen.step_s
        assert seen.own_step_s
    assert all(path.exists() for path in profile_paths(folder, "training"))


@pytest.mark.parametrize("name", WORKING)
def test_ranks_train_to_the_end_whoever_shares_out(prepared_job, tmp_path, name):
    settings, batches, samples = WORKING[name]
    job, prepared = prepared_job("benchmark=training", *FEW, *settings)
    assert_worked(job, prepared, tmp_path, batches, samples)


def test_ranks_train_to_the_end_where_most_of_one_ranks_files_are_broken(outputs, tmp_path):
    names = [f"{index // 12}/{index:02}.jpg" for index in range(24)]
    whole = {name: jpeg(crop(8, 8, place)) for place, name in enumerate(names)}
    root = write(tmp_path / "images", whole | dict.fromkeys(names[1:16:2], b""))
    folder = ("dataset=image_folder", f"dataset.root={root}", "collate=skip_broken")
    training = ("order=sequential", "batch_size=4", "benchmark=training", "epochs=2")
    job = compose_job(*folder, *training)
    prepared = prepare(job.dataset, None, job.collate.tolerant)
    assert len(prepared.broken) == 8
    assert_worked(job, prepared, tmp_path, [3, 1], 16)


def test_a_loader_that_brings_its_data_has_a_group_where_it_is_prepared_too(outputs):
    job = compose_job("loader._target_=dealt.own_data", "benchmark=traversal", "epochs=1")
    job = on_its_own_data(job)
    prepared = torchrun(2).call(prepare, job.dataset, None, False, timeout_s=PATIENCE_S)
    assert prepared.num_samples == 33
    for ranks in (1, 2):
        trials = by_ranks(ranks, run_trial, job, prepared, 0, now_ns())
        assert [one.benchmarks["traversal"].samples for one in trials] == [33] * ranks


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ("everything", "invalid: 66 samples came, not 33"),
        ("the_first_alone", "unsupported: rank 1 gets none: 33 samples are dealt out to 2 ranks"),
    ],
)
def test_a_trial_ends_where_no_shares_are_delivered(prepared_job, loader, reason):
    job, prepared = prepared_job(f"loader._target_=dealt.{loader}", *FEW)
    with pytest.raises(JobFailed) as failed:
        by_ranks(2, run_trial, job, prepared, 0, now_ns())
    assert failed.value.reason == reason


@disk_only
def test_every_rank_begins_cold_though_each_maps_the_file(prepared_job):
    much = ("dataset=mydataset", "dataset.count=10000", "benchmark=traversal", "epochs=1")
    job, prepared = prepared_job(*much, "loader=np_memmap", "cache=cold")
    for seen in by_ranks(2, in_ranks.made_cold, job, prepared):
        assert [before > 0.99 for before, _ in seen] == [True, True]
        assert [after < 0.05 for _, after in seen] == [True, True]


# -- what all of them come to


def losses(trials: list[Trial]) -> list[float]:
    return [loss for one in trials for loss in one.benchmarks["training"].losses]


def test_two_ranks_learn_what_one_process_learns_from_batches_of_both(prepared_job):
    data = ("dataset=mydataset", "dataset.count=192", "dataset.shape=[5,3]", "batch_size=16")
    training = ("benchmark=training", "epochs=3", "learning_rate=0.5", "order=sequential")
    job, prepared = prepared_job(*data, *training, "torch_threads=1")
    jobs = [job, replace(job, order=Random())]
    first, second = map(losses, by_ranks(2, in_ranks.trials_of, jobs, prepared))
    alone = losses(
        *by_ranks(1, in_ranks.trials_of, [replace(one, batch_size=32) for one in jobs], prepared)
    )
    assert first != pytest.approx(second, rel=1e-3)  # each tells what it has seen itself
    together = [(one + other) / 2 for one, other in zip(first, second, strict=True)]
    assert together == pytest.approx(alone, rel=1e-5)
    assert alone[:3] != pytest.approx(alone[3:], rel=1e-4)
    assert alone[0] - alone[2] > 1e-3  # it learns


@pytest.mark.parametrize("ranks", [1, 2])
def test_torch_threads_of_every_rank_are_its_share_of_the_cores(prepared_job, ranks):
    job, prepared = prepared_job(*FEW, "benchmark=training", "model.hidden=8")
    found = by_ranks(ranks, in_ranks.trials_of, [job, replace(job, torch_threads=3)], prepared)
    share = max(1, usable_cores() // ranks)
    for trials, threads in zip(zip(*found, strict=True), (share, 3), strict=True):
        assert [one.torch_threads for one in trials] == [threads] * ranks
        merged = one_trial(trials)
        assert merged.rank_torch_threads == ([threads] * ranks if ranks > 1 else [])


def trial_of(seconds: float, losses: list[float], limit: float, threads: int = 1) -> Trial:
    measured = Measured(
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
        benchmarks={"training": measured},
        torch_threads=threads,
        multiprocessing_context=None,
        load_average=None,
    )


def test_a_trial_of_three_ranks_is_as_long_as_the_slowest_and_its_losses_are_the_mean():
    ranks = [
        trial_of(1.0, [4.0, 1.0], 100.0),
        trial_of(3.0, [2.0, 2.0], 200.0, threads=2),
        trial_of(2.0, [0.0, 6.0], 300.0),
    ]
    merged = one_trial(ranks)
    found = merged.benchmarks["training"]
    assert (found.seconds, found.rank_seconds) == (3.0, [1.0, 3.0, 2.0])
    assert (found.samples, found.samples_per_s) == (960, 320.0)
    assert found.losses == [2.0, 3.0]
    assert found.limit_samples_per_s == 600.0
    assert (merged.number, merged.rank_torch_threads) == (4, [1, 2, 1])
    assert one_trial(ranks[:1]) is ranks[0]


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
        own_step_s=0.006,
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
    (pass_of(4.0, [0.5, 0.5], [0.5, 0.5], 0.008), resources_of(100.0, 30.0)),
    (pass_of(5.0, [2.0, 1.0], [1.0], 0.010), resources_of(50.0, 40.0)),
]


def test_a_pass_of_two_ranks_has_the_waits_of_both_and_the_seconds_of_the_slowest():
    merged = one_pass(RANKS)
    assert (merged.seconds, merged.first_batch_s, merged.cpu_s) == (5.0, 0.5, 4.0)
    assert sorted(merged.wait_s) == [0.5, 0.5, 1.0, 2.0]
    assert sorted(merged.place_s) == [0.5, 0.5, 1.0]
    assert (merged.step_s, merged.own_step_s) == (0.010, 0.006)
    assert merged.ranks == [
        RankPass(batches=2, seconds=4.0, wait_s=1.0, place_s=1.0),
        RankPass(batches=2, seconds=5.0, wait_s=3.0, place_s=1.0),
    ]
    assert merged.resources is not None
    assert (merged.resources.peak_pss_mib, merged.resources.peak_shm_mib) == (150.0, 40.0)
    assert (merged.resources.cpu_cores, merged.resources.context_switches) == (1.0, 20)
    unknown = one_pass([RANKS[0], (RANKS[1][0], resources_of(None, 0.0))]).resources
    assert unknown is not None
    assert unknown.peak_pss_mib is None
    alone = one_pass(RANKS[:1])
    assert (alone.ranks, alone.resources) == ([], RANKS[0][1])


def test_efficiency_stragglers_and_synchronization_of_known_values():
    trials = [one_trial([trial_of(3.0, [1.0], 100.0), trial_of(1.0, [1.0], 100.0)])]
    result = Result(
        name="a b",
        loader="a",
        dataset="b",
        params={"world_size": 2},
        tags={},
        trials=trials,
        attribution={"training": one_pass(RANKS)},
        one_process={"training": [100.0, 300.0, 200.0]},
    )
    figures = metrics(result)
    assert figures["training/scaling_efficiency"] == pytest.approx(320 / (2 * 200))
    assert figures["training/straggler_index"] == pytest.approx(4 / 3)  # 2 s and 4 s
    assert figures["training/sync_fraction"] == pytest.approx(0.4)
    assert figures["training/stall_fraction"] == pytest.approx((2 + 4) / 2 / 5)
    assert figures["training/limit_fraction"] == pytest.approx(320 / 200)
    of_one = replace(
        result,
        params={},
        trials=[trial_of(3.0, [1.0], 100.0)],
        attribution={"training": replace(one_pass(RANKS[:1]), step_s=None, own_step_s=None)},
        one_process={},
    )
    absent = ("scaling_efficiency", "straggler_index", "sync_fraction")
    assert not {f"training/{name}" for name in absent} & metrics(of_one).keys()


def waits_of(first: list[float], second: list[float], **params: object) -> Result:
    """Of two ranks that have loaded 960 samples in two epochs in batches of 16."""
    passes = [(pass_of(1.0, waits, [0.0], 0.01), None) for waits in (first, second)]
    return Result(
        name="a b",
        loader="a",
        dataset="b",
        params={"world_size": 2, "batch_size": 16, **params},
        tags={},
        trials=[one_trial([trial_of(1.0, [1.0], 100.0), trial_of(1.0, [1.0], 100.0)])],
        attribution={"training": one_pass(passes)},
        environment={"cores_usable": 64},
    )


def test_workers_turns_are_those_of_a_rank():
    rising = [0.001 + 1e-6 * place for place in range(61)]
    slow = [0.1 if place % 2 else one for place, one in enumerate(rising)]
    (told,) = caveats(both := waits_of(slow, slow, num_workers=2), [both])
    assert told.startswith("training: worker-periodic: every 2nd batch waits 1e+02 ms")
    one = waits_of(rising, slow, num_workers=2)
    assert caveats(one, [one]) == []


@pytest.mark.parametrize(("batches", "said"), [(15, []), (16, []), (8, ["what it makes"])])
def test_a_short_batch_of_each_rank_is_no_other_size(batches, said):
    of_both = waits_of([0.1] * 15, [0.1] * batches, **{"loader._target_": "mine.Loader"})
    told = caveats(of_both, [of_both])
    assert [one.partition("batch_size=16 is not ")[2] for one in told] == said
