"""Find whether a job decodes image files, and describe that decoding for the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from fastloop.core.prepared_data import PreparedData
from fastloop.core.traits import DatasetTraits, traits_of
from fastloop.trial.job import Job

FORMAT_NAMES = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WebP", ".bmp": "BMP"}
"""Ending of a file's name, in lower case -> the name of the image format."""
MOST_LISTED = 200
"""Maximum number of files that are looked at to find the commonest image format."""


def reads_images(job: Job) -> bool:
    """True if samples are image files, so that reading and decoding can be told apart."""
    return (
        traits_of(DatasetTraits, job.dataset).decodes
        and job.loader.store is None
        and hasattr(job.dataset, "open_uint8")
    )


def describe_decoding(job: Job, prepared: PreparedData) -> str:
    """The job's decoding in words, such as `JPEG decoding by Pillow`; empty if the samples are not
    image files."""
    if not reads_images(job):
        return ""
    names = islice(_list_files(prepared.files), MOST_LISTED)
    counts = Counter(FORMAT_NAMES.get(path.suffix.lower(), "image") for path in names)
    kind = counts.most_common(1)[0][0] if counts else "image"
    decoder = getattr(job.dataset, "decoder", None)
    return f"{kind} decoding by {decoder.library().split()[0]}" if decoder else f"{kind} decoding"


def _list_files(paths: tuple[Path, ...]) -> Iterator[Path]:
    """All files of these paths, in folders at any depth."""
    for path in paths:
        yield from (each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
