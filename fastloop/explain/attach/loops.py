"""Find a script's loops over its DataLoaders, and how the time of each divides into its parts.

A part is the step, its wait for cores (contention), or one reason why the loop waits for a batch,
such as decoding its samples (see PARTS).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from fastloop.core.parts import Part
from fastloop.core.stats import BOUNDS, FEWEST_FOR_INTERVAL, Estimate
from fastloop.explain.attach.attribution import (
    START_UP,
    attribute_waits,
    makers_of_pass,
    time_behind_order,
)
from fastloop.explain.attach.loop_passes import (
    LoaderPass,
    describe_loaders,
    describe_passes,
    find_passes,
)
from fastloop.explain.attach.loop_usage import LoopUsage, collect_usage
from fastloop.explain.attach.recorded_processes import MadeBatch, ProcessRecords
from fastloop.explain.attach.step_lines import StepLines, find_step_lines

# Successive batches resemble each other and are not independent measurements. Intervals are
# therefore over whole passes or, if there are few, over blocks of successive batches (a block
# bootstrap).
BLOCKS = 20
"""Number of blocks of successive batches if there are fewer passes than FEWEST_PASSES."""
FEWEST_PASSES = 5
"""From this number of passes on, each pass is a block."""
RESAMPLES = 2000
"""Number of resamples of the bootstrap."""
FEWEST_LATER = 2
"""Minimum number of batches after a pass's first one from which the usual wait is estimated. The
excess of the first wait over the usual wait counts as start-up."""
PARTS = (
    *(Part.STEP, Part.CONTENTION, Part.START_UP, Part.HAND_OFF, Part.COLLATE, Part.TRANSFORM),
    Part.DECODE,
)
"""Parts of a loop's time, in the order of a ladder."""
OF_STEPS = (Part.STEP, Part.CONTENTION)
"""The parts in which the loop has a batch: the step itself, and the time in which the step waits
for cores that workers use."""
LOOP_FACTS = (
    *("type", "place", "made_at", "dataset", "num_samples", "sampler", "batch_size"),
    "num_workers",
)
"""Facts that all passes of a loop have in common."""


class FoundPass(NamedTuple):
    """A pass over a DataLoader, and the facts about the DataLoader."""

    facts: dict[str, Any]
    loader_pass: LoaderPass


@dataclass(frozen=True, kw_only=True)
class Loop:
    """All passes, in all processes, at one place over DataLoaders that have equal LOOP_FACTS."""

    facts: dict[str, Any]
    """The recorded facts about the DataLoader, see loader_facts.py."""
    passes: tuple[LoaderPass, ...]
    waits_ns: np.ndarray
    """int64 (batches, WAIT_PARTS): the wait for each batch, by part. The excess of a pass's first
    wait over the usual one is in the column of start-up."""
    steps_ns: np.ndarray
    """int64 (batches,): the time of the step on each batch."""
    pass_of: np.ndarray
    """int64 (batches,): the index in `passes` of each batch's pass."""
    starts_ns: np.ndarray
    """int64 (passes,): the time of iter() plus that of the next() that finds no more batches."""
    transform_share: float | None
    """Share of the time in the dataset that its transform takes; None: it is not known."""
    made: tuple[MadeBatch, ...]
    """The batches of these passes for which it was recorded how they were made."""
    no_store: str = ""
    """The reason why the samples can't be kept in a store; empty if none was found."""
    usage: LoopUsage = field(default_factory=LoopUsage)
    step_lines: StepLines = field(default_factory=StepLines)
    blocked_ns: int = 0
    """Time of the waits in which a later batch was ready."""
    other_cores: float = 0.0
    """Number of cores that other programs took while the script ran; 0 if it is not known."""
    has_twin: bool = False
    """True if another loop has the same class of DataLoader and the same place. `name` then adds
    the line that makes the DataLoader, and its number of samples, as far as they are known."""
    rank: int | None = None
    """The rank, if these are the passes of one rank out of several; otherwise None."""
    ranks: tuple[Loop, ...] = ()
    """The loop of each rank, if several ranks have passes here; otherwise empty."""

    @property
    def seconds(self) -> float:
        """Time in the loops, of all ranks together: waits, steps, starts and ends."""
        return float(self.waits_ns.sum() + self.steps_ns.sum() + self.starts_ns.sum()) / 1e9

    @property
    def batches(self) -> int:
        """Number of batches with a step that has ended."""
        return len(self.steps_ns)

    @property
    def loaders(self) -> int:
        """Number of DataLoaders that were iterated over: one for each pass if each has its own."""
        return len({(each.process_id, each.loader) for each in self.passes})

    @property
    def name(self) -> str:
        """The loader's class, and the place of the loop in the script."""
        where = _add_place(self.facts["type"], self.facts["place"])
        if self.has_twin:
            made_at = self.facts.get("made_at")
            samples = self.facts.get("num_samples")
            of_line = f"of line {made_at.rpartition(':')[2]}" if made_at else ""
            count = "" if samples is None else f"{samples:,} samples"
            # Neither is known of an iterable that is not a DataLoader.
            told = ", ".join(filter(None, (of_line, count)))
            where += f" ({told})" if told else ""
        whose = f" in {len(self.ranks)} ranks" if self.ranks else ""
        return where + (whose if self.rank is None else f" in rank {self.rank}")

    @property
    def coverage(self) -> float:
        """Share of the wall time of the loop's passes for which there are events: waits, steps,
        starts and ends, also those of loops inside of steps."""
        wall_ns = sum(each.stop_ns - each.start_ns for each in self.passes)
        return sum(each.covered_ns for each in self.passes) / wall_ns


