"""Jobs without a limit: where files are decoded, of which nothing is known, no limit is shown."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace

import pytest
from image_samples import write_class_folders
from known_results import result_of
from options import compose_job, options

from fastloop.core.result import Result
from fastloop.core.result_io import load, save
from fastloop.core.spans import now_ns
from fastloop.core.tracked_metrics import metrics
from fastloop.core.traits import DatasetTraits, traits_of
from fastloop.core.types import option
from fastloop.data.image_files import LabelledImages
from fastloop.data.prepare_dataset import prepare
from fastloop.options.dataset.image_folder import ImageFolder
from fastloop.options.decoder.pil import PilDecoder
from fastloop.reporting.outcome_sentences import verdict
from fastloop.reporting.pictures import pictures
from fastloop.reporting.report_files import trials_csv
from fastloop.reporting.report_tables import ranking_table
from fastloop.reporting.summary import summarize
from fastloop.reporting.terminal_table import format_tables
from fastloop.sweep.merge_ranks import merge_trials
from fastloop.trial.timed_trial import run_trial

SHORT = ("benchmark=traversal", "epochs=1", "batch_size=4")


def without_limit() -> Result:
    result = replace(result_of([1.0, 1.1], 10, 20.0), tags={"device": "cpu"}, status="FINISHED")
    trials = [
        replace(trial, benchmarks={"traversal": replace(window, limit_samples_per_s=None)})
        for trial in result.trials
        for window in trial.benchmarks.values()
    ]
    return replace(result, trials=trials)


@dataclass(frozen=True)
class OpaqueSamples:
    """Samples that don't tell their files."""

    samples: LabelledImages

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int):
        return self.samples[index]


@option
class OpaqueFolder(ImageFolder):
    """A dataset that decodes files, of which the limit does not know how."""

    def open(self) -> OpaqueSamples:
        return OpaqueSamples(super().open())


@pytest.mark.parametrize(("cls", "has_limit"), [(OpaqueFolder, False), (ImageFolder, True)])
def test_only_a_dataset_that_does_not_show_its_files_has_no_limit(
    outputs, tmp_path, cls, has_limit
):
    write_class_folders(tmp_path / "images")
    dataset = cls(root=str(tmp_path / "images"), size=(16, 16), decoder=PilDecoder())
    job = replace(compose_job(*SHORT, "loader=raw", "min_window_s=0"), dataset=dataset)
    trial = run_trial(job, prepare(dataset, None, False), 0, now_ns())
    for tried in (trial, merge_trials([trial, trial])):
        measured = tried.benchmarks["traversal"]
        assert (measured.limit_samples_per_s is not None) == has_limit
        assert (measured.limit_origin is not None) == has_limit
        assert (measured.limit_fraction is not None) == has_limit


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("dataset", "loader", "kind"),
    [
        ("dataset._target_=my_code.Squares", "loader=raw", None),
        ("dataset._target_=my_code.Squares", "loader=np_memmap", "rows"),
        ("dataset=synthetic dataset.count=40", "loader=raw", None),
        ("dataset=digits", "loader=raw", "rows"),
        ("dataset=digits", "loader._target_=torch.utils.data.DataLoader", None),
        ("dataset=tokens dataset.num_tokens=2000 dataset.block_size=8", "loader=raw", None),
    ],
)
def test_rows_are_a_limit_only_of_loaders_that_gather_rows(prepared_job, dataset, loader, kind):
    job, prepared = prepared_job(*SHORT, "min_window_s=0", *dataset.split(), loader)
    measured = run_trial(job, prepared, 0, now_ns()).benchmarks["traversal"]
    assert (measured.limit_origin and measured.limit_origin.kind) == kind


def test_no_share_of_a_limit_is_shown_without_a_limit(tmp_path):
    save(without_limit(), tmp_path)
    result = load(tmp_path)
    assert "traversal/limit_fraction" not in metrics(result)
    assert metrics(result)["traversal/seconds_mean"] == pytest.approx(1.05)
    (group,) = summarize([result])
    (comparison,) = group.comparisons
    assert "what the machine can do" not in verdict(comparison)
    assert "%" not in format_tables([result]).splitlines()[3]
    assert "limit, %" not in ranking_table(comparison).head
    assert "limit" not in [picture.name.split("-")[1] for picture in pictures(comparison)]
    (first, _) = csv.DictReader(trials_csv([result]).splitlines())
    assert first["limit_fraction"] == ""


def test_a_job_without_a_limit_beside_one_with_a_limit():
    other = replace(result_of([1.0, 1.2], 10, 20.0), name="c b", loader="c", status="FINISHED")
    results = [without_limit(), replace(other, tags={"device": "cpu"})]
    (comparison,) = summarize(results)[0].comparisons
    column = ranking_table(comparison).head.index("limit, %")
    assert {row[0]: row[column] for row in ranking_table(comparison).rows} == {
        "a": "\u2014",
        "c": "45.8",
    }
    ends = {line.split()[0]: line.split()[-2:] for line in format_tables(results).splitlines()[3:5]}
    assert ends == {"a": ["-", "-"], "c": ["45.8", "%"]}


@pytest.mark.parametrize("share", [0.008, 0.4])
def test_limits_are_drawn_unless_all_bars_would_be_too_short(share):
    result = result_of([1.0, 1.0], 10, 10 / share)
    (comparison,) = summarize([replace(result, status="FINISHED")])[0].comparisons
    drawn = {picture.name: picture.figure for picture in pictures(comparison)}
    assert ("traversal-limit" in drawn) == (share > 0.05)
    for figure in (figure for name, figure in drawn.items() if name == "traversal-limit"):
        assert figure.axes[0].get_xlim()[1] >= 100


@pytest.mark.parametrize(
    ("trait", "names"),
    [
        ("decodes", ["csv_images", "image_folder", "photos", "webdataset"]),
        ("gathers", ["digits", "fashion_mnist", "integers", "mydataset", "table"]),
    ],
)
def test_datasets_declare_the_kind_of_their_work(trait, names):
    declaring = [
        name
        for name in options("dataset")
        if getattr(traits_of(DatasetTraits, compose_job(f"dataset={name}").dataset), trait)
    ]
    assert declaring == names
