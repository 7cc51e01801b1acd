"""A Dataset or a loader of one's own: one `_target_`, no fastloop in it. They are in brought.py."""

from __future__ import annotations

import multiprocessing
import pickle
from dataclasses import replace

import brought
import psutil
import pytest
import torch
from brought import COUNT
from options import compose_job
from test_window import result_of
from torch.utils.data import default_collate

from fastloop.campaign import _trial_key
from fastloop.config import ConfigError
from fastloop.digest import leaves_of
from fastloop.environment import describe
from fastloop.gate import check_data
from fastloop.job import check_support
from fastloop.launchers.single import Single
from fastloop.own_data import brings_its_data, on_its_own_data
from fastloop.plans import epoch_indices
from fastloop.prepared import prepare
from fastloop.reporting.summary import summarize
from fastloop.result import Result
from fastloop.spans import now_ns
from fastloop.trial import run_trial
from fastloop.types import BadData, Invalid, JobFailed, Unsupported

SQUARES = "dataset._target_=brought.Squares"
pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


def rows(batches) -> list[tuple[bytes, int]]:
    return [
        (source.numpy().tobytes(), int(target))
        for sources, targets in batches
        for source, target in zip(sources, targets, strict=True)
    ]


def truth(job) -> list[tuple[bytes, int]]:
    samples = job.dataset.open()
    return rows([default_collate([samples[index] for index in range(len(samples))])])


def own(*overrides: str):
    """(job, prepared) with the loader's own data where no dataset is named, as a command has it."""
    job = compose_job(*overrides)
    if brings_its_data(job, {"dataset": "digits"}, overrides):
        job = on_its_own_data(job)
    return job, prepare(job.dataset, job.loader.store, job.collate.tolerant)


def checked(job, prepared, epochs=(0, 1, 2)) -> None:
    plan = job.plan(0)
    with job.loader.open(prepared, plan) as opened:
        for epoch in epochs:
            check_data(prepared, plan, opened(epoch), epoch, job.same_data)


@pytest.mark.parametrize("loader", ["raw", "np_memmap", "tensorclass"])
def test_a_dataset_of_ones_own_serves_fastloops_loaders(outputs, loader):
    job, prepared = own(f"loader={loader}", SQUARES, "+dataset.count=30", "batch_size=8")
    wanted, plan = truth(job), job.plan(seed=7)
    assert len(wanted) == 30
    assert prepared.label == "Squares"
    assert prepared.num_classes == 4
    assert job.dataset.open().__class__ is brought.Squares  # nothing around it
    with job.loader.open(prepared, plan) as epochs:
        order = epoch_indices(plan.order, 30, 7, 1).tolist()
        assert rows(epochs(1)) == [wanted[index] for index in order]


def test_a_dataset_that_is_an_option_stays_one(outputs):
    assert type(compose_job("dataset._target_=brought.Tells").dataset) is brought.Tells
    assert own("dataset._target_=brought.Tells")[1].label == "tells"


def test_a_dataset_that_is_there_already_is_taken_as_it_is(outputs):
    _, prepared = own("dataset._target_=brought.SAMPLES")
    assert prepared.num_samples == 5


def test_the_long_form_tells_classes_and_version(outputs):
    long = ("dataset=custom", "dataset.target=brought.Squares", "+dataset.kwargs.count=30")
    _, prepared = own(*long)
    assert prepared.fingerprint == own(SQUARES, "+dataset.count=30")[1].fingerprint
    assert own(*long, "dataset.num_classes=null")[1].num_classes is None
    assert own(*long, "dataset.num_classes=9")[1].num_classes == 9
    assert own(*long, "dataset.version=2")[1].fingerprint != prepared.fingerprint
    assert own(SQUARES)[1].fingerprint != prepared.fingerprint
    with pytest.raises(Unsupported, match=r"dataset\.target=package"):
        own("dataset=custom")


