"""Caveats of a job's data, one short line each: its samples, and how they were compared."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.core.result import Result, measurements
from fastloop.data.decoder_agreement import COMPARED_SAMPLES, TOLERANCE
from fastloop.reporting.comparable import brings_data, delivers_same
from fastloop.sweep.request import LOADER_BATCH_SIZE


def data_caveats(result: Result, sweep: Sequence[Result]) -> list[str]:
    """Caveats of the job's data, given the results of all jobs of its sweep."""
    lines = []
    if result.skipped:
        lines.append(f"skipped: {len(result.skipped)} samples, the first: {result.skipped[0]}")
    if "unverified" in result.tags:
        lines.append("unverified: samples were counted but not compared (same_data=false)")
    elif result.random:
        how = "compared with generators seeded by their index, outside of the timed epochs"
        lines.append(f"random samples: {how}")
    elif result.compared_crops:
        how = f"labels of all, pixels of {result.compared_crops} an epoch within {TOLERANCE} of 255"
        lines.append(f"crops: drawn by seed, epoch and index; compared: {how}")
    lines += [*_own_data_caveats(result, sweep), *_decoder_caveats(result, sweep)]
    return [*lines, *_batch_size_caveats(result), *_short_batch_caveats(result)]


def _short_batch_caveats(result: Result) -> list[str]:
    """The caveat of epochs of a single batch, with fewer samples than batch_size."""
    size = result.params.get("batch_size")
    if not isinstance(size, int) or not 0 < result.num_samples < size:
        return []
    return [f"one short batch: batch_size={size}, and an epoch has {result.num_samples:,} samples"]


def _own_data_caveats(result: Result, sweep: Sequence[Result]) -> list[str]:
    """The caveat of a loader that brings its own data, with the jobs it can't be ranked with."""
    if not brings_data(result):
        return []
    others = [other for other in sweep if other.trials and other is not result]
    reasons = {
        "deliver other samples": [o for o in others if not delivers_same(result, o)],
        "were compared with a dataset": [
            o for o in others if delivers_same(result, o) and not brings_data(o)
        ],
    }
    parts = [f"not ranked with {len(jobs)} that {why}" for why, jobs in reasons.items() if jobs]
    return ["; ".join(["own data: compared only with its own first epoch", *parts])]


def _decoder_caveats(result: Result, sweep: Sequence[Result]) -> list[str]:
    """The caveat of jobs that are ranked together although their decoders' pixels differ a
    little."""
    # An empty id is of a dataset without such decoders, which equals no other.
    same_id = result.decoder_equivalence_id
    others = [job for job in sweep if job.trials and same_id == job.decoder_equivalence_id != ""]
    if all(other.content == result.content for other in others):
        return []
    compared = f"{COMPARED_SAMPLES} samples are within {result.pixels_off} of 255 of Pillow's"
    return [f"equivalent decoders: pixels differ between decoders; {compared}"]


def _batch_size_caveats(result: Result) -> list[str]:
    """Caveats of a user's loader that sets the sizes of its batches itself."""
    if result.params.get("batch_size") != LOADER_BATCH_SIZE:
        return []
    lines = []
    # The instrumented pass has a wait for each batch, and so tells their number.
    for name, attribution in result.attribution.items():
        measurement = measurements(result, name)[0]
        samples, batches = measurement.samples // measurement.epochs, len(attribution.wait_s)
        counts = f"{name}: {batches:,} batches for {samples:,} samples"
        lines.append(f"{counts}, the loader's own batch size")
    return lines
