"""Jobs that are ranked together: equal samples, or pixels on which their decoders agree."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest
from commands import results, run_fastloop
from image_samples import crop, jpeg, write_class_folders, write_faces, write_files
from options import compose_job, options
from PIL import Image

from fastloop.core.prepared_data import PreparedData
from fastloop.core.result import Measurement, Result, Trial
from fastloop.core.types import BadData
from fastloop.data.decoder_agreement import COMPARED_SAMPLES, TOLERANCE
from fastloop.data.prepare_dataset import prepare
from fastloop.options.decoder.pil import PilDecoder
from fastloop.reporting.summary import summarize
from fastloop.reporting.terminal_table import format_tables
from fastloop.sweep.caveats import find_caveats


@dataclass(frozen=True)
class Brighter:
    """Decoder that returns Pillow's pixels, each brighter by a constant."""

    by: int

    def library(self) -> str:
        return f"brighter by {self.by}"

    def decode(self, data: bytes) -> np.ndarray:
        return np.minimum(PilDecoder().decode(data), 255 - self.by) + np.uint8(self.by)


@dataclass(frozen=True)
class Lenient(Brighter):
    """Decoder that returns a black image where Pillow fails."""

    by: int = 0

    def decode(self, data: bytes) -> np.ndarray:
        try:
            return super().decode(data)
        except BadData:
            return np.zeros((48, 64, 3), np.uint8)


def folder_of(root, *overrides: str):
    return compose_job("dataset=image_folder", f"dataset.root={root}", *overrides).dataset


def prepare_with(root, decoder) -> PreparedData:
    return prepare(replace(folder_of(root), decoder=decoder), None)


def result(name: str, second: float, **data) -> Result:
    """Result of eight trials, each of approximately this many seconds."""
    trials = [
        Trial(
            number=number,
            seed=number,
            benchmarks={
                "traversal": Measurement(
                    start_ns=0,
                    stop_ns=round(1e9 * second * (1 + number / 1000)),
                    epochs=1,
                    samples=100,
                    limit_samples_per_s=1e4,
                )
            },
            torch_threads=1,
            multiprocessing_context=None,
            load_average=None,
        )
        for number in range(8)
    ]
    fields = {"status": "FINISHED", "tags": {"sweep": "a/b", "device": "cpu"}, "trials": trials}
    return Result(
        name=f"raw pictures {name}", loader="raw", dataset="pictures", params={}, **fields | data
    )


def result_of_data(name: str, second: float, prepared: PreparedData) -> Result:
    names = (
        "fingerprint",
        "content",
        "decoder_equivalence_id",
        "pixels_off",
        "num_samples",
        "sample_nbytes",
    )
    return result(name, second, **{field: getattr(prepared, field) for field in names})


def groups(*jobs: Result) -> list[list[str]]:
    return [[job.name.split()[-1] for job in group.results] for group in summarize(jobs)]


def test_content_depends_on_the_samples_and_not_on_their_place(outputs, tmp_path):
    root, copied_root = write_class_folders(tmp_path / "first"), tmp_path / "copied"
    shutil.copytree(root, copied_root)
    # The renamed file takes another place in the order.
    (copied_root / "cat" / "1.jpg").rename(copied_root / "cat" / "z.jpg")
    original, moved = prepare(folder_of(root), None), prepare(folder_of(copied_root), None)
    assert original.fingerprint != moved.fingerprint
    assert original.content == moved.content
    shutil.copy(root / "cat" / "1.jpg", copied_root / "cat" / "more.jpg")
    larger = prepare(folder_of(copied_root), None)
    (copied_root / "cat" / "more.jpg").unlink()
    (copied_root / "cat" / "z.jpg").rename(copied_root / "dog" / "z.jpg")
    relabelled = prepare(folder_of(copied_root), None)
    resized = prepare(folder_of(root, "dataset.size=[9,9]"), None)
    assert len({data.content for data in (original, larger, relabelled, resized)}) == 4


@pytest.mark.parametrize("size", ["null", "[32,24]"])
def test_decoders_share_one_content_of_the_photos(outputs, size):
    photos = ("dataset=photos", "dataset.count=12", "dataset.crop=[61,75]", f"dataset.size={size}")
    prepared = [
        prepare(compose_job(*photos, f"decoder={name}").dataset, None)
        for name in options("decoder")
    ]
    assert len({data.fingerprint for data in prepared}) == len(prepared)
    assert len({data.content for data in prepared}) == 1
    assert len({data.decoder_equivalence_id for data in prepared} - {""}) == 1
    assert {data.pixels_off for data in prepared} == {0}


def test_jobs_within_the_tolerance_are_ranked_together_with_a_caveat(outputs, tmp_path):
    root = write_class_folders(tmp_path / "images")
    prepared = [prepare_with(root, Brighter(by)) for by in (0, TOLERANCE, TOLERANCE + 1)]
    assert len({data.content for data in prepared}) == 3
    assert [data.pixels_off for data in prepared] == [0, TOLERANCE, 0]
    assert prepared[0].decoder_equivalence_id == prepared[1].decoder_equivalence_id != ""
    assert prepared[2].decoder_equivalence_id == ""
    jobs = [result_of_data(f"by={place}", 1 + place, data) for place, data in enumerate(prepared)]
    assert groups(*jobs) == [["by=0", "by=1"], ["by=2"]]
    lines = [[line for line in find_caveats(job, jobs) if "equivalent" in line] for job in jobs]
    assert lines[0] == [
        "equivalent decoders: pixels differ between decoders; "
        f"{COMPARED_SAMPLES} samples are within 0 of 255 of Pillow's"
    ]
    assert f"within {TOLERANCE} of 255" in lines[1][0]
    assert lines[2] == []
    with_caveats = [replace(job, caveats=lines[place]) for place, job in enumerate(jobs[:2])]
    table = format_tables(with_caveats)
    assert table.count("rank  limit") == 1
    assert "by 0 is fastest" in " ".join(table.split())
    assert "equivalent decoders" in table


