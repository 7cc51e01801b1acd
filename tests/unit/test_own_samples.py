"""Jobs over the user's own samples: of several lengths, of text, with a collate of the user's."""

from __future__ import annotations

import my_code
import pytest
from my_code import COUNT
from options import compose_job
from user_jobs import check_epochs, prepare_user_job

from fastloop.config.store_choice import choose_store
from fastloop.core.types import BadData, Unsupported
from fastloop.data.prepare_dataset import prepare
from fastloop.data.user_store import write_store
from fastloop.trial.support import check_support

SQUARES = "dataset._target_=my_code.Squares"
CLIPS = "dataset._target_=my_code.Clips"
WORDS = "dataset._target_=my_code.Words"
TRAVERSAL = "benchmark=traversal"


@pytest.mark.parametrize("loader", ["raw", "fastloop"])
@pytest.mark.parametrize("order", ["random", "buckets"])
def test_own_dataset_of_several_lengths_is_padded(outputs, loader, order):
    overrides = (CLIPS, "collate=pad", TRAVERSAL, f"order={order}", "batch_size=8")
    job, prepared = prepare_user_job(*overrides, f"loader={loader}")
    check_support(job)
    assert job.loader.store is None
    assert prepared.sample == (("int64", ()), ("float32", (-1, 2)))
    if order == "random":
        check_epochs(job, prepared)


def test_padding_changes_neither_the_reference_nor_the_jobs_of_one_length(outputs):
    plain, padded = (prepare_user_job(SQUARES, *each)[1] for each in ((), ("collate=pad",)))
    assert plain.reference != padded.reference
    assert plain.sample != padded.sample
    assert compose_job(SQUARES).dataset.ragged is None
    assert compose_job(SQUARES, "dataset.ragged=false", "collate=pad").dataset.ragged is False


def test_samples_of_several_lengths_are_told_with_the_remedies(outputs):
    with pytest.raises(BadData, match=r"^dataset=my_code\.Clips: samples differ: 0 is ") as error:
        prepare_user_job(CLIPS)
    assert "collate=pad benchmark=traversal pads them" in str(error.value)
    with pytest.raises(BadData, match=r"ragged=True stores them with offsets$"):
        write_store(my_code.Clips(), outputs / "clips")
    with pytest.raises(
        BadData, match="each sample is compared by itself, so pad all to one length, "
    ):
        prepare_user_job(CLIPS, "collate._target_=my_code.pad_clips")


def test_samples_of_several_kinds_are_not_said_to_be_padded(outputs):
    with pytest.raises(BadData, match=r"^dataset=my_code\.Uneven: samples differ: ") as error:
        prepare_user_job("dataset._target_=my_code.Uneven")
    assert "pad" not in str(error.value)
    assert "collate=<module>.<function>" in str(error.value)


def test_lists_of_numbers_are_told_not_to_be_tensors(outputs):
    with pytest.raises(
        BadData, match=r"; a list of numbers is as many leaves; torch\.tensor\(list"
    ):
        prepare_user_job("dataset._target_=my_code.TokenLists")
    with pytest.raises(BadData, match=r"has a dimension; a list of numbers is as many leaves; tor"):
        prepare_user_job("dataset._target_=my_code.TokenLists", "collate=pad")


def test_padded_batches_are_moved_by_recursion_unless_another_way_is_asked_for():
    placements = [
        compose_job(CLIPS, *each).placement
        for each in (("collate=pad",), (), ("collate=pad", "placement=direct"))
    ]
    assert [type(each).__name__ for each in placements] == [
        "RecursivePlacement",
        "DirectPlacement",
        "DirectPlacement",
    ]


def test_text_is_told_with_the_dataset_and_the_remedy(outputs):
    with pytest.raises(BadData, match=r"^dataset=my_code\.Words: samples hold str; ") as error:
        prepare_user_job(WORDS)
    assert "collate=<module>.<function>, which loader=raw, for example, calls" in str(error.value)
    for loader in ("raw", "fastloop"):
        job, prepared = prepare_user_job(
            WORDS, "collate._target_=my_code.count_letters", f"loader={loader}", "batch_size=8"
        )
        assert prepared.num_samples == COUNT
        check_epochs(job, prepared)


@pytest.mark.parametrize(
    ("settings", "has_store"),
    [
        ((), True),
        (("collate._target_=my_code.drop_missing",), False),
        (("transform._target_=my_code.negate",), False),
        (("transform._target_=my_code.negate", "transform.where=device"), True),
        (("transform=normalize", "transform.where=device"), True),
        (("collate._target_=my_code.drop_missing", "store@loader.store=npy"), True),
    ],
)
def test_store_gives_way_to_a_collate_or_transform_of_samples(settings, has_store):
    job = compose_job("loader=fastloop", SQUARES, *settings)
    assert (job.loader.store is not None) == has_store
    # a loader that needs its store keeps it
    rows = compose_job("loader=np_memmap", SQUARES, *settings[:1])
    assert rows.loader.store is not None
    assert choose_store(rows, ()) == rows


def test_collate_beside_a_store_is_told_with_the_way_without_it():
    own = (SQUARES, "collate._target_=my_code.drop_missing")
    job = compose_job("loader=fastloop", "store@loader.store=npy", *own)
    with pytest.raises(
        Unsupported, match=r"no such setting while it reads a store; loader\.store=n"
    ):
        check_support(job)
    with pytest.raises(Unsupported, match="no such setting; loader=raw, for example, has it"):
        check_support(compose_job("loader=hdf5", *own))


def test_default_of_the_replaced_model_is_not_passed_to_an_own_one():
    own = "model._target_=my_code.HiddenNet"
    assert compose_job(own).model.kwargs == {}
    assert compose_job(own, "model.hidden=512").model.kwargs == {"hidden": 512}
    assert compose_job("model.hidden=512", own).model.kwargs == {"hidden": 512}


def test_settings_of_the_option_are_not_arguments_of_the_dataset():
    dataset = compose_job(SQUARES, "dataset.version=2", "dataset.count=3").dataset
    assert (dataset.version, dataset.kwargs) == (2, {"count": 3})
    own = compose_job("dataset._target_=my_code.Versions", "dataset.version=2").dataset
    assert (own.version, own.kwargs) == (None, {"version": 2})


def test_ragged_samples_of_the_users_own_need_a_dimension(outputs):
    job = compose_job("dataset._target_=my_code.Numbers", "collate=pad", TRAVERSAL)
    with pytest.raises(BadData, match="no leaf of the samples has a dimension"):
        prepare(job.dataset, None)
