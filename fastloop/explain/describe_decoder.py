"""Names the format and the decoder of a job's image files for sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from fastloop.core.plan import PreparedData
from fastloop.explain.rungs import reads_images
from fastloop.trial.job import Job

FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WebP", ".bmp": "BMP"}
MOST_LISTED = 200
"""Number of files by which the format is judged."""


def describe_decoding(job: Job, prepared: PreparedData) -> str:
    """For example `JPEG decoding by Pillow`; empty if samples are no image files."""
    if not reads_images(job):
        return ""
    names = islice(_list_files(prepared.files), MOST_LISTED)
    counts = Counter(FORMATS.get(path.suffix.lower(), "image") for path in names)
    kind = counts.most_common(1)[0][0] if counts else "image"
    decoder = getattr(job.dataset, "decoder", None)
    return f"{kind} decoding by {decoder.library().split()[0]}" if decoder else f"{kind} decoding"


def _list_files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        yield from (each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