def test_jobs_with_equal_pixels_get_no_caveat(outputs, tmp_path):
    root = write_class_folders(tmp_path / "images")
    names = ("pil", "opencv")
    prepared = {name: prepare(folder_of(root, f"decoder={name}"), None) for name in names}
    jobs = [result_of_data(name, 1, data) for name, data in prepared.items()]
    assert groups(*jobs) == [["pil", "opencv"]]
    assert not [line for job in jobs for line in find_caveats(job, jobs) if "equivalent" in line]


def test_opencv_converts_cmyk_within_the_tolerance(outputs, tmp_path):
    names = [f"{kind}/{index}.jpg" for kind in ("ink", "light") for index in range(4)]
    pictures = [crop(top=20 * index).convert("CMYK") for index in range(4)] + [crop()] * 4
    root = write_files(tmp_path / "images", dict(zip(names, map(jpeg, pictures), strict=True)))
    pillow, opencv = (
        prepare(folder_of(root, f"decoder={name}"), None) for name in ("pil", "opencv")
    )
    assert opencv.pixels_off <= TOLERANCE
    assert pillow.decoder_equivalence_id == opencv.decoder_equivalence_id != ""
    assert (pillow.content == opencv.content) == (opencv.pixels_off == 0)


def test_equivalence_id_exists_for_landmarks_and_not_for_numbers(outputs, tmp_path):
    dataset = compose_job("dataset=csv_images", f"dataset.csv_file={write_faces(tmp_path)}").dataset
    pillow, brighter = (
        prepare(replace(dataset, decoder=decoder), None) for decoder in (PilDecoder(), Brighter(1))
    )
    assert pillow.decoder_equivalence_id == brighter.decoder_equivalence_id != ""
    assert brighter.pixels_off == 1
    assert prepare(compose_job().dataset, None).decoder_equivalence_id == ""


def test_landmarks_that_are_missing_agree(outputs, tmp_path):
    table = write_faces(tmp_path)
    table.write_text(table.read_text().replace("30.5", "nan"))
    faces = compose_job("dataset=csv_images", f"dataset.csv_file={table}").dataset
    assert prepare(faces, None).pixels_off == 0


def test_decoder_of_images_that_pillow_rejects_is_not_equivalent(outputs, tmp_path):
    root = write_class_folders(tmp_path / "images")
    (root / "dog" / "0.jpg").write_bytes(b"\xff\xd8\xffnothing")
    lenient = prepare_with(root, Lenient())
    assert (lenient.decoder_equivalence_id, lenient.pixels_off) == ("", 0)


def test_decoders_that_skip_other_samples_are_not_equivalent(outputs, tmp_path):
    root = write_class_folders(tmp_path / "images", 20)
    Image.open(root / "cat" / "1.jpg").save(root / "cat" / "1.png")
    tolerant = [
        prepare(folder_of(root, f"decoder={name}"), None, tolerant=True)
        for name in ("pil", "turbojpeg")
    ]
    assert [len(data.broken) for data in tolerant] == [0, 1]
    jobs = [result_of_data(str(len(data.broken)), 1, data) for data in tolerant]
    assert groups(*jobs) == [["0"], ["1"]]


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ("fc- fc-", ["01"]),
        ("fc- gc-", ["01"]),
        ("fc- gd-", ["0", "1"]),
        ("f-- f--", ["01"]),  # older results, which have no content
        ("f-- g--", ["0", "1"]),
        ("--- ---", ["01"]),
        ("fca gda", ["01"]),
        ("fc- gda hca", ["012"]),
        ("fc- ge- hda ica", ["023", "1"]),
    ],
)
def test_groups_follow_fingerprint_content_and_equivalence_id(data, wanted):
    """Fingerprint, content and equivalence id of each job, one letter each; a dash means none."""
    jobs = []
    for place, letters in enumerate(data.split()):
        fields = zip(("fingerprint", "content", "decoder_equivalence_id"), letters, strict=True)
        jobs.append(result(str(place), 1, **{name: letter.strip("-") for name, letter in fields}))
    assert sorted("".join(sorted(group)) for group in groups(*jobs)) == wanted


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.slow
def test_decoders_experiment_prints_one_ranked_table(tmp_path):
    overrides = ("dataset.count=8", "dataset.crop=[40,56]", "epochs=1", "trials=2")
    process = run_fastloop(
        "experiment=decoders", *overrides, "tracker=none", "report=false", cwd=tmp_path
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("rank  limit") == 1
    jobs = results(tmp_path)
    assert len(jobs) == len(options("decoder"))
    assert "loader raw" in process.stdout
    assert all(f"\n{name} " in process.stdout for name in options("decoder"))
    (group,) = summarize(jobs)
    assert len(group.results) == len(jobs)