def find_loops(records: Sequence[ProcessRecords], other_cores: float) -> list[Loop]:
    """The loops of all processes, the longest first.

    other_cores: number of cores that other programs took while the script ran.
    """
    groups: dict[tuple[Any, ...], list[FoundPass]] = defaultdict(list)
    for process in records:
        loaders = describe_loaders(process)
        for each in find_passes(process):
            if found := loaders.get(each.loader):
                facts = found | {"place": each.place}
                # A script may make a new DataLoader for each epoch, and several ranks run the same
                # line: these are passes of one loop. Loops over several DataLoaders may share a
                # line of a function, such as those of training and validation.
                groups[tuple(facts.get(name) for name in LOOP_FACTS)].append(FoundPass(facts, each))
    _drop_glances(groups)
    loops = [_with_ranks(group, records, other_cores) for group in groups.values()]
    # Two loops have the same name if they share a line, as in zip(photos, paintings), or as
    # training and validation do in one function.
    names = Counter(loop.name for loop in loops)
    loops = [replace(loop, has_twin=names[loop.name] > 1) for loop in loops]
    return sorted(loops, key=lambda loop: -loop.seconds)


def _drop_glances(groups: dict[tuple[Any, ...], list[FoundPass]]) -> None:
    """Remove loops of one pass with a single batch, such as next(iter(loader)), if their DataLoader
    has another loop."""
    owners = {
        key: {(found.loader_pass.process_id, found.loader_pass.loader) for found in group}
        for key, group in groups.items()
    }
    for key, group in list(groups.items()):
        others = set().union(*(owners[each] for each in groups if each != key))
        is_glance = len(group) == 1 and len(group[0].loader_pass.batches) == 1
        if is_glance and owners[key] <= others:
            del groups[key]


def find_begun(records: Sequence[ProcessRecords], loops: Sequence[Loop]) -> tuple[str, ...]:
    """A sentence about each loop over a DataLoader of which only the beginning was seen."""
    seen = _loaders_of(loops)
    sentences: dict[str, None] = {}
    for process in records:
        loaders = describe_loaders(process)
        for number, fact in describe_passes(process).items():
            if (process.process_id, fact["loader"]) in seen or fact["loader"] not in loaders:
                continue
            name = _add_place(loaders[fact["loader"]]["type"], fact["place"])
            has_batch = any(event.part is Part.WAIT for event in process.by_pass.get(number, ()))
            how = (
                "got its first batch, and asked for no other"
                if has_batch
                else "ended before its first batch was made"
            )
            sentences[f"The loop over {name} began: it {how}"] = None
    return tuple(sentences)


