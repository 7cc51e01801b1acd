"""User datasets and loaders, each set by one `_target_`, without fastloop in them: my_code.py."""

from __future__ import annotations

import multiprocessing
import pickle
from dataclasses import replace

import my_code
import psutil
import pytest
import torch
from known_results import result_of
from my_code import COUNT
from options import compose_job
from torch._utils import ExceptionWrapper
from torch.utils.data import default_collate
from user_jobs import check_epochs, prepare_user_job

from fastloop.config.messages import ConfigError
from fastloop.core.index_batches import epoch_indices
from fastloop.core.machine import describe_machine
from fastloop.core.result import Result
from fastloop.core.spans import now_ns
from fastloop.core.types import BadData, Invalid, JobFailed, TimeLimit, Unsupported
from fastloop.core.user_code import LOADER_DATA, worker_error_line
from fastloop.data.digest import leaves_of
from fastloop.data.prepare_dataset import DataRequest
from fastloop.options.launcher.single import SingleLauncher
from fastloop.reporting.report_tables import overview_tables
from fastloop.reporting.summary import summarize
from fastloop.reporting.terminal_table import format_tables
from fastloop.sweep.caveats import find_caveats
from fastloop.sweep.job_identity import trial_key
from fastloop.trial.support import check_support
from fastloop.trial.timed_trial import run_trial

SQUARES = "dataset._target_=my_code.Squares"
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


@pytest.mark.parametrize("loader", ["raw", "np_memmap", "tensorclass"])
def test_user_dataset_works_with_fastloops_loaders(outputs, loader):
    job, prepared = prepare_user_job(
        f"loader={loader}", SQUARES, "+dataset.count=30", "batch_size=8"
    )
    wanted, plan = truth(job), job.plan(seed=7)
    assert len(wanted) == 30
    assert prepared.label == "Squares"
    assert prepared.num_classes == 4
    assert job.dataset.open().__class__ is my_code.Squares  # not wrapped
    with job.loader.open(prepared, plan) as epochs:
        order = epoch_indices(plan.order, 30, 7, 1).tolist()
        assert rows(epochs(1)) == [wanted[index] for index in order]


def test_user_dataset_that_is_an_option_is_not_wrapped(outputs):
    assert (
        type(compose_job("dataset._target_=my_code.OptionDataset").dataset) is my_code.OptionDataset
    )
    assert prepare_user_job("dataset._target_=my_code.OptionDataset")[1].label == "squares"


def test_user_dataset_may_be_an_existing_object(outputs):
    _, prepared = prepare_user_job("dataset._target_=my_code.SAMPLES")
    assert prepared.num_samples == 5


def test_custom_dataset_sets_classes_and_version(outputs):
    overrides = ("dataset=custom", "dataset.target=my_code.Squares", "+dataset.kwargs.count=30")
    _, prepared = prepare_user_job(*overrides)
    assert prepared.fingerprint == prepare_user_job(SQUARES, "+dataset.count=30")[1].fingerprint
    assert prepare_user_job(*overrides, "dataset.num_classes=null")[1].num_classes is None
    assert prepare_user_job(*overrides, "dataset.num_classes=9")[1].num_classes == 9
    assert prepare_user_job(*overrides, "dataset.version=2")[1].fingerprint != prepared.fingerprint
    assert prepare_user_job(SQUARES)[1].fingerprint != prepared.fingerprint
    with pytest.raises(Unsupported, match=r"dataset\.target=package"):
        prepare_user_job("dataset=custom")


def test_custom_dataset_passes_the_gate_with_any_uint8_scale(outputs):
    overrides = ("dataset=custom", "dataset.target=my_code.ScaledSamples")
    for scale in ("null", "255.0"):
        check_epochs(*prepare_user_job(*overrides, f"dataset.uint8_scale={scale}"), epochs=(0,))


def test_user_dataset_may_hold_bfloat16(outputs):
    job, prepared = prepare_user_job("dataset._target_=my_code.Bfloat16Samples")
    assert prepared.sample == (("bfloat16", (2, 3)), ("int64", ()))
    check_epochs(job, prepared, epochs=(0,))


@pytest.mark.parametrize("loader", ["raw", "np_memmap"])
def test_user_dataset_with_negative_labels_has_no_classes(outputs, loader):
    job, prepared = prepare_user_job(
        "dataset._target_=my_code.NegativeLabels", f"loader={loader}", "epochs=1"
    )
    assert prepared.num_classes is None
    check_epochs(job, prepared, epochs=(0,))
    with pytest.raises(Unsupported, match="got samples without classes"):
        run_trial(job, prepared, 0, now_ns())


