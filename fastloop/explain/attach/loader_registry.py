"""Number the DataLoaders of a script's process, and record the facts about each DataLoader once.

The records of loops refer to a DataLoader by its number. Datasets have numbers, too.
"""

from __future__ import annotations

import functools
import itertools
import os
from typing import TYPE_CHECKING, Any

# torch.utils.data has these classes, too, but its import may not be complete at this point.
from torch.utils.data import sampler as samplers

from fastloop.explain.attach.by_identity import ByIdentity
from fastloop.explain.attach.loader_facts import count_samples, describe_loader, name_loader
from fastloop.explain.attach.loader_places import find_original, place_in_script, place_of_call
from fastloop.explain.attach.loop_states import LOADER_NUMBERS, LoaderState
from fastloop.observe.event_log import EventLog
from fastloop.observe.warning_frames import skip_in_warnings

if TYPE_CHECKING:
    from torch.utils.data import DataLoader  # noqa: TID251 - for annotations

DATASET_NUMBERS = itertools.count()
"""A counter that numbers the datasets of this process."""


class LoaderRegistry:
    """The DataLoaders of this process. log: gets the facts about each DataLoader."""

    def __init__(self, log: EventLog) -> None:
        self.lengths = SamplerLengths(log)
        self._log = log
        # A state is not an attribute of its DataLoader, which may be pickled or copied with its
        # attributes.
        self._states: ByIdentity[LoaderState] = ByIdentity()
        self._datasets: ByIdentity[int] = ByIdentity()
        """Dataset -> its number."""

    def find_state(self, loader: DataLoader[Any]) -> LoaderState:
        """The state of the DataLoader in this process; a new one if there is none."""
        state = self._states.get(loader)
        # Each process writes its own facts, so a fork has to write them again.
        if state is None or state.process_id != os.getpid():
            made_at, gives_workers = (state.made_at, state.gives_workers) if state else ("", False)
            state = LoaderState(next(LOADER_NUMBERS), os.getpid(), made_at, gives_workers)
            self._states[loader] = state
        return state

    def record_made(self, loader: DataLoader[Any], *, gives_workers: bool) -> None:
        """Record that the script, or a library, is making this DataLoader.

        gives_workers: True if the call passes num_workers.
        """
        state = self.find_state(loader)
        state.made_at = place_of_call(loader)
        state.gives_workers = gives_workers
        original = find_original(loader, self._states.__contains__)
        # The script can change the arguments of the original only.
        if original is not None:
            first = self.find_state(original)
            first.is_replaced = True
            state.made_at = first.made_at
            state.gives_workers = first.gives_workers
        facts = name_loader(loader) | {"dataset_id": self.number_dataset(loader.dataset)}
        self._log.add_fact(made=state.number, place=place_in_script(), **facts)

    def describe_once(self, loader: DataLoader[Any]) -> LoaderState:
        """The state of the DataLoader. The first call in a process writes its facts."""
        state = self.find_state(loader)
        if not state.is_described:
            state.is_described = True
            count = functools.partial(self.lengths.find, number=state.number)
            facts = describe_loader(loader, count)
            facts |= {"made_at": state.made_at, "gives_workers": state.gives_workers}
            self._log.add_fact(loader=state.number, **facts)
        return state

    def has_unused(self) -> bool:
        """True if a DataLoader was made over which no loop has begun."""
        return not all(each.is_described or each.is_replaced for each in self._states.values())

    def number_dataset(self, dataset: Any) -> int:
        """A number that no other dataset has, not even a later one at the same place in memory.

        As an exception, a list and a later list may have the same number.
        """
        number = self._datasets.get(dataset)
        if number is None:
            number = next(DATASET_NUMBERS)
            try:
                self._datasets[dataset] = number
            # A list can't be followed. Its id may be that of another list later on.
            except TypeError:
                return -id(dataset)
        return number


class SamplerLengths:
    """The lengths of the datasets for which samplers of torch have asked.

    A dataset's `__len__` is the script's own code, which may count its calls or take long. A
    sampler calls it anyway, so its result is kept, and `__len__` is not called once more. log: gets
    the length as a fact about each DataLoader that waits for the length.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._known: ByIdentity[int] = ByIdentity()
        """Dataset -> its length."""
        self._awaited: ByIdentity[list[int]] = ByIdentity()
        """Dataset -> the numbers of the DataLoaders that wait for its length."""

    def probe_samplers(self) -> None:
        """Make the name `len` in the module of torch's samplers stand for `measure`."""
        module: Any = samplers
        module.len = self.measure

    @skip_in_warnings
    def measure(self, sized: Any) -> int:
        """Return len(sized), keep it, and log it for each DataLoader that waits for it."""
        length = len(sized)
        try:
            self._known[sized] = length
        # A list has no weak references, so no length can be kept for it.
        except TypeError:
            return length
        if numbers := self._awaited.get(sized):
            self._awaited[sized] = []
            for number in numbers:
                self._log.add_fact(loader=number, num_samples=length)
        return length

    def find(self, loader: DataLoader[Any], number: int) -> int | None:
        """The length of the DataLoader's dataset; None if the length is not known now.

        The dataset may have no length, or a sampler may ask for it later. In the second case a
        later fact has the length. number: that of the DataLoader in the facts.
        """
        dataset = loader.dataset
        length = self._known.get(dataset)
        if length is not None:
            return length
        if not _asks_for_length(loader):
            return count_samples(loader)
        try:
            self._awaited[dataset] = [*(self._awaited.get(dataset) or []), number]
        # A list has no weak references, so no DataLoader can wait for its length.
        except TypeError:
            return count_samples(loader)
        return None


def _asks_for_length(loader: DataLoader[Any]) -> bool:
    """True if a sampler of torch will ask the DataLoader's dataset for its length.

    Such a sampler asks when an iteration over it begins.
    """
    # The batch sampler is compared with None, because `if batch_sampler` would call its `__len__`.
    sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while type(sampler) is samplers.BatchSampler:
        sampler = sampler.sampler
    is_asking = type(sampler) in (samplers.SequentialSampler, samplers.RandomSampler)
    return is_asking and sampler.data_source is loader.dataset