def _loaders_of(loops: Sequence[Loop]) -> set[tuple[int, int]]:
    """The DataLoaders of the loops, each as its process id and its number in that process."""
    return {(each.process_id, each.loader) for loop in loops for each in loop.passes}


def find_unseen(records: Sequence[ProcessRecords], loops: Sequence[Loop]) -> tuple[str, ...]:
    """Names of the DataLoaders that were made, but over which no loop has begun."""
    begun = {
        (process.process_id, fact["loader"])
        for process in records
        for fact in describe_passes(process).values()
    }
    seen = _loaders_of(loops) | begun
    names: Counter[str] = Counter()
    for process in records:
        made = [fact for fact in process.facts if "made" in fact]
        is_seen = {fact["made"]: (process.process_id, fact["made"]) in seen for fact in made}
        # A library, such as accelerate, makes a DataLoader of its own from that of the script. The
        # script's is then used, although no loop runs over it: both have the same dataset.
        used = {fact["dataset_id"] for fact in made if is_seen[fact["made"]]}
        for fact in made:
            if not is_seen[fact["made"]] and fact["dataset_id"] not in used:
                names[_add_place(fact["type"], fact["place"])] += 1
    return tuple(
        name if count == 1 else f"{name} ({count} of them)" for name, count in names.items()
    )


def _add_place(kind: str, place: str) -> str:
    """The name of a loader's class with a place in the script, such as `DataLoader at a.py:3`."""
    return f"{kind} at {place}" if place else kind


def share_of_parts(loop: Loop) -> dict[Part, Estimate]:
    """The share of each part in a loop's time, with its 95 % interval by a bootstrap, or with the
    range over the blocks if there are too few."""
    blocks, fixed = _blocks(loop)
    totals = blocks.sum(0) + fixed
    picks = np.random.default_rng(0).integers(len(blocks), size=(RESAMPLES, len(blocks)))
    drawn = blocks[picks].sum(1) + fixed
    shares = drawn / drawn.sum(1, keepdims=True)
    is_interval = len(blocks) >= FEWEST_FOR_INTERVAL
    # If there are too few blocks for a bootstrap, the range over the blocks takes its place. Each
    # block gets an equal part of the starts.
    if not is_interval:
        parts = blocks + fixed / len(blocks)
        shares = parts / parts.sum(1, keepdims=True)
    low, high = np.percentile(shares, BOUNDS if is_interval else (0, 100), axis=0)
    return {
        part: Estimate(
            value=float(totals[place] / totals.sum()),
            low=float(low[place]),
            high=float(high[place]),
            is_interval=is_interval,
        )
        for place, part in enumerate(PARTS)
    }


def wait_share(shares: Mapping[Part, Estimate]) -> Estimate:
    """The share of a loop's time outside of its steps."""
    steps = [shares[part] for part in OF_STEPS if part in shares]
    return Estimate(
        value=1 - sum(each.value for each in steps),
        low=1 - sum(each.high for each in steps),
        high=1 - sum(each.low for each in steps),
        is_interval=steps[0].is_interval,
    )


def steady_step_ms(loop: Loop) -> float:
    """Median time of a step."""
    return float(np.median(loop.steps_ns)) / 1e6


def _build_loop(
    group: Sequence[FoundPass], records: Sequence[ProcessRecords], other_cores: float
) -> Loop:
    """The loop that consists of these passes, with its times and usage from the records."""
    passes = tuple(found.loader_pass for found in group)
    makers = [makers_of_pass(each, records) for each in passes]
    waits = [
        _move_start_up(attribute_waits(each, of_pass))
        for each, of_pass in zip(passes, makers, strict=True)
    ]
    made = tuple(batch for of_pass in makers for maker in of_pass for batch in maker.made)
    return Loop(
        facts=group[0].facts,
        passes=passes,
        waits_ns=np.concatenate(waits),
        steps_ns=np.concatenate([np.array(each.step_ns, np.int64) for each in passes]),
        pass_of=np.repeat(np.arange(len(passes)), [len(each.batches) for each in passes]),
        starts_ns=np.array([each.iter_ns + each.end_ns for each in passes], np.int64),
        transform_share=_transform_share(made),
        made=made,
        no_store=_find_no_store(passes, records),
        usage=collect_usage(passes, records),
        step_lines=find_step_lines(passes, records),
        blocked_ns=sum(
            time_behind_order(each, of_pass) for each, of_pass in zip(passes, makers, strict=True)
        ),
        other_cores=other_cores,
    )


