"""What a reader has to know before trusting a job's figures, from its raw values: flags, never
deletions."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop import flags
from fastloop.alike import LOOKED_AT
from fastloop.cache_state import cache_warnings
from fastloop.own_loader import ITS_OWN
from fastloop.result import Attribution, Result, measured, metrics, world_size

LARGE_WEIGHTS = 20_000_000
"""Of one layer; all of ResNet-18 has 11 million."""
FLOAT_BYTES = 4


def caveats(result: Result, sweep: Sequence[Result]) -> list[str]:
    """One short text a caveat; `sweep` is all jobs that ran beside it."""
    if not result.trials:
        return []
    found = [*_of_the_machine(result, sweep), *cache_warnings(result)]
    if result.skipped:
        found.append(f"skipped: {len(result.skipped)} samples, the first: {result.skipped[0]}")
    if result.params.get("collate") == "pad":
        mean = f"{result.sample_nbytes:,} bytes a sample, the mean without padding"
        found.append(f"padded: bytes and limit are told of {mean}")
    if "concurrent" in result.tags:
        found.append("concurrent: other work ran beside it (allow_concurrent=true)")
    if "unverified" in result.tags:
        found.append("unverified: its samples were counted and not compared (same_data=false)")
    found += [*_decoded_alike(result, sweep), *_own_batches(result), *_large_toynet(result)]
    others = [one for one in sweep if one.trials and one is not result]
    if others and all(len(names) == 1 for names in result.rounds):
        found.append("not interleaved: a busy minute of the machine has hit one job alone")
    sessions = {trial.session_ms for one in sweep for trial in one.trials}
    if len(sessions) > 1:
        found.append(f"resumed: the sweep's trials were run in {len(sessions)} sessions")
    for benchmark in result.trials[0].benchmarks:
        seconds = [one.seconds for one in measured(result, benchmark)]
        found += [f"{benchmark}: {one}" for one in flags.of_trials(seconds=seconds)]
    workers = int(result.params.get("num_workers") or 0)
    for benchmark, seen in result.attribution.items():
        waits = flags.of_waits(wait_s=_of_first_rank(seen), num_workers=workers)
        found += [f"{benchmark}: {one}" for one in waits]
    return found


def _of_first_rank(seen: Attribution) -> list[float]:
    """Its waits, in order: those of the others follow, and their workers' turns begin anew."""
    return seen.wait_s[: seen.ranks[0].batches] if seen.ranks else seen.wait_s


def _decoded_alike(result: Result, sweep: Sequence[Result]) -> list[str]:
    """Decoders whose pixels differ a little are ranked together."""
    others = [one for one in sweep if one.trials and one.alike and one.alike == result.alike]
    if all(one.content == result.content for one in others):
        return []
    said = f"{LOOKED_AT} samples are within {result.pixels_off} of 255 of Pillow's"
    return [f"decoded alike, not the same: pixels differ between decoders; {said}"]


def _own_batches(result: Result) -> list[str]:
    """A loader of one's own may cut its epochs into other batches than it was asked for."""
    if str(result.params.get("loader._target_", "fastloop.")).startswith("fastloop."):
        return []
    size, ranks, found = result.params["batch_size"], world_size(result), []  # a short one each
    for name, seen in result.attribution.items():
        one = measured(result, name)[0]
        delivered, batches = one.samples // one.epochs, len(seen.wait_s)
        told = f"{name}: {batches:,} batches for {delivered:,} samples"
        if size == ITS_OWN:
            found.append(f"{told}, of its own")
        elif not delivered // int(size) <= batches < -(-delivered // int(size)) + ranks:
            found.append(f"{told}: batch_size={size} is not what it makes")
    return found


def _large_toynet(result: Result) -> list[str]:
    """Its first layer takes every value of a sample: of photographs that is most of the work."""
    hidden = result.params.get("model.hidden")
    modelled = {"training", "inference"} & {*result.trials[0].benchmarks}
    if result.params.get("model") != "toynet" or not hidden or not modelled:
        return []
    weights = result.sample_nbytes // FLOAT_BYTES * int(hidden)
    if weights < LARGE_WEIGHTS:
        return []
    told = f"{weights / 1e6:.0f} million parameters in its first layer, as samples are large"
    return [f"model=toynet: {told}; see model=resnet18"]


def _of_the_machine(result: Result, sweep: Sequence[Result]) -> list[str]:
    """A load average looks back a minute, in which other jobs of the sweep have run."""
    busy = [value for one in sweep for name, value in metrics(one).items() if "cpu_cores" in name]
    return flags.of_machine(
        load_averages=[trial.load_average for trial in result.trials],
        own_cores=max(busy, default=0.0),
        num_workers=int(result.params.get("num_workers") or 0),
        torch_threads=result.trials[0].torch_threads,
        usable_cores=result.environment.get("cores_usable") or 1,
    )
