"""A user's collate, transform and `__getitems__`, and samples that are None: my_code.py."""

from __future__ import annotations

import multiprocessing
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from my_code import COUNT, BatchGetItems, MissingData, MissingSamples, Squares
from options import compose_job, skip_without_library
from user_jobs import check_epochs, prepare_user_job

from fastloop.config.messages import ConfigError
from fastloop.core.optional_libraries import check_libraries
from fastloop.core.spans import now_ns
from fastloop.core.types import BadData, Invalid, Unsupported
from fastloop.data.dataset_batches import returns_batches
from fastloop.data.random_samples import SeededDataset
from fastloop.data.window_counts import num_delivered
from fastloop.trial.timed_trial import run_trial

MISSING = [index for index in range(COUNT) if index % 7 == 3]
FASTLOOP = ("loader=fastloop", "loader.store=null")
SQUARES = "dataset._target_=my_code.Squares"
NONES = "dataset._target_=my_code.MissingSamples"
DROP = "collate._target_=my_code.drop_missing"
QUICK = ("benchmark=traversal", "epochs=2", "trials=1")


def labels_of(job, prepared, epoch=1) -> list[int]:
    with job.loader.open(prepared, job.plan(0)) as epochs:
        return [int(label) for _, labels in epochs(epoch) for label in labels]


@pytest.mark.parametrize("loader", [("loader=raw",), FASTLOOP, ("num_workers=2",)])
@pytest.mark.parametrize("collate", ["collate=skip_broken", DROP])
def test_samples_that_are_none_are_left_out_and_the_rest_is_measured(outputs, loader, collate):
    job, prepared = prepare_user_job(NONES, collate, *loader, "batch_size=8", *QUICK)
    assert [index for index, _ in prepared.broken] == MISSING
    assert prepared.broken[0][1] == "sample 3 is None, or holds a None"
    check_epochs(job, prepared)
    delivered = labels_of(job, prepared)
    assert sorted(delivered) == sorted(i % 4 for i in range(COUNT) if i not in MISSING)
    assert num_delivered(prepared, job.plan(0), 2) == 2 * len(delivered)
    if not job.loading.num_workers:
        trial = run_trial(job, prepared, 0, now_ns())
        assert trial.benchmarks["traversal"].samples == 2 * len(delivered)


def test_collates_that_leave_out_the_same_samples_deliver_the_same_data(outputs):
    def content(*overrides):
        return prepare_user_job(*overrides)[1].content

    assert content(NONES, "collate=skip_broken") == content(NONES, DROP) != content(SQUARES, DROP)
    assert content(SQUARES) == content(SQUARES, DROP)


@pytest.mark.parametrize("loader", ["raw", "np_memmap"])
def test_samples_that_are_none_are_reported_where_nothing_leaves_them_out(outputs, loader):
    with pytest.raises(BadData, match=r"^sample 3 is None, .* with collate=skip_broken or a coll"):
        prepare_user_job(NONES, f"loader={loader}")
    if loader == "np_memmap":
        with pytest.raises(Unsupported, match="store=npy: a store holds intact samples only, and "):
            prepare_user_job(NONES, DROP, f"loader={loader}")


@pytest.mark.parametrize("batch_size", [1, 16])
def test_collate_may_return_nones_for_a_batch_of_broken_samples(outputs, batch_size):
    override = f"batch_size={batch_size}"
    target = "dataset._target_=my_code.MissingData"
    for collate in ("collate._target_=my_code.drop_missing_data", "collate=skip_broken"):
        job, prepared = prepare_user_job(target, collate, override)
        assert [index for index, _ in prepared.broken] == MISSING
        check_epochs(job, prepared)
    assert MissingData()[3] == (3, None)
    assert MissingSamples()[3] is None


def test_sample_that_the_users_collate_leaves_out_is_counted(outputs):
    job, prepared = prepare_user_job(
        SQUARES,
        "collate._target_=my_code.drop_class",
        "+collate.label=2",
        "batch_size=8",
    )
    assert prepared.broken[0] == (2, "sample 2: the collate leaves it out")
    check_epochs(job, prepared)
    assert set(labels_of(job, prepared)) == {0, 1, 3}


@pytest.mark.heavy
@pytest.mark.parametrize("loader", ["raw", "np_memmap", "preload", "dataloader"])
def test_collate_that_drops_samples_of_a_batch_is_invalid(outputs, loader):
    squares = (SQUARES, f"loader={loader}", "batch_size=8")
    check_epochs(*prepare_user_job(*squares, DROP))
    job, prepared = prepare_user_job(*squares, "collate._target_=my_code.drop_last")
    with pytest.raises(Invalid, match=f"35 samples delivered, not {COUNT}"):
        check_epochs(job, prepared)