def test_a_whole_trial_with_training_on_both_of_ones_own(outputs):
    quick = ("loader._target_=brought.make_loader", "epochs=1", "trials=1", "batch_size=16")
    job, prepared = own(*quick)
    trial = run_trial(job, prepared, 0, now_ns())
    assert {name: one.samples for name, one in trial.benchmarks.items()} == {
        "traversal": COUNT,
        "training": COUNT,
    }
    assert pickle.loads(pickle.dumps((job, prepared))) == (job, prepared)


LOADERS = [
    *("plain", "generated", "each_epoch", "from_epochs", "listed", "LOADER", "Once"),
    *("make_loader", "over"),
]


@pytest.mark.parametrize("name", LOADERS)
def test_whatever_gives_batches_is_a_loader(outputs, name):
    job, prepared = own(f"loader._target_=brought.{name}", SQUARES)
    assert prepared.num_samples == COUNT
    checked(job, prepared)


@pytest.mark.parametrize("name", LOADERS[:-1])
def test_without_a_dataset_its_first_epoch_is_the_reference(outputs, name):
    job, prepared = own(f"loader._target_=brought.{name}")
    assert (prepared.label, prepared.num_samples, prepared.num_classes) == ("own data", COUNT, 4)
    assert prepared.sample == (("float32", (2, 3)), ("int64", ()))
    checked(job, prepared)


def test_loaders_that_deliver_the_same_share_a_fingerprint_whatever_order_and_batches(outputs):
    prints = {
        name: own(f"loader._target_=brought.{name}")[1].fingerprint
        for name in ("plain", "generated", "relabelled")
    }
    assert prints["plain"] == prints["generated"] != prints["relabelled"]


def test_a_loader_that_takes_a_dataset_gets_the_one_that_is_chosen(outputs):
    job, prepared = own("loader._target_=brought.over", "batch_size=100")
    assert prepared.label == "digits"
    checked(job, prepared)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("target", ["brought.over", "torch.utils.data.DataLoader"])
def test_a_sampler_brings_fastloops_order(outputs, target, workers):
    job, prepared = own(
        f"loader._target_={target}", SQUARES, "batch_size=8", f"num_workers={workers}"
    )
    wanted, plan = truth(job), job.plan(seed=3)
    with job.loader.open(prepared, plan) as epochs:
        for epoch in (0, 1, 0):
            order = epoch_indices(plan.order, COUNT, 3, epoch).tolist()
            assert rows(epochs(epoch)) == [wanted[index] for index in order]


def test_settings_go_to_the_parameters_of_their_names(outputs):
    job, prepared = own("loader._target_=brought.make_loader", "batch_size=9", "order=sequential")
    with job.loader.open(prepared, job.plan(0)) as epochs:
        sizes = [len(labels) for _, labels in epochs(0)]
        first = rows(epochs(1))
    assert sizes == [9, 9, 9, 9, 4]
    assert first == rows(brought.generated())
    fixed, _ = own("loader._target_=brought.make_loader", "+loader.batch_size=10")
    assert "batch_size" not in fixed.loader.takes


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("num_workers=2",), "num_workers=2: loader=brought.plain has no such setting"),
        (("batch_size=32",), "batch_size=32: loader=brought.plain brings its own batches"),
        (("order=sequential",), "order=sequential: loader=brought.plain brings its own order"),
        (("drop_last=true",), "drop_last=true: which samples"),
        (("transform=normalize",), "transform=normalize: loader=brought.plain has no"),
        (("collate=fast",), "collate=fast: loader=brought.plain has no"),
    ],
)
def test_what_it_has_no_parameter_for_is_unsupported(outputs, overrides, said):
    job, prepared = own("loader._target_=brought.plain", SQUARES)
    changed = compose_job("loader._target_=brought.plain", SQUARES, *overrides)
    with pytest.raises(Unsupported, match=said), job.loader.open(prepared, changed.plan(0)):
        pass


