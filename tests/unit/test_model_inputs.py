"""Training and inference on batches of any tree: the (input, target) pair is found or rejected."""

from __future__ import annotations

import my_code
import pytest
import torch
from options import compose_job

from fastloop.config.build_jobs import loader_brings_data, use_loader_data
from fastloop.core.spans import now_ns
from fastloop.core.types import Unsupported
from fastloop.data.prepare_dataset import prepare
from fastloop.trial.instrumented_pass import run_instrumentation
from fastloop.trial.model_input import find_pair
from fastloop.trial.profiling import run_profiling
from fastloop.trial.support import check_support
from fastloop.trial.timed_trial import run_trial

TRAINED = ("benchmark=[training,inference]", "epochs=2", "learning_rate=0.001")
PAIRS = (
    "image_label",
    "label_first",
    "dataclasses",
    "tensorclasses",
    "tensordicts",
    "nested_pairs",
    "nested_dict",
)
"""Loaders whose batches hold the same two tensors in different trees."""
AHEAD = ("device_prefetch=2", "device_prefetch_by=thread")


def prepare_user_job(*overrides: str):
    job = compose_job(*overrides)
    if loader_brings_data(job, {"dataset": "digits"}, overrides):
        job = use_loader_data(job)
    return job, prepare(job.dataset, job.loader.store)


def losses(*overrides: str) -> list[float]:
    trial = run_trial(*prepare_user_job(*TRAINED, *overrides), 0, now_ns())
    assert trial.benchmarks["inference"].samples == 2 * my_code.COUNT
    return trial.benchmarks["training"].losses


@pytest.fixture(scope="module")
def losses_of_lists(tmp_path_factory) -> list[float]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTLOOP_OUTPUTS", str(tmp_path_factory.mktemp("lists")))
        return losses("loader._target_=my_code.list_batches")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "ahead"), [*((name, ()) for name in PAIRS), ("nested_dict", AHEAD)]
)
def test_training_losses_do_not_depend_on_the_tree_of_a_batch(
    outputs, losses_of_lists, name, ahead
):
    placement = "recursive" if name != "tensorclasses" else "direct"
    overrides = (f"placement={placement}", *ahead)
    found = losses(f"loader._target_=my_code.{name}", *overrides)
    assert found == pytest.approx(losses_of_lists, rel=1e-5)


@pytest.mark.heavy
@pytest.mark.parametrize("loader", ["raw", "np_memmap", "numpy_loop"])
def test_training_losses_of_dicts_equal_those_of_tuples(outputs, loader):
    overrides = (f"loader={loader}", "placement=recursive", "batch_size=16")
    wanted = losses("dataset._target_=my_code.Squares", *overrides)
    assert losses("dataset._target_=my_code.DictSamples", *overrides) == pytest.approx(
        wanted, rel=1e-5
    )


def test_every_pass_accepts_batches_of_dicts(outputs, tmp_path):
    job, prepared = prepare_user_job(
        *TRAINED, "dataset._target_=my_code.DictSamples", "placement=recursive"
    )
    attribution = run_instrumentation(job, prepared, "training")
    assert len(attribution.wait_s) == len(attribution.place_s) == 1
    run_profiling(job, prepared, "inference", tmp_path)


def test_user_model_trains_on_batches_with_the_label_first(outputs):
    model = ("model._target_=my_code.Net", "placement=recursive", *TRAINED)
    assert losses("loader._target_=my_code.label_first", *model)


TOYNET = r"^model=toynet needs \(float32 input, int64 class label\) samples, got "
ANY = "; benchmark=traversal takes any$"
NEEDS = r"^benchmark=training needs \(input, target\), got "
EITHER = rf"either of which may be the input; in a tuple it is the first{ANY}"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        ("only_x", "toynet", rf"{TOYNET}\(float32\[2, 3\]\){ANY}"),
        ("with_index", "toynet", rf"{TOYNET}\(float32\[2, 3\], int64\[\], int64\[\]\){ANY}"),
        ("two_labels", "toynet", rf"{TOYNET}\(int64\[\], int64\[\]\){ANY}"),
        ("two_labels", "my_code.Net", rf"{NEEDS}dict\(ids, labels\) of .*, {EITHER}"),
        ("lists_of_labels", "my_code.Net", rf"{NEEDS}dict\(batch\) of .*, {EITHER}"),
    ],
)
def test_training_without_a_pair_is_rejected_in_one_line(outputs, name, model, message):
    model = f"model._target_={model}" if "." in model else f"model={model}"
    overrides = (f"loader._target_=my_code.{name}", "placement=recursive", model)
    job, prepared = prepare_user_job(*overrides, *TRAINED, "benchmark=all")
    with pytest.raises(Unsupported, match=message) as error:
        run_trial(job, prepared, 0, now_ns())
    assert "\n" not in str(error.value)
    traversal_job = compose_job(*overrides, "benchmark=traversal", "epochs=1")
    assert run_trial(use_loader_data(traversal_job), prepared, 0, now_ns()).benchmarks["traversal"]


def test_training_on_nested_samples_is_rejected(outputs):
    nested = ("dataset=nested", "dataset.count=8", "placement=recursive", "loader=raw")
    with pytest.raises(Unsupported, match=r"model=toynet needs .*, got samples without classes"):
        check_support(compose_job(*nested, "benchmark=training"))
    job, prepared = prepare_user_job(*nested, "benchmark=training", "model._target_=my_code.Net")
    with pytest.raises(Unsupported, match=r"needs \(input, int64 target\) samples, got \(float32"):
        run_trial(job, prepared, 0, now_ns())


def test_find_pair_rejects_a_tree_without_a_pair():
    three = {"a": torch.rand(2, 3), "b": torch.rand(2), "c": torch.rand(2)}
    with pytest.raises(Unsupported, match=rf"{NEEDS}\(float32\[3\], float32\[\], float32"):
        find_pair("training", three, lambda leaves: None)


def test_find_pair_takes_equal_leaves_by_position():
    batch = (torch.arange(3), torch.arange(3, 6))
    for tree in (batch, list(batch), ({"ids": batch[0]}, [batch[1]])):
        _, pair = find_pair("training", tree, lambda leaves: None)
        assert [leaf.tolist() for leaf in pair(tree)] == [[0, 1, 2], [3, 4, 5]]