def test_collate_may_convert_samples_that_torch_does_not_collate(outputs):
    pictures = ("dataset._target_=my_code.Pictures", "batch_size=8")
    with pytest.raises(BadData, match=r"samples can't be collated: .*PIL"):
        prepare_user_job(*pictures)
    job, prepared = prepare_user_job(*pictures, "collate._target_=my_code.as_uint8")
    assert prepared.sample == (("uint8", (2, 3, 3)), ("int64", ()))
    assert (prepared.num_samples, prepared.num_classes) == (COUNT, 4)
    check_epochs(job, prepared)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("my_code.repeat_each", "^sample 0: the collate makes a batch of 2 samples of it"),
        ("my_code.identity", r"^sample 0: the collate makes no batch: a batch is tensors"),
        ("my_code.negate", "^sample 0: the collate fails: TypeError: bad op"),
    ],
)
def test_collate_that_makes_no_batch_is_reported(outputs, target, message):
    with pytest.raises(BadData, match=message):
        prepare_user_job(SQUARES, f"collate._target_={target}")


def test_user_loader_receives_the_collate_as_collate_fn(outputs):
    job, prepared = prepare_user_job("loader._target_=my_code.with_collate", NONES, DROP)
    check_epochs(job, prepared)
    job, _ = prepare_user_job("loader._target_=my_code.with_collate", SQUARES)
    job.loader.check(job.plan(0))
    job = compose_job("loader._target_=my_code.with_sampler", NONES, DROP)
    with pytest.raises(Unsupported, match=r"collate=my_code.drop_missing: loader=my_code.with_s"):
        job.loader.check(job.plan(0))
    job = compose_job("loader._target_=my_code.with_collate", "collate=fast")
    with pytest.raises(Unsupported, match=r"collate=fast: loader=my_code.with_collate has no"):
        job.loader.check(job.plan(0))


READERS = [
    ("loader=raw",),
    FASTLOOP,
    *((f"loader={n}", "loader.store=null") for n in ("spdl", "grain")),
]


@pytest.mark.parametrize("loader", READERS)
@pytest.mark.parametrize("name", ["BatchGetItems", "ListGetItems", "OneTensor"])
def test_getitems_of_a_dataset_may_return_a_batch_or_a_list(outputs, loader, name):
    job = compose_job(f"dataset._target_=my_code.{name}", *loader, "batch_size=8")
    try:
        check_libraries(job.loader)
    except Unsupported as error:
        skip_without_library(error)
        raise
    job, prepared = prepare_user_job(f"dataset._target_=my_code.{name}", *loader, "batch_size=8")
    assert prepared.returns_batches == (name != "ListGetItems")
    check_epochs(job, prepared)
    job, prepared = prepare_user_job("dataset._target_=my_code.WrongGetItems", *loader)
    with pytest.raises(Invalid, match=r"the samples or their labels are not the dataset's$"):
        check_epochs(job, prepared)


@pytest.mark.parametrize("method", [None, pytest.param("spawn", marks=pytest.mark.heavy)])
def test_getitems_that_returns_a_batch_is_called_in_workers(outputs, method):
    method = method or multiprocessing.get_all_start_methods()[0]
    job, prepared = prepare_user_job(
        "dataset._target_=my_code.BatchGetItems",
        "num_workers=1",
        "batch_size=8",
        f"multiprocessing_context={method}",
    )
    check_epochs(job, prepared, epochs=(0,))


def test_collate_receives_the_batch_that_getitems_returns(outputs):
    target = "dataset._target_=my_code.BatchGetItems"
    job, prepared = prepare_user_job(target, "collate._target_=my_code.identity", "batch_size=8")
    check_epochs(job, prepared)
    assert prepared.content == prepare_user_job(target)[1].content
    job, prepared = prepare_user_job(target, "collate=skip_broken")
    with pytest.raises(Unsupported, match=r"collate=skip_broken: the __getitems__ of BatchGetIt"):
        check_epochs(job, prepared)


@pytest.mark.parametrize("loader", [("loader=raw",), FASTLOOP])
def test_transform_of_samples_needs_single_samples(outputs, loader):
    negate = ("transform._target_=my_code.negate", "batch_size=8", *loader)
    job, prepared = prepare_user_job("dataset._target_=my_code.ListGetItems", *negate)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        data = torch.cat([data for data, _ in epochs(0)])
    assert torch.equal(data.sort(0).values, (-BatchGetItems().data).sort(0).values)
    job, prepared = prepare_user_job("dataset._target_=my_code.BatchGetItems", *negate)
    with pytest.raises(Unsupported, match=r"transform\.where=worker: .* transform\.where=device"):
        check_epochs(job, prepared)
    job, prepared = prepare_user_job(
        "dataset._target_=my_code.BatchGetItems", *negate, "+transform.where=device", *QUICK
    )
    assert run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"].samples == 2 * COUNT


