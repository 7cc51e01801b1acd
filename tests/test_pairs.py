"""Training and inference on batches that are no tuple of two: the pair is found, or it is told that
there is none."""

from __future__ import annotations

import brought
import pytest
import torch
from options import compose_job

from fastloop.job import check_support
from fastloop.own_data import brings_its_data, on_its_own_data
from fastloop.pairs import paired
from fastloop.prepared import prepare
from fastloop.spans import now_ns
from fastloop.trial import run_instrumented, run_profiled, run_trial
from fastloop.types import Unsupported

TRAINED = ("benchmark=[training,inference]", "epochs=2", "learning_rate=0.001")
PAIRS = (
    *("image_label", "label_first", "dataclasses", "tensorclasses", "tensordicts"),
    *("nested_pairs", "in_a_dict"),
)
"""Loaders whose batches hold the same two tensors in different trees."""


def own(*overrides: str):
    job = compose_job(*overrides)
    if brings_its_data(job, {"dataset": "digits"}, overrides):
        job = on_its_own_data(job)
    return job, prepare(job.dataset, job.loader.store)


def losses(*overrides: str) -> list[float]:
    trial = run_trial(*own(*TRAINED, *overrides), 0, now_ns())
    assert trial.benchmarks["inference"].samples == 2 * brought.COUNT
    return trial.benchmarks["training"].losses


@pytest.mark.parametrize("ahead", [(), ("device_prefetch=2", "device_prefetch_by=thread")])
@pytest.mark.parametrize("name", PAIRS)
def test_the_losses_are_those_of_the_same_batches_as_tuples(outputs, name, ahead):
    wanted = losses("loader._target_=brought.listed")
    placement = "recursive" if name != "tensorclasses" else "direct"
    more = (f"placement={placement}", *ahead)
    assert losses(f"loader._target_=brought.{name}", *more) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("loader", ["raw", "np_memmap", "numpy_loop"])
def test_a_dataset_of_dicts_is_trained_as_one_of_tuples(outputs, loader):
    more = (f"loader={loader}", "placement=recursive", "batch_size=16")
    wanted = losses("dataset._target_=brought.Squares", *more)
    assert losses("dataset._target_=brought.Named", *more) == pytest.approx(wanted, rel=1e-5)


def test_every_pass_takes_them(outputs, tmp_path):
    job, prepared = own(*TRAINED, "dataset._target_=brought.Named", "placement=recursive")
    seen = run_instrumented(job, prepared, "training")
    assert len(seen.wait_s) == len(seen.place_s) == 1
    run_profiled(job, prepared, "inference", tmp_path)


def test_a_model_of_ones_own_takes_them_too(outputs):
    model = ("model._target_=brought.Net", "placement=recursive", *TRAINED)
    assert losses("loader._target_=brought.label_first", *model)


TOYNET = r"^model=toynet needs \(float32 input, int64 class label\) samples, got "
ANY = "; benchmark=traversal takes any$"
NEEDS = r"^benchmark=training needs \(input, target\), got "
EITHER = rf"either of which may be the input: a tuple has it first{ANY}"


@pytest.mark.parametrize(
    ("name", "model", "said"),
    [
        ("only_x", "toynet", rf"{TOYNET}\(float32\[2, 3\]\){ANY}"),
        ("with_index", "toynet", rf"{TOYNET}\(float32\[2, 3\], int64\[\], int64\[\]\){ANY}"),
        ("two_labels", "toynet", rf"{TOYNET}\(int64\[\], int64\[\]\){ANY}"),
        ("two_labels", "brought.Net", rf"{NEEDS}dict\(ids, labels\) of .*, {EITHER}"),
        ("lists_of_labels", "brought.Net", rf"{NEEDS}dict\(batch\) of .*, {EITHER}"),
    ],
)
def test_what_holds_no_pair_is_unsupported_in_one_clear_line(outputs, name, model, said):
    model = f"model._target_={model}" if "." in model else f"model={model}"
    given = (f"loader._target_=brought.{name}", "placement=recursive", model)
    job, prepared = own(*given, *TRAINED, "benchmark=all")
    with pytest.raises(Unsupported, match=said) as why:
        run_trial(job, prepared, 0, now_ns())
    assert "\n" not in str(why.value)
    traversed = compose_job(*given, "benchmark=traversal", "epochs=1")
    assert run_trial(on_its_own_data(traversed), prepared, 0, now_ns()).benchmarks["traversal"]


def test_a_dataset_of_trees_is_unsupported_before_anything_is_prepared_or_in_one_line(outputs):
    nested = ("dataset=nested", "dataset.count=8", "placement=recursive", "loader=raw")
    with pytest.raises(Unsupported, match=r"model=toynet needs .*, got samples without classes"):
        check_support(compose_job(*nested, "benchmark=training"))
    job, prepared = own(*nested, "benchmark=training", "model._target_=brought.Net")
    with pytest.raises(Unsupported, match=r"needs \(input, int64 target\) samples, got \(float32"):
        run_trial(job, prepared, 0, now_ns())


def test_a_model_that_takes_anything_is_told_what_a_benchmark_gives_it():
    three = {"a": torch.rand(2, 3), "b": torch.rand(2), "c": torch.rand(2)}
    with pytest.raises(Unsupported, match=rf"{NEEDS}\(float32\[3\], float32\[\], float32"):
        paired("training", three, lambda leaves: None)


def test_two_alike_in_a_tuple_are_taken_by_their_places():
    batch = (torch.arange(3), torch.arange(3, 6))
    for tree in (batch, list(batch), ({"ids": batch[0]}, [batch[1]])):
        _, pair = paired("training", tree, lambda leaves: None)
        assert [one.tolist() for one in pair(tree)] == [[0, 1, 2], [3, 4, 5]]
