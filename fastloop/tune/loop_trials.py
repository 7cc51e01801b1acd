"""Run the trials of `fastloop.tune`: time a user's own loader in this process with other settings.

`LoopTrials.measure` is one trial. If epochs are long, a trial reads only the first part of an
epoch, for about `LoopTrials.epoch_s` seconds. `LoopTrials.read_present`, which comes before the
trials, reads such a part with the present loader. The data of other configurations is compared with
it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from fastloop.core.machine_load import LoadWatch
from fastloop.core.time_limits import deadline_after
from fastloop.core.types import Epochs, Invalid, Tree
from fastloop.core.user_code import error_line
from fastloop.data.digest import (
    Digest,
    describe_difference,
    epoch_hashes,
    reference_digest,
)
from fastloop.sweep.loader_timer import (
    LoaderLike,
    LoaderTimer,
    epochs_of,
    first_batches,
    warm_timer,
)
from fastloop.tune.part_reader import EpochPart, PartReader
from fastloop.tune.race_time import (
    EPOCH_S,
    TRIALS_OF_CONFIRMED_RACE,
    check_loop_budget,
    longest_epoch_s,
)

THREADS_SETTING = "torch_threads"
"""A setting that need not be an argument of the loader: torch's threads in this process."""
MOST_BEHIND = 2.0
"""If a configuration takes more than this many times as long as the present one while it warms up,
the trial reads no further: the time of the warm-up is the trial's cost."""


@dataclass(frozen=True, kw_only=True)
class PresentEpoch:
    """An epoch of the present loader, with which the data of other configurations is compared."""

    part: EpochPart
    """The part of the epoch that was read."""
    whole_samples: float
    """Approximate number of samples in a whole epoch; infinite if it is not known."""
    reference: Digest | None
    """Digest of the samples of the part. None: only the numbers of samples are compared."""