def test_custom_dataset_rejects_too_few_classes(outputs):
    with pytest.raises(BadData, match=r"^Squares: its labels go up to 3, and it has 2 classes"):
        prepare_user_job(
            "dataset=custom", "dataset.target=my_code.Squares", "dataset.num_classes=2"
        )


def test_trial_trains_on_a_user_loader_and_its_data(outputs):
    quick = ("loader._target_=my_code.make_loader", "epochs=1", "trials=1", "batch_size=16")
    job, prepared = prepare_user_job(*quick)
    trial = run_trial(job, prepared, 0, now_ns())
    assert {name: measurement.samples for name, measurement in trial.benchmarks.items()} == {
        "traversal": COUNT,
        "training": COUNT,
    }
    assert pickle.loads(pickle.dumps((job, prepared))) == (job, prepared)


LOADERS = [
    *(
        "plain",
        "generate_batches",
        "each_epoch",
        "from_epochs",
        "list_batches",
        "LOADER",
        "IterableWithOpen",
    ),
    "make_loader",
    "with_sampler",
]


@pytest.mark.parametrize("name", LOADERS)
def test_user_loader_may_be_any_source_of_batches(outputs, name):
    job, prepared = prepare_user_job(f"loader._target_=my_code.{name}", SQUARES)
    assert prepared.num_samples == COUNT
    check_epochs(job, prepared)


@pytest.mark.parametrize("name", LOADERS[:-1])
def test_user_loader_without_a_dataset_is_compared_to_its_first_epoch(outputs, name):
    job, prepared = prepare_user_job(f"loader._target_=my_code.{name}")
    assert (prepared.label, prepared.num_samples, prepared.num_classes) == ("own data", COUNT, 4)
    assert prepared.sample == (("float32", (2, 3)), ("int64", ()))
    check_epochs(job, prepared)


def test_user_loaders_of_the_same_samples_share_a_fingerprint(outputs):
    fingerprints = {
        name: prepare_user_job(f"loader._target_=my_code.{name}")[1].fingerprint
        for name in ("plain", "generate_batches", "shift_labels")
    }
    assert fingerprints["plain"] == fingerprints["generate_batches"] != fingerprints["shift_labels"]


def test_user_loader_receives_the_chosen_dataset(outputs):
    job, prepared = prepare_user_job("loader._target_=my_code.with_sampler", "batch_size=100")
    assert prepared.label == "digits"
    check_epochs(job, prepared)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("target", ["my_code.with_sampler", "torch.utils.data.DataLoader"])
def test_user_loader_with_a_sampler_follows_fastloops_order(outputs, target, workers):
    job, prepared = prepare_user_job(
        f"loader._target_={target}", SQUARES, "batch_size=8", f"num_workers={workers}"
    )
    wanted, plan = truth(job), job.plan(seed=3)
    with job.loader.open(prepared, plan) as epochs:
        for epoch in (0, 1, 0):
            order = epoch_indices(plan.order, COUNT, 3, epoch).tolist()
            assert rows(epochs(epoch)) == [wanted[index] for index in order]


def test_user_loader_receives_settings_by_parameter_name(outputs):
    job, prepared = prepare_user_job(
        "loader._target_=my_code.make_loader", "batch_size=9", "order=sequential"
    )
    with job.loader.open(prepared, job.plan(0)) as epochs:
        sizes = [len(labels) for _, labels in epochs(0)]
        first = rows(epochs(1))
    assert sizes == [9, 9, 9, 9, 4]
    assert first == rows(my_code.generate_batches())
    fixed_job, _ = prepare_user_job("loader._target_=my_code.make_loader", "+loader.batch_size=10")
    assert "batch_size" not in fixed_job.loader.parameters_to_pass


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("num_workers=2",), "num_workers=2: loader=my_code.plain has no such setting"),
        (("batch_size=32",), "batch_size=32: loader=my_code.plain sets its own batch size"),
        (("order=sequential",), "order=sequential: loader=my_code.plain sets its own order"),
        (("drop_last=true",), "drop_last=true: it is not known which samples"),
        (("transform=normalize",), "transform=normalize: loader=my_code.plain has no"),
        (("collate=fast",), "collate=fast: loader=my_code.plain has no"),
    ],
)
def test_user_loader_rejects_a_setting_without_a_parameter(outputs, overrides, message):
    job, prepared = prepare_user_job("loader._target_=my_code.plain", SQUARES)
    changed_job = compose_job("loader._target_=my_code.plain", SQUARES, *overrides)
    with pytest.raises(Unsupported, match=message), job.loader.open(prepared, changed_job.plan(0)):
        pass


