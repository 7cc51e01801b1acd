"""Explain why a loop over any loader takes as long as it does: `fastloop.explain(loader, step)`.

`explain_loop` measures the loop in this process, and returns its findings as a `LoopExplanation`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sized
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader  # noqa: TID251 - for isinstance

from fastloop.core import stats
from fastloop.core.device_time import synchronize
from fastloop.core.explanation import Ladder, Verdict
from fastloop.core.interleave import rounds
from fastloop.core.load_text import describe_load
from fastloop.core.machine_load import LoadSummary, LoadWatch
from fastloop.core.number_text import significant
from fastloop.core.parts import Part
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.text import wrap
from fastloop.core.time_limits import deadline_after
from fastloop.core.types import Epochs, Tree
from fastloop.explain.batch_passes import END
from fastloop.explain.explained_job import FEWEST_BATCHES, FEWEST_ROUNDS, MOST_SECONDS, WINDOW_S
from fastloop.explain.explanation_text import ladder_lines, ladder_table
from fastloop.explain.ladder import build_ladder
from fastloop.explain.loop_rungs import (
    LoaderOrFunction,
    LoopStep,
    UserLoop,
    measure_work,
    rung_notes,
    rung_openers,
)
from fastloop.explain.ready_data import MOST_READY, READY_S
from fastloop.explain.rung_passes import Round
from fastloop.explain.verdict import judge, verdict_lines
from fastloop.options.loader.user import iterable_epochs
from fastloop.processes.rank_group import resolve_device
from fastloop.reporting.notebook_html import notebook_html
from fastloop.sweep.bench_arguments import (
    check_no_dataset,
    check_numbers,
    check_seconds,
    check_step,
)
from fastloop.sweep.loader_timer import function_epochs
from fastloop.sweep.progress import round_reports

if TYPE_CHECKING:
    from pandas import DataFrame

SYNCHRONIZED = ("cpu", "cuda", "mps")
"""Types of devices with a function that waits for the device's queued work."""
SCHEMA = 1
"""Version of the format of `LoopExplanation.to_json`."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LoopExplanation:
    """The answer of `fastloop.explain` for one loop.

    print() shows the answer as text; a notebook shows it as a table.
    """

    verdict: Verdict
    """`word` names the cause, such as "step" or "decode"; `sentences` describe it."""
    ladder: Ladder
    """The parts of an epoch, with milliseconds a batch and shares of the epoch."""
    device: str
    """Device of the step, such as "cpu"."""
    window_batches: int
    """Number of batches of an epoch in each pass."""
    loader_batches_per_s: float
    """Batches per second of the loader alone, without steps."""
    notes: tuple[str, ...]
    """Sentences about the limits of the ladder, such as parts that it can't tell apart."""
    machine_load: LoadSummary | None = None
    """The load by other programs during the passes; None: not known."""

    def to_json(self) -> str:
        """The findings as JSON; those that explain.json also has are named as there."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"

    def to_frame(self) -> DataFrame:
        """A pandas DataFrame of the parts of an epoch, with the index `part`.

        Its columns are hidden_ms and exposed_ms, in milliseconds a batch, and share, share_low and
        share_high: the share of the epoch, and the ends of its 95 % interval. A value of hidden_ms
        is missing if it is not known.
        """
        import pandas as pd

        rows = [
            {
                "part": str(row.rung),
                "hidden_ms": row.hidden_ms,
                "exposed_ms": row.exposed_ms.value,
                "share": row.share.value,
                "share_low": row.share.low,
                "share_high": row.share.high,
            }
            for row in self.ladder.rows
        ]
        return pd.DataFrame(rows).set_index("part")

    def _repr_html_(self) -> str:
        first = describe_load(self.machine_load, "pass", "passes")
        return notebook_html(self.verdict.text, ladder_table(self.ladder), self.notes, first)

    def __repr__(self) -> str:
        ladder = self.ladder
        head = f"device {self.device}: {ladder.batches:,} batches an epoch, {ladder.rounds} rounds"
        rate = significant(self.loader_batches_per_s)
        load = describe_load(self.machine_load, "pass", "passes")
        rate_text = f"Without steps the loader gives {rate} batches/s."
        lines = [*wrap(load), head, "", *verdict_lines(self.verdict, rate_text), ""]
        notes = wrap(f"note: {each}" for each in self.notes)
        return "\n".join([*lines, *ladder_lines(ladder), *notes])


def explain_loop(
    loader: LoaderOrFunction,
    step: LoopStep | None = None,
    *,
    trials: int = 5,
    device: str = "auto",
    seconds: float = MOST_SECONDS,
) -> LoopExplanation:
    """The verdict and the ladder of `for batch in loader: step(batch)`, measured in this process.

    Args:
        loader: anything that can be iterated over again and again, or a function that returns an
            iterable for each epoch. If the function requires an argument, it gets the epoch's
            number. A DataLoader of a Dataset with indices is taken apart into hand-off, collate and
            decode.
        step: a function that is called many times, with each batch as it comes. The step moves the
            batch to the device, but must also take batches that are there already.
        trials: number of rounds. A round measures the loader alone, the step alone, both together
            and, if the loader is taken apart, both without some of its parts. Each of these runs a
            whole epoch or, if both together take longer than 0.5 s for it, its first batches.
        device: the device of the step: "auto", "cpu", "cuda" or "mps".
        seconds: number of seconds after which no further round begins, except the first three.

    Raises TypeError for a loader that is neither an iterable nor a function, for one that can be
    iterated over only once, and for a step that is not a function. Raises ValueError for a Dataset
    in place of a loader, for a loader without batches, for another device, and for a number below
    its least value. Raises Unsupported if this machine does not have the device.

    >>> fastloop.explain(loader, step, trials=3).verdict.word
    <Part.DECODE: 'decode'>
    """
    check_numbers(trials=trials)
    check_seconds(seconds)
    if step is None:
        allowed = "allowed is a function of a batch, as in fastloop.explain(loader, step)"
        raise TypeError(f"step=None: {allowed}")
    check_step(step)
    epochs = _repeatable(loader)
    target = _resolve(device)
    first = _run_first_epoch(epochs, step, target)
    loop = first.loop
    # If the first epoch ran as a whole, its batches were counted. Only a cut epoch needs len().
    length = None if first.is_whole else _length(loader)
    whole_batches = length or loop.batches
    openers = rung_openers(loop, loader)
    watch = LoadWatch()
    timed, without_steps_s = _run_rounds(loop, openers, trials, seconds, watch)
    load = watch.summary()
    # {}: the hidden work is unknown, as with any loader except a DataLoader. None: nothing
    # overlaps with the steps, as with a DataLoader without workers.
    work_s: dict[Part, float] | None = {}
    if isinstance(loader, DataLoader):
        work_s = measure_work(loop, loader, whole_batches) if loader.num_workers else None
    last = [*timed[0]][-1]
    shares = [
        each / times[last].seconds for each, times in zip(without_steps_s, timed, strict=True)
    ]
    ladder = build_ladder(timed, whole_batches, work_s, loader_shares=shares, device=target.type)
    notes = rung_notes(loader, openers)
    if not first.is_whole and length is None:
        notes.append(f"the length of an epoch is unknown: its first {loop.batches} batches ran")
    return LoopExplanation(
        verdict=judge(ladder, "loop", first.first_batch_s),
        ladder=ladder,
        device=str(target),
        window_batches=loop.batches,
        loader_batches_per_s=loop.batches / stats.median(without_steps_s),
        notes=tuple(notes),
        machine_load=load,
    )


def _repeatable(loader: LoaderOrFunction) -> Epochs:
    """The epochs of the loader.

    Raises TypeError if it can't be iterated over again and again, and ValueError for a Dataset.
    """
    # iter() of an iterator, such as a generator, returns the iterator itself, which then has only
    # its remaining items.
    if hasattr(loader, "__next__"):
        kind = type(loader).__name__
        allowed = "allowed: what gives a new iterator each time, as a DataLoader, a list or a"
        raise TypeError(f"loader={kind}: it can be iterated over only once; {allowed} function")
    check_no_dataset(loader)
    # iter() also accepts an object with __getitem__ alone.
    if isinstance(loader, Iterable) or hasattr(loader, "__getitem__"):
        return iterable_epochs(loader)  # pyright: ignore[reportArgumentType]
    if not callable(loader):
        kind = type(loader).__name__
        raise TypeError(f"loader={kind}: allowed: an iterable, or a function that returns one")
    return function_epochs(loader)


def _resolve(device: str) -> torch.device:
    """The device of this name; raises ValueError if its queued work can't be waited for.

    "auto" stands for the accelerator or, if there is none, for the CPU. Other names raise as in
    `resolve_device`.
    """
    if device == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        resolved = accelerator or torch.device("cpu")
    else:
        resolved = resolve_device(device)
    if resolved.type not in SYNCHRONIZED:
        allowed = ", ".join(SYNCHRONIZED)
        reason = "its steps can't be waited for, and so can't be timed"
        raise ValueError(f"device={resolved}: {reason}; allowed: {allowed}")
    return resolved


@dataclass(frozen=True, kw_only=True)
class _FirstEpoch:
    """A loop, with the findings of its first epoch."""

    loop: UserLoop
    """The loop; each of its passes runs as many batches as were counted in the first epoch."""
    first_batch_s: float
    """Seconds from opening the first epoch to its first batch."""
    is_whole: bool
    """True if the loop runs whole epochs; False if they are cut."""


def _run_first_epoch(epochs: Epochs, step: LoopStep, device: torch.device) -> _FirstEpoch:
    """Run one epoch, which is cut once WINDOW_S and more than FEWEST_BATCHES batches have passed.

    The epoch warms up the loop, and provides the ready batches for passes without the loader.
    Raises ValueError for a loader without batches, and as `_check_output` does. Raises TypeError
    for a loader that can be iterated over only once.
    """
    opened_ns = now_ns()
    host = []
    count = 0
    first_batch_s = 0.0
    is_whole = True
    begun_ns = opened_ns
    for batch in epochs(0):
        if not count:
            first_batch_s = seconds_between(opened_ns, now_ns())
            begun_ns = now_ns()
        if len(host) < MOST_READY and seconds_between(begun_ns, now_ns()) <= READY_S:
            host.append(batch)
        _check_output(step(batch))
        count += 1
        if count > FEWEST_BATCHES and seconds_between(begun_ns, now_ns()) > WINDOW_S:
            # The batch that passed the limit is not counted, because it may be the last one of the
            # epoch. Passes with it would then run whole epochs, and also end the workers.
            count -= 1
            is_whole = False
            break
    synchronize(device)
    if not count:
        raise ValueError("loader: an epoch has no batches")
    # An iterable may return the same iterator each time, as a class around a generator does. Only a
    # second epoch shows that.
    if next(iter(epochs(1)), END) is END:
        raise TypeError(
            "loader: its second epoch has no batches; it can be iterated over only once"
        )
    # The last batch of an epoch may be short.
    host = host[: max(1, len(host) - 1)]
    loop = UserLoop(epochs=epochs, step=step, device=device, host=host, batches=count)
    return _FirstEpoch(loop=loop, first_batch_s=first_batch_s, is_whole=is_whole)


def _check_output(output: Any) -> None:
    """Raise ValueError if the step's result is on a device that can't be waited for."""
    if isinstance(output, torch.Tensor):
        _resolve(str(output.device))


def _length(loader: LoaderOrFunction) -> int | None:
    """Number of batches of an epoch, as the loader reports it; None if it does not."""
    if not isinstance(loader, Sized):
        return None
    try:
        return len(loader)
    # A DataLoader has len() only if its dataset or its sampler has.
    except TypeError:
        return None


def _run_rounds(
    loop: UserLoop,
    openers: dict[Part, Callable[[int], Iterable[Tree]]],
    trials: int,
    seconds: float,
    watch: LoadWatch,
) -> tuple[list[Round], list[float]]:
    """Times of all rungs, and seconds of the loader without steps, in each round.

    openers: the result of `rung_openers`. trials: number of rounds. seconds: as in `explain_loop`.
    watch: notes the machine's load during each pass.
    """
    timed = []
    without_steps_s = []
    deadline = deadline_after(seconds)
    # The key None is the loader without steps. _run_first_epoch has used epochs 0 and 1.
    keys: dict[Part | None, int] = dict.fromkeys((*openers, None), trials)
    with round_reports(trials, "explain") as end_round:
        for number, places in rounds(keys):
            if number >= FEWEST_ROUNDS and deadline.is_over:
                break
            times = {}
            for rung in places:
                if rung is None:
                    without_steps_s.append(loop.time(loop.epochs(number + 2), loop.receive).seconds)
                else:
                    times[rung] = loop.time(openers[rung](number + 2), loop.step)
                watch.end_stretch()
            timed.append({rung: times[rung] for rung in openers})
            end_round()
    return timed, without_steps_s