AUGMENTED = "dataset._target_=my_code.AugmentedSamples"


@pytest.mark.heavy
@pytest.mark.parametrize(
    "loader", [("num_workers=2",), FASTLOOP, ("loader._target_=my_code.with_sampler",)]
)
def test_random_samples_are_compared_with_seeded_generators(outputs, loader):
    job, prepared = prepare_user_job(AUGMENTED, *loader, "batch_size=8", *QUICK)
    assert prepared.random
    state = torch.get_rng_state()
    samples = SeededDataset(job.dataset).open()
    assert torch.equal(samples[3][0], samples[3][0])
    assert torch.equal(torch.get_rng_state(), state)
    # FastLoader says why it reads such samples in the loop
    expected = (
        pytest.warns(UserWarning, match="sample_seed") if loader == FASTLOOP else nullcontext()
    )
    with expected:
        run_trial(job, prepared, 0, now_ns())
        with job.loader.open(prepared, job.plan(0)) as epochs:  # as in a timed epoch
            first, second = (torch.cat([data for data, _ in epochs(0)]) for _ in range(2))
    assert torch.equal(first, second) == (loader == FASTLOOP)  # whose samples draw by their index


def test_random_samples_that_a_loader_repeats_are_found(outputs):
    job, prepared = prepare_user_job("loader._target_=my_code.without_last", AUGMENTED, *QUICK)
    with pytest.raises(Invalid, match="not the dataset's: random samples are compared with gener"):
        run_trial(job, prepared, 0, now_ns())


def test_random_samples_in_a_store_are_unsupported(outputs):
    job, prepared = prepare_user_job(AUGMENTED, "loader=np_memmap", *QUICK)
    with pytest.raises(
        Unsupported, match="of AugmentedSamples are random, and a store repeats one"
    ):
        run_trial(job, prepared, 0, now_ns())
    run_trial(replace(job, same_data=False), prepared, 0, now_ns())


def test_samples_that_no_seed_repeats_are_not_compared(outputs):
    job, prepared = prepare_user_job("dataset._target_=my_code.UnseededSamples", *QUICK)
    assert not prepared.random
    with pytest.raises(Invalid, match=r"sample 0 differs every time it is read; same_data=false"):
        run_trial(job, prepared, 0, now_ns())
    assert not prepare_user_job(SQUARES)[1].random
    pictures = "dataset._target_=my_code.Pictures"
    assert not prepare_user_job(pictures, "collate._target_=my_code.as_uint8")[1].random


def test_list_of_samples_is_told_from_a_batch():
    for count in (1, 2, 40):
        assert returns_batches(BatchGetItems(count))
    assert not returns_batches(Squares())


@pytest.mark.parametrize(
    ("overrides", "factor"),
    [
        (("transform._target_=my_code.negate",), -1),
        (("transform._target_=my_code.Scale", "+transform.factor=3"), 3),
        (("transform._target_=my_code.make_scale", "+transform.factor=3"), 3),
    ],
)
def test_user_transform_may_be_a_function_a_class_or_what_makes_one(outputs, overrides, factor):
    squares = (SQUARES, *overrides)
    job, prepared = prepare_user_job(*squares)
    wanted = sorted(factor * float(index * index) for index in range(COUNT))
    with job.loader.open(prepared, job.plan(0)) as epochs:
        delivered = sorted(float(row[0, 0]) for data, _ in epochs(0) for row in data)
    assert delivered == wanted
    job, _ = prepare_user_job(*squares, "+transform.where=device")
    assert job.plan(0).transform is None
    batch = Squares()[2][0][None], torch.tensor([2])
    assert float(job.transform.transform_batch(batch)[0][0, 0, 0]) == 4 * factor


def test_transform_that_expects_the_input_alone_is_told_what_it_gets(outputs):
    target = "transform._target_=torch.neg"
    job, prepared = prepare_user_job(SQUARES, target)
    with pytest.raises(
        BadData, match=r"torch.neg: TypeError: .* \(its argument is a whole sample, "
    ):
        labels_of(job, prepared)


@pytest.mark.parametrize("group", ["collate", "transform"])
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("my_code.nope", "my_code.nope: .*no attribute 'nope'"),
        ("my_code.NUMBER", "NUMBER: int is not callable"),
        ("my_code.negate +{group}.x=3", "my_code.negate has no argument x; allowed: none"),
        ("my_code.Scale", "my_code.Scale: missing a required argument: 'factor'"),
    ],
)
def test_user_function_that_is_invalid_is_reported_in_one_line(group, override, message):
    with pytest.raises(ConfigError, match=message) as error:
        compose_job(*f"{group}._target_={override}".format(group=group).split())
    assert "\n" not in str(error.value)