def test_user_loader_does_not_support_a_cold_cache(outputs):
    job = compose_job("loader._target_=my_code.plain", "cache=cold")
    with pytest.raises(Unsupported, match="cache=cold"):
        check_support(job)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("loader._target_=nope.make", "loader._target_=nope.make: .*No module named 'nope'"),
        (
            "loader._target_=my_code.nope",
            "loader._target_=my_code.nope: .*no attribute 'nope'",
        ),
        ("loader._target_=nope", "No module named 'nope'"),
        ("loader._target_=my_code.NUMBER", "NUMBER: int is neither callable nor iterable"),
        ("loader._target_=my_code.SPENT", "SPENT: an iterator has one epoch only"),
        ("loader._target_=my_code", "module is neither callable nor iterable"),
        (
            "dataset._target_=my_code.nope",
            "dataset._target_=my_code.nope: .*no attribute",
        ),
        ("model._target_=my_code.nope", "model._target_=my_code.nope: .*no attribute"),
        (
            f"{SQUARES} +dataset.cuont=3",
            r"^dataset\.cuont=3: my_code\.Squares has no argument cuont; did you mean dat",
        ),
        (
            "dataset._target_=my_code.Versions",
            r"^dataset\.version: my_code\.Versions has no default for it; add dataset\.version=<v",
        ),
        (
            "loader._target_=my_code.plain +loader.x=3",
            r"^loader\.x=3: my_code\.plain has no argument x; allowed: none",
        ),
        (
            "dataset._target_=my_code.Squares dataset.nope.x=1",
            r"^dataset\.nope=\{'x': 1\}: my_code\.Squares has no argument nope; allowed: dat",
        ),
        ("loader._target_=my_code.LOADER +loader.x=3", "it is not called, and takes no x"),
        (
            "dataset=custom dataset.target=my_code.nope",
            "dataset.target=my_code.nope: .*no attrib",
        ),
    ],
)
def test_user_target_that_is_invalid_is_reported_in_one_line(overrides, message):
    with pytest.raises(ConfigError, match=message) as error:
        compose_job(*overrides.split())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "dataset._target_=my_code.Stream",
            "my_code.Stream: it returns Stream, not a map-style",
        ),
        (
            "dataset._target_=my_code.Endless",
            "my_code.Endless: it has no length: TypeError",
        ),
        ("dataset._target_=my_code.nothing", "it returns tuple_iterator, not a map-style"),
        (
            "dataset._target_=my_code.raise_error",
            "my_code.raise_error: FileNotFoundError: no such data",
        ),
        (f"{SQUARES} +dataset.count=0", "my_code.Squares: it has no samples"),
        ("dataset._target_=my_code.FailingSamples", "^sample 17: ValueError: boom$"),
        ("loader._target_=my_code.no_loader", "it returns NoneType, which is not iterable"),
        (
            "loader._target_=my_code.raise_error",
            "my_code.raise_error: FileNotFoundError: no such data",
        ),
        ("loader._target_=my_code.nothing", "it yields nothing"),
        ("loader._target_=my_code.words", r"a batch is tensors of one length, not \(str"),
        ("loader._target_=my_code.arrays", r"a batch is tensors of one length, not \(ndarray"),
        (
            "loader._target_=my_code.forever",
            "it repeats the same samples without end",
        ),
    ],
)
def test_user_data_that_is_unusable_is_reported(outputs, target, message):
    with pytest.raises((BadData, Invalid), match=message):
        prepare_user_job(*target.split())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "it yields nothing"),
        ("forever", f"it yields more than {COUNT} samples"),
        ("endless_labels", f"it yields more than {COUNT} samples"),
        ("words", "a batch is tensors of one length"),
        ("arrays", "a batch is tensors of one length"),
        ("shift_labels", "the samples or their labels are not the dataset's$"),
    ],
)
def test_user_loader_must_deliver_the_named_dataset(outputs, name, message):
    job, prepared = prepare_user_job(f"loader._target_=my_code.{name}", SQUARES, "epochs=1")
    with pytest.raises(Invalid, match=message):
        run_trial(job, prepared, 0, now_ns())


