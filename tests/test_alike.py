"""Which jobs are ranked together: the same samples, and pixels that decoders agree on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest
from commands import fastloop, results
from options import compose_job, options
from pictures import crop, faces, jpeg, tree, write
from PIL import Image

from fastloop.alike import LOOKED_AT, TOLERANCE
from fastloop.caveats import caveats
from fastloop.decoders.pil import Pil
from fastloop.prepared import prepare
from fastloop.reporting.summary import summarize
from fastloop.reporting.table import format_tables
from fastloop.result import Measured, Result, Trial
from fastloop.types import BadData, Prepared


@dataclass(frozen=True)
class Brighter:
    """Pillow's pixels, every one of them by so much brighter."""

    by: int

    def library(self) -> str:
        return f"brighter by {self.by}"

    def decode(self, data: bytes) -> np.ndarray:
        return np.minimum(Pil().decode(data), 255 - self.by) + np.uint8(self.by)


@dataclass(frozen=True)
class Lenient(Brighter):
    """A picture even of what Pillow refuses."""

    by: int = 0

    def decode(self, data: bytes) -> np.ndarray:
        try:
            return super().decode(data)
        except BadData:
            return np.zeros((48, 64, 3), np.uint8)


def folder_of(root, *overrides: str):
    return compose_job("dataset=image_folder", f"dataset.root={root}", *overrides).dataset


def decoded_by(root, decoder) -> Prepared:
    return prepare(replace(folder_of(root), decoder=decoder), None)