def _find_no_store(passes: Sequence[LoaderPass], records: Sequence[ProcessRecords]) -> str:
    """The reason why a store can't keep the samples of these passes; empty if none was found."""
    reasons = {
        (process.process_id, fact["samples_of"]): fact["no_store"]
        for process in records
        for fact in process.facts
        if fact.get("no_store")
    }
    keys = (
        (process_id, each.number_by_makers) for each in passes for process_id in each.maker_pids
    )
    return next((reasons[key] for key in keys if key in reasons), "")


def _with_ranks(
    group: Sequence[FoundPass], records: Sequence[ProcessRecords], other_cores: float
) -> Loop:
    """The loop over the passes of all ranks; if there are several, with the loop of each rank."""
    loop = _build_loop(group, records, other_cores)
    ranks_of_passes = [found.facts["rank"] for found in group]
    numbers = sorted({int(rank) for rank in ranks_of_passes if rank is not None})
    if len(numbers) < 2:
        return loop
    ranks = []
    for rank in numbers:
        own = [found for found in group if found.facts["rank"] == str(rank)]
        ranks.append(replace(_build_loop(own, records, other_cores), rank=rank))
    return replace(loop, facts=loop.facts | {"rank": None}, ranks=tuple(ranks))


def _move_start_up(waits: np.ndarray) -> np.ndarray:
    """The waits of a pass, with the excess of the first one over the median as start-up."""
    if len(waits) <= FEWEST_LATER:
        return waits
    first = waits[0]
    usual = np.median(waits[1:].sum(1))
    if (first_ns := first.sum()) > usual:
        # The usual part of the first wait keeps the proportions of its parts. Time that was
        # attributed to the start of a worker is start-up in any case.
        rest = first * (usual / first_ns)
        rest[START_UP] = 0
        waits[0] = rest
        waits[0, START_UP] = first_ns - waits[0].sum()
    return waits


def _transform_share(made: Sequence[MadeBatch]) -> float | None:
    """The transform's share of the time in the dataset; None if no samples were timed."""
    timed = [each for each in made if each.has_samples]
    in_dataset = sum(each.collate_ns - each.start_ns for each in timed)
    transform_ns = sum(each.transform_ns for each in timed)
    return min(1.0, transform_ns / in_dataset) if in_dataset else None


def _blocks(loop: Loop) -> tuple[np.ndarray, np.ndarray]:
    """Nanoseconds of each block, (blocks, PARTS), and nanoseconds outside of blocks, (PARTS,)."""
    parts = _parts_of_batches(loop)
    starts = np.zeros((len(loop.passes), len(PARTS)))
    starts[:, PARTS.index(Part.START_UP)] = loop.starts_ns
    # Each pass is a block, with its own start. The starts of few passes belong to no block of
    # batches: they are added to every resample as they are.
    if len(loop.passes) >= FEWEST_PASSES:
        for number in range(len(loop.passes)):
            starts[number] += parts[loop.pass_of == number].sum(0)
        return starts, np.zeros(len(PARTS))
    pieces = np.array_split(parts, min(BLOCKS, len(parts)))
    return np.stack([piece.sum(0) for piece in pieces]), starts.sum(0)


def _parts_of_batches(loop: Loop) -> np.ndarray:
    """Nanoseconds of each batch, float (batches, PARTS)."""
    decode, collate, hand_off, start_up = loop.waits_ns.T
    transform = decode * (loop.transform_share or 0.0)
    contention = loop.steps_ns * loop.usage.contention(loop.other_cores)
    step = loop.steps_ns - contention
    parts = [step, contention, start_up, hand_off, collate, transform, decode - transform]
    return np.stack(parts, axis=1).astype(float)