def test_gate_reports_random_samples_unless_same_data_is_false(outputs):
    override = "dataset._target_=my_code.RandomSamples"
    job, prepared = prepare_user_job(override)
    assert prepared.fingerprint == prepare_user_job(override)[1].fingerprint
    with pytest.raises(Invalid, match="sample 0 differs every time it is read; same_data="):
        check_epochs(job, prepared)
    check_epochs(replace(job, same_data=False), prepared)
    overrides = ("loader._target_=my_code.add_noise", "same_data=false")
    unverified_job, prepared = prepare_user_job(*overrides)
    assert prepared.fingerprint == prepare_user_job(*overrides)[1].fingerprint
    check_epochs(unverified_job, prepared)
    verified_job, prepared = prepare_user_job(overrides[0])
    with pytest.raises(Invalid, match=r"its first epoch delivered other .*same_data=false"):
        check_epochs(verified_job, prepared)
    empty_job, _ = prepare_user_job("loader._target_=my_code.nothing", SQUARES, "same_data=false")
    with pytest.raises(Invalid, match="it yields nothing"):
        check_epochs(empty_job, prepared)


@pytest.mark.heavy
def test_worker_error_names_the_sample_and_its_message(outputs):
    job, prepared = prepare_user_job("dataset._target_=my_code.FailingInWorkers", "num_workers=2")
    with pytest.raises(BadData, match=r"^sample 17: ValueError: boom \(in a DataLoader worker\)$"):
        check_epochs(job, prepared)


@pytest.mark.heavy
def test_end_of_a_worker_is_told_with_its_status(outputs):
    job, prepared = prepare_user_job("dataset._target_=my_code.LeavingInWorkers", "num_workers=2")
    with pytest.raises(ChildProcessError, match=r"^a DataLoader worker ended .*, exit status 3$"):
        check_epochs(job, prepared)


def test_dataset_that_hangs_while_it_is_prepared_is_stopped(outputs):
    job = compose_job("dataset._target_=my_code.HangingSamples")
    with pytest.raises(TimeLimit, match=r"^preparing .*: no progress within 0.2 s: .*/threading"):
        DataRequest(dataset=job.dataset).prepare_within(0.2)


def test_worker_error_of_a_user_loader_names_the_sample(outputs):
    with pytest.raises(BadData, match=r"^sample 17: ValueError: boom \(in a DataLoader worker\)$"):
        prepare_user_job("loader._target_=my_code.failing_workers")


def test_worker_error_during_preparation_reads_as_elsewhere(outputs):
    class WorkerError(Exception):
        def __str__(self):
            return (
                "Caught BadData in DataLoader worker process 0.\nOriginal Traceback:\n"
                "fastloop.core.types.BadData: sample 17: ValueError: boom\n"
            )

    def fail():
        raise WorkerError

    with pytest.raises(JobFailed, match=r"^BadData: sample 17: ValueError: boom \(in a Data"):
        SingleLauncher(isolation="inline").call(fail)


@pytest.mark.parametrize("kind", [ValueError, KeyError, BadData])
def test_worker_error_of_several_lines_is_told_by_its_first_one(kind):
    """Neither by its last line, nor by a line of the error that caused it."""

    def fail():
        try:
            try:
                raise kind("another error")
            except kind as error:
                raise kind("rows differ:\n  12 in a.csv\n9 in b.csv") from error
        except kind:
            ExceptionWrapper(where="in DataLoader worker process 0").reraise()

    with pytest.raises(JobFailed) as caught:
        SingleLauncher(isolation="inline").call(fail)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{kind.__name__}: ")
    assert "rows differ:" in line
    assert line.endswith("(in a DataLoader worker)")


class PrefixedError(Exception):
    """Puts words of its own in front of any message, also of torch's."""

    def __init__(self, message):
        super().__init__(f"in shard 3: {message}")


def test_worker_error_is_known_by_torchs_words_behind_those_of_its_class():
    try:
        raise PrefixedError("no such key")
    except PrefixedError:
        wrapper = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(PrefixedError) as caught:
        wrapper.reraise()
    assert worker_error_line(caught.value) == "PrefixedError: in shard 3: no such key"
    assert worker_error_line(PrefixedError("no such key")) is None