@dataclass(kw_only=True)
class LoopTrials:
    """Measures loaders in this process, with a new loader for each measurement."""

    make_loader: Callable[..., LoaderLike]
    """Called with the settings of a configuration."""
    settings: Mapping[str, Mapping[str, Any]]
    """The settings of each configuration, by its name; the present one is the first."""
    step: Callable[[Tree], Any]
    """Called with each batch."""
    device: torch.device
    same_data: bool
    """True: samples are compared with the present loader's, if two epochs of that loader have the
    same samples. False: only the numbers of samples are compared."""
    min_window_s: float
    """Whole epochs are repeated until a measurement takes this many seconds."""
    budget_s: float
    """Seconds for all trials together."""
    counts_batches: bool = False
    """True: batches may be of any kind; only their number is compared."""
    fewest_trials: int = TRIALS_OF_CONFIRMED_RACE
    """Number of trials for which the budget must have time; a smaller budget is refused."""
    present_epoch: PresentEpoch = field(init=False)
    """The result of `read_present`, which comes before the trials."""
    checked: set[str] = field(default_factory=set)
    """Names of the configurations for which the data has been compared."""
    reasons: dict[str, str] = field(default_factory=dict)
    """The reasons why configurations could not be run, by name."""
    watch: LoadWatch = field(default_factory=LoadWatch)
    """Records the load by other programs during the trials."""

    @property
    def present_name(self) -> str:
        """Name of the present configuration."""
        return next(iter(self.settings))

    @property
    def epoch_s(self) -> float:
        """Approximate seconds to which longer epochs are cut, so that the budget has time for a
        race."""
        return min(EPOCH_S, longest_epoch_s(self.budget_s, 0.0))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the data that the trials read, and on the data that was compared."""
        notes = []
        if not self.present_epoch.part.is_whole:
            cut = f"Trials read the first part of an epoch, for about {self.epoch_s:.1f} s"
            whole = f"whole epochs of {self.present_epoch.whole_samples:,.0f} samples, by that part"
            is_known = not math.isinf(self.present_epoch.whole_samples)
            notes.append(f"{cut}; times are those of {whole if is_known else 'a sample'}.")
        if self.same_data and self.present_epoch.reference is None:
            reason = "two epochs of the present loader begin with other samples"
            notes.append(f"Only the numbers of samples were compared: {reason}.")
        return tuple(notes)

    def read_present(self) -> None:
        """Read a part of an epoch with the present loader, and digest its data.

        Raises SmallBudgetError if the budget is too small for a race, and any exception of the
        loader.
        """
        with self._open(self.present_name) as epochs:
            part = self._reader().read(epochs)
            check_loop_budget(part, self.budget_s, self.min_window_s, self.fewest_trials)
            self.present_epoch = PresentEpoch(
                part=part,
                whole_samples=_count_samples(epochs, part),
                reference=_find_reference(part.cut(epochs)) if self.same_data else None,
            )
        self.checked.add(self.present_name)

    def measure(self, name: str, _number: int, room: float) -> float | None:
        """Measure a configuration; returns the seconds of an epoch, or None if it can't be run.

        If the length of an epoch is not known, the seconds of a sample take their place. room: the
        share of the budget after which reading a part of an epoch is stopped; other work of the
        trial, such as comparing data, has no limit.
        """
        # A trial of the present settings has no limit: the others are compared with it.
        reader = self._reader(None if name == self.present_name else room * self.budget_s)
        try:
            with self._open(name) as epochs:
                return self._time(name, epochs, reader)
        except Exception as error:
            # The user's loader may raise anything for settings that it does not support. An error
            # with the present settings ends tuning: nothing could be compared with them.
            if name == self.present_name:
                raise
            self.reasons[name] = error_line(error)
            return None
        finally:
            self.watch.end_stretch()

    def _reader(self, limit_s: float | None = None) -> PartReader:
        """A reader that stops after `limit_s` seconds; None: no limit."""
        return PartReader(
            step=self.step,
            device=self.device,
            epoch_s=self.epoch_s,
            counts_batches=self.counts_batches,
            deadline=deadline_after(limit_s),
        )

    @contextmanager
    def _open(self, name: str) -> Iterator[Epochs]:
        """A context with a new loader of the configuration, and its number of torch's threads;
        yields the loader's epochs."""
        settings = self.settings[name]
        with _torch_threads(settings.get(THREADS_SETTING)):
            yield epochs_of(self.make_loader(**_arguments(self.make_loader, settings)))

    def _time(self, name: str, epochs: Epochs, reader: PartReader) -> float:
        """Time an epoch of an open loader, in seconds as in `measure`.

        The first trial of a configuration compares its data before it is timed. Raises Invalid if
        the data differs, and after the reader's deadline.
        """
        # This read also warms the loader up.
        first = reader.read(epochs)
        whole_samples = self.present_epoch.whole_samples
        if name not in self.checked:
            present_s = self.present_epoch.part.epoch_s(whole_samples)
            seconds = first.epoch_s(whole_samples)
            # If a configuration is this slow while it warms up, its exact time does not matter.
            if seconds > MOST_BEHIND * present_s and first.seconds >= self.min_window_s:
                return seconds
            self._check(epochs, first)
            self.checked.add(name)
        if not first.is_whole or self.counts_batches:
            return reader.read(epochs).epoch_s(whole_samples)
        cold = LoaderTimer(
            epochs=epochs,
            consume=self.step,
            num_epochs=1,
            device=self.device,
            samples=first.samples,
        )
        seconds = warm_timer(cold, self.min_window_s).time_window()
        return seconds / first.samples if math.isinf(whole_samples) else seconds

    def _check(self, epochs: Epochs, part: EpochPart) -> None:
        """Raise Invalid if the loader delivers other data than the present configuration."""
        present, reference = self.present_epoch.part, self.present_epoch.reference
        if present.is_whole and part.is_whole and part.samples != present.samples:
            counts = f"{part.samples:,} samples an epoch, not {present.samples:,}"
            raise Invalid(f"other data than the present settings: {counts}")
        if reference is None:
            return
        read = epochs
        if not present.is_whole:
            # Batches of another size may not end at the same sample. The number of batches is
            # rounded up, and the samples beyond are left out.
            read = first_batches(epochs, math.ceil(present.samples * part.batches / part.samples))
        hashes, leaves = epoch_hashes(read(0), None)
        delivered = reference_digest(
            hashes if present.is_whole else hashes[: present.samples], leaves
        )
        if reason := describe_difference(reference, delivered):
            raise Invalid(f"other data than the present settings: {reason}")


def _find_reference(epochs: Epochs) -> Digest | None:
    """Digest of the samples of an epoch; None if a second epoch has other samples."""
    reference = reference_digest(*epoch_hashes(epochs(0), None))
    again = reference_digest(*epoch_hashes(epochs(0), None))
    return None if describe_difference(reference, again) else reference


def _count_samples(epochs: Epochs, part: EpochPart) -> float:
    """Approximate number of samples in an epoch; infinite if the loader has no length."""
    if part.is_whole:
        return part.samples
    try:
        batches = len(epochs(0))  # pyright: ignore[reportArgumentType]
    except TypeError:
        return math.inf
    return part.samples / part.batches * batches


def _arguments(
    make_loader: Callable[..., LoaderLike], settings: Mapping[str, Any]
) -> dict[str, Any]:
    # `torch_threads` is set around the loader. If make_loader has an argument of this name, it gets
    # the number as well.
    takes_threads = THREADS_SETTING in inspect.signature(make_loader).parameters
    return {
        name: value for name, value in settings.items() if name != THREADS_SETTING or takes_threads
    }


@contextmanager
def _torch_threads(count: int | None) -> Iterator[None]:
    """A context in which torch computes with that many threads; None: with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