def test_its_files_are_not_known(outputs):
    job = compose_job("loader._target_=brought.plain", "cache=cold")
    with pytest.raises(Unsupported, match="cache=cold"):
        check_support(job)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("loader._target_=nope.make", "loader._target_=nope.make: .*No module named 'nope'"),
        ("loader._target_=brought.nope", "loader._target_=brought.nope: .*no attribute 'nope'"),
        ("loader._target_=nope", "No module named 'nope'"),
        ("loader._target_=brought.NUMBER", "NUMBER: it is a int, neither to be called"),
        ("loader._target_=brought.SPENT", "SPENT: an iterator has one epoch only"),
        ("loader._target_=brought", "it is a module"),
        ("dataset._target_=brought.nope", "dataset._target_=brought.nope: .*no attribute"),
        ("model._target_=brought.nope", "model._target_=brought.nope: .*no attribute"),
        (f"{SQUARES} +dataset.cuont=3", "brought.Squares: got an unexpected keyword .*cuont"),
        ("loader._target_=brought.plain +loader.x=3", "brought.plain: got an unexpected .*x"),
        ("loader._target_=brought.LOADER +loader.x=3", "it is not called, and takes no x"),
        ("dataset=custom dataset.target=brought.nope", "dataset.target=brought.nope: .*no attrib"),
    ],
)
def test_a_target_that_can_not_be_is_one_line(overrides, said):
    with pytest.raises(ConfigError, match=said) as refusal:
        compose_job(*overrides.split())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("dataset._target_=brought.Stream", "brought.Stream: it gives Stream, no map-style"),
        ("dataset._target_=brought.Endless", "brought.Endless: it has no length: TypeError"),
        ("dataset._target_=brought.nothing", "it gives tuple_iterator, no map-style"),
        ("dataset._target_=brought.fails", "brought.fails: FileNotFoundError: no such data"),
        (f"{SQUARES} +dataset.count=0", "brought.Squares: it has no samples"),
        ("dataset._target_=brought.Raises", "^sample 17: ValueError: boom$"),
        ("loader._target_=brought.no_loader", "it gives NoneType, which can't be iterated"),
        ("loader._target_=brought.fails", "brought.fails: FileNotFoundError: no such data"),
        ("loader._target_=brought.nothing", "it yields nothing"),
        ("loader._target_=brought.words", r"a batch is tensors of one length, not \(str"),
        ("loader._target_=brought.arrays", r"a batch is tensors of one length, not \(ndarray"),
        ("loader._target_=brought.forever", "it yields the same again and again, without an end"),
    ],
)
def test_data_that_can_not_be_used_is_one_line(outputs, target, said):
    with pytest.raises((BadData, Invalid), match=said):
        own(*target.split())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "it yields nothing"),
        ("forever", f"it yields more than {COUNT} samples"),
        ("on_and_on", f"it yields more than {COUNT} samples"),
        ("words", "a batch is tensors of one length"),
        ("arrays", "a batch is tensors of one length"),
        ("relabelled", "the samples or their labels are not the dataset's$"),
    ],
)
def test_a_loader_that_does_not_deliver_the_named_dataset_is_invalid(outputs, name, said):
    job, prepared = own(f"loader._target_=brought.{name}", SQUARES, "epochs=1")
    with pytest.raises(Invalid, match=said):
        run_trial(job, prepared, 0, now_ns())


def test_random_samples_are_told_as_such_and_may_be_measured_without_comparing_them(outputs):
    random = "dataset._target_=brought.Random"
    job, prepared = own(random)
    assert prepared.fingerprint == own(random)[1].fingerprint
    with pytest.raises(Invalid, match="sample 0 is another one whenever it is read; same_data="):
        checked(job, prepared)
    checked(replace(job, same_data=False), prepared)
    augmented = ("loader._target_=brought.augmented", "same_data=false")
    loose, prepared = own(*augmented)
    assert prepared.fingerprint == own(*augmented)[1].fingerprint
    checked(loose, prepared)
    strict, prepared = own(augmented[0])
    with pytest.raises(Invalid, match=r"others came in its first epoch; .*same_data=false"):
        checked(strict, prepared)
    nothing, _ = own("loader._target_=brought.nothing", SQUARES, "same_data=false")
    with pytest.raises(Invalid, match="it yields nothing"):
        checked(nothing, prepared)