def result(name: str, second: float, **data) -> Result:
    """Three trials of that many seconds, nearly."""
    trials = [
        Trial(
            number=number,
            seed=number,
            benchmarks={
                "traversal": Measured(
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
    told = {"status": "FINISHED", "tags": {"sweep": "a/b", "device": "cpu"}, "trials": trials}
    return Result(
        name=f"raw pictures {name}", loader="raw", dataset="pictures", params={}, **told | data
    )


def told_of(name: str, second: float, prepared: Prepared) -> Result:
    names = ("fingerprint", "content", "alike", "pixels_off", "num_samples", "sample_nbytes")
    return result(name, second, **{one: getattr(prepared, one) for one in names})


def groups(*found: Result) -> list[list[str]]:
    return [[one.name.split()[-1] for one in group.results] for group in summarize(found)]


def test_the_content_is_that_of_the_samples_wherever_they_come_from(outputs, tmp_path):
    first, copied = tree(tmp_path / "first"), tmp_path / "copied"
    shutil.copytree(first, copied)
    (copied / "cat" / "1.jpg").rename(copied / "cat" / "z.jpg")  # another place in the order
    one, same = prepare(folder_of(first), None), prepare(folder_of(copied), None)
    assert one.fingerprint != same.fingerprint
    assert one.content == same.content
    shutil.copy(first / "cat" / "1.jpg", copied / "cat" / "more.jpg")
    more = prepare(folder_of(copied), None)
    (copied / "cat" / "more.jpg").unlink()
    (copied / "cat" / "z.jpg").rename(copied / "dog" / "z.jpg")
    relabelled = prepare(folder_of(copied), None)
    resized = prepare(folder_of(first, "dataset.size=[9,9]"), None)
    assert len({one.content for one in (one, more, relabelled, resized)}) == 4


@pytest.mark.parametrize("size", ["null", "[32,24]"])
def test_all_decoders_give_one_content_of_the_photos(outputs, size):
    photos = ("dataset=photos", "dataset.count=12", "dataset.crop=[61,75]", f"dataset.size={size}")
    found = [
        prepare(compose_job(*photos, f"decoder={name}").dataset, None)
        for name in options("decoder")
    ]
    assert len({one.fingerprint for one in found}) == len(found)
    assert len({one.content for one in found}) == 1
    assert len({one.alike for one in found} - {""}) == 1
    assert {one.pixels_off for one in found} == {0}


def test_pixels_within_the_tolerance_are_ranked_together_and_said_to_differ(outputs, tmp_path):
    root = tree(tmp_path / "images")
    by = [decoded_by(root, Brighter(by)) for by in (0, TOLERANCE, TOLERANCE + 1)]
    assert len({one.content for one in by}) == 3
    assert [one.pixels_off for one in by] == [0, TOLERANCE, 0]
    assert by[0].alike == by[1].alike != ""
    assert by[2].alike == ""
    found = [told_of(f"by={place}", 1 + place, one) for place, one in enumerate(by)]
    assert groups(*found) == [["by=0", "by=1"], ["by=2"]]
    said = [[one for one in caveats(each, found) if "alike" in one] for each in found]
    assert said[0] == [
        "decoded alike, not the same: pixels differ between decoders; "
        f"{LOOKED_AT} samples are within 0 of 255 of Pillow's"
    ]
    assert f"within {TOLERANCE} of 255" in said[1][0]
    assert said[2] == []
    flagged = [replace(one, flags=said[place]) for place, one in enumerate(found[:2])]
    table = format_tables(flagged)
    assert table.count("rank  limit") == 1
    assert "raw by=0 is fastest" in " ".join(table.split())
    assert "decoded alike" in table


def test_where_all_pixels_are_the_same_nothing_is_said(outputs, tmp_path):
    root = tree(tmp_path / "images")
    by = {name: prepare(folder_of(root, f"decoder={name}"), None) for name in ("pil", "opencv")}
    found = [told_of(name, 1, one) for name, one in by.items()]
    assert groups(*found) == [["pil", "opencv"]]
    assert not [one for each in found for one in caveats(each, found) if "alike" in one]


def test_opencvs_colours_of_cmyk_are_within_the_tolerance(outputs, tmp_path):
    names = [f"{kind}/{index}.jpg" for kind in ("ink", "light") for index in range(4)]
    pictures = [crop(top=20 * index).convert("CMYK") for index in range(4)] + [crop()] * 4
    root = write(tmp_path / "images", dict(zip(names, map(jpeg, pictures), strict=True)))
    one, other = (prepare(folder_of(root, f"decoder={name}"), None) for name in ("pil", "opencv"))
    assert other.pixels_off <= TOLERANCE
    assert one.alike == other.alike != ""
    assert (one.content == other.content) == (other.pixels_off == 0)


def test_landmarks_have_a_decoder_and_tables_of_numbers_none(outputs, tmp_path):
    faced = compose_job("dataset=csv_images", f"dataset.csv_file={faces(tmp_path)}").dataset
    one, other = (prepare(replace(faced, decoder=each), None) for each in (Pil(), Brighter(1)))
    assert one.alike == other.alike != ""
    assert other.pixels_off == 1
    assert prepare(compose_job().dataset, None).alike == ""


def test_what_pillow_can_not_decode_is_not_taken_for_alike(outputs, tmp_path):
    root = tree(tmp_path / "images")
    (root / "dog" / "0.jpg").write_bytes(b"\xff\xd8\xffnothing")
    lenient = decoded_by(root, Lenient())
    assert (lenient.alike, lenient.pixels_off) == ("", 0)


def test_decoders_that_leave_out_other_samples_are_not_alike(outputs, tmp_path):
    root = tree(tmp_path / "images", 20)
    Image.open(root / "cat" / "1.jpg").save(root / "cat" / "1.png")
    tolerant = [
        prepare(folder_of(root, f"decoder={name}"), None, tolerant=True)
        for name in ("pil", "turbojpeg")
    ]
    assert [len(one.broken) for one in tolerant] == [0, 1]
    found = [told_of(str(len(one.broken)), 1, one) for one in tolerant]
    assert groups(*found) == [["0"], ["1"]]


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ("fc- fc-", ["01"]),
        ("fc- gc-", ["01"]),
        ("fc- gd-", ["0", "1"]),
        ("f-- f--", ["01"]),  # results of before there was a content
        ("f-- g--", ["0", "1"]),
        ("--- ---", ["01"]),
        ("fca gda", ["01"]),
        ("fc- gda hca", ["012"]),
        ("fc- ge- hda ica", ["023", "1"]),
    ],
)
def test_who_is_in_one_table(data, wanted):
    """Fingerprint, content and what is alike of each job, a letter each; a dash: it has none."""
    found = []
    for place, letters in enumerate(data.split()):
        fields = zip(("fingerprint", "content", "alike"), letters, strict=True)
        found.append(result(str(place), 1, **{name: one.strip("-") for name, one in fields}))
    assert sorted("".join(sorted(one)) for one in groups(*found)) == wanted


@pytest.mark.slow
def test_the_experiment_on_decoders_gives_one_ranked_table(tmp_path):
    small = ("dataset.count=8", "dataset.crop=[40,56]", "epochs=1", "trials=2")
    done = fastloop("experiment=decoders", *small, "tracker=none", "report=false", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank  limit") == 1
    found = results(tmp_path)
    assert len(found) == len(options("decoder"))
    assert all(f"raw decoder={name}" in done.stdout for name in options("decoder"))
    (group,) = summarize(found)
    assert len(group.results) == len(found)
