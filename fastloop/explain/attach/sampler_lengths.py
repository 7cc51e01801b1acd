"""The lengths of a script's datasets, as torch's samplers ask for them.

A dataset's `__len__` is the script's own code, which may count its calls or take long. A sampler of
torch calls it anyway. The probe, which observes the script, keeps the sampler's result instead of
calling `__len__` once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# torch.utils.data has these classes, too, but its import may not be complete at this point.
from torch.utils.data import sampler as samplers

from fastloop.explain.attach.by_identity import ByIdentity
from fastloop.explain.attach.loader_facts import count_samples
from fastloop.observe.event_log import EventLog
from fastloop.observe.warning_frames import skip_in_warnings

if TYPE_CHECKING:
    from torch.utils.data import DataLoader  # noqa: TID251 - for annotations


class SamplerLengths:
    """The lengths of the datasets for which samplers have asked.

    log: gets the length as a fact about each DataLoader that waits for the length.
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