def test_a_sample_that_fails_in_a_worker_only_is_named_with_what_it_says(outputs):
    job, prepared = own("dataset._target_=brought.RaisesInWorkers", "num_workers=2")
    with pytest.raises(BadData, match=r"^sample 17: ValueError: boom \(in a DataLoader worker\)$"):
        checked(job, prepared)


def test_a_sample_that_fails_in_a_worker_of_ones_own_loader_is_named_too(outputs):
    with pytest.raises(BadData, match=r"^sample 17: ValueError: boom \(in a DataLoader worker\)$"):
        own("loader._target_=brought.raising")


def test_what_a_worker_says_while_preparing_reads_like_anywhere_else(outputs):
    class WorkerError(Exception):
        def __str__(self):
            return (
                "Caught BadData in DataLoader worker process 0.\nOriginal Traceback:\n"
                "fastloop.types.BadData: sample 17: ValueError: boom\n"
            )

    def fail():
        raise WorkerError

    with pytest.raises(JobFailed, match=r"^BadData: sample 17: ValueError: boom \(in a Data"):
        Single(isolation="inline").call(fail)


def test_a_dataset_that_does_not_travel_is_decoded_in_this_process(outputs):
    _, prepared = own("dataset._target_=brought.Held")
    assert prepared.num_samples == 2500


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_its_workers_start_as_in_a_plain_script_and_end_with_it(outputs, method):
    job, prepared = own(
        *("loader._target_=brought.over", SQUARES, "num_workers=2"),
        f"multiprocessing_context={method}",
    )
    multiprocessing.resource_tracker.ensure_running()
    before = multiprocessing.get_start_method(allow_none=True)
    children = set(psutil.Process().children(recursive=True))
    with job.loader.open(prepared, job.plan(0)) as epochs:
        assert multiprocessing.get_start_method() == method
        batches = iter(epochs(0))
        assert leaves_of(next(batches)) == prepared.sample
    psutil.wait_procs(set(psutil.Process().children(recursive=True)) - children, timeout=1)
    assert set(psutil.Process().children(recursive=True)) == children
    assert multiprocessing.get_start_method(allow_none=True) == before


def test_a_changed_source_is_another_trial(outputs, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    job, prepared = own("loader._target_=brought.plain")
    result = Result(
        name="", loader="", dataset="", params={}, tags={"config_hash": ""}, environment=describe()
    )
    before = _trial_key(result, job, prepared)
    assert before == _trial_key(result, job, prepared)
    source = tmp_path / "brought.py"
    source.write_text("# another")
    monkeypatch.setattr(brought, "__file__", str(source))
    assert before != _trial_key(result, job, prepared)


def test_what_was_not_compared_is_not_ranked():
    known = replace(result_of([1.0, 2.0, 3.0], samples=10, limit=100.0), status="FINISHED")
    plain, other = (replace(known, name=f"{name} x", loader=name) for name in "ab")
    (group,) = summarize([plain, other])
    assert {row.rank for row in group.comparisons[0].rows} == {1}
    loose = [replace(one, tags=one.tags | {"unverified": "true"}) for one in (plain, other)]
    (group,) = summarize(loose)
    assert "same_data=false" in group.comparisons[0].undetermined
    assert all(row.rank is None for row in group.comparisons[0].rows)
    assert len(summarize([plain, loose[1]])) == 2


def test_torch_is_seeded_by_the_trial(outputs):
    job, prepared = own("loader._target_=brought.plain")

    def first(seed):
        with job.loader.open(prepared, job.plan(seed)) as epochs:
            return next(iter(epochs(0)))[0]

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))