@pytest.mark.heavy
def test_user_dataset_that_cannot_be_pickled_is_decoded_in_process(outputs):
    _, prepared = prepare_user_job("dataset._target_=my_code.UnpicklableSamples")
    assert prepared.num_samples == 2500


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_user_loader_workers_follow_the_start_method_and_end_with_it(outputs, method):
    job, prepared = prepare_user_job(
        "loader._target_=my_code.with_sampler",
        SQUARES,
        "num_workers=2",
        f"multiprocessing_context={method}",
    )
    multiprocessing.resource_tracker.ensure_running()
    before = multiprocessing.get_start_method(allow_none=True)
    children = set(psutil.Process().children(recursive=True))
    with job.loader.open(prepared, job.plan(0)) as epochs:
        assert multiprocessing.get_start_method() == method
        batches = iter(epochs(0))
        assert leaves_of(next(batches)) == prepared.sample
    psutil.wait_procs(set(psutil.Process().children(recursive=True)) - children, timeout=60)
    assert set(psutil.Process().children(recursive=True)) == children
    assert multiprocessing.get_start_method(allow_none=True) == before


@pytest.mark.heavy
def test_trial_key_changes_with_the_users_source(outputs, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    job, prepared = prepare_user_job("loader._target_=my_code.plain")
    result = Result(
        name="",
        loader="",
        dataset="",
        params={},
        tags={"config_hash": ""},
        environment=describe_machine(),
    )
    before = trial_key(result, job, prepared)
    assert before == trial_key(result, job, prepared)
    source = tmp_path / "my_code.py"
    source.write_text("# another")
    monkeypatch.setattr(my_code, "__file__", str(source))
    assert before != trial_key(result, job, prepared)


def test_unverified_results_are_not_ranked():
    known = replace(result_of([1.0, 2.0, 3.0], samples=10, limit=100.0), status="FINISHED")
    plain, other = (replace(known, name=f"{name} x", loader=name) for name in "ab")
    (group,) = summarize([plain, other])
    assert {row.rank for row in group.comparisons[0].rows} == {1}
    unverified = [
        replace(result, tags=result.tags | {"unverified": "true"}) for result in (plain, other)
    ]
    (group,) = summarize(unverified)
    assert "same_data=false" in group.comparisons[0].undetermined
    assert all(row.rank is None for row in group.comparisons[0].rows)
    assert len(summarize([plain, unverified[1]])) == 2


def own_data_result(loader, content, **changes):
    known = replace(result_of([1.0, 2.0, 3.0], samples=10, limit=100.0), status="FINISHED")
    params = {"dataset._target_": LOADER_DATA}
    data = {"dataset": "own data", "params": params, "content": content, "num_samples": 2}
    tags = {"device": "cpu"}
    name = f"{loader} own_data"
    return replace(known, **({"name": name, "loader": loader, "tags": tags} | data | changes))


def test_tables_of_own_data_name_the_loaders_and_why_they_are_not_ranked_together():
    jobs = [own_data_result(f"mine.{name}", name[0]) for name in ("a", "ab", "b", "c")]
    (compared,) = [own_data_result("raw", "c", dataset="own data", params={}, name="raw Data")]
    sweep = [*jobs, compared]
    groups = summarize(sweep)
    titles = [group.title for group in groups]
    named = ["mine.a and mine.ab", "mine.b", "mine.c"]
    assert titles == [*(f"own data of {name}" for name in named), "own data"]
    assert len(overview_tables(groups)[0].head) == 1 + len(groups)
    own = "own data: later epochs were compared with the loader's first one"
    other = "that deliver other samples"
    assert [find_caveats(job, sweep)[0] for job in jobs] == [
        *[f"{own}; not ranked with 3 {other}"] * 2,
        f"{own}; not ranked with 4 {other}",
        f"{own}; not ranked with 3 {other}; not ranked with 1 that were compared with a dataset",
    ]
    assert not [line for line in find_caveats(compared, sweep) if "own data" in line]
    table = " ".join(format_tables(sweep).split())
    assert "own data of mine.b: 2 samples, " in table
    assert table.count("device cpu, compared only with its own first epoch") == 3


def test_title_of_own_data_names_at_most_three_loaders():
    for count, title in [(3, "mine.0, mine.1 and mine.2"), (5, "mine.0, mine.1 and 3 others")]:
        (group,) = summarize([own_data_result(f"mine.{k}", "same") for k in range(count)])
        assert group.title == f"own data of {title}"


def test_trial_seeds_torch(outputs):
    job, prepared = prepare_user_job("loader._target_=my_code.plain")

    def first(seed):
        with job.loader.open(prepared, job.plan(seed)) as epochs:
            return next(iter(epochs(0)))[0]

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))
