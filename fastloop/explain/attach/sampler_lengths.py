"""The lengths of a script's datasets, as torch's samplers ask for them.

A dataset's `__len__` is the script's own code, which may count its calls or take long. A DataLoader
with one of torch's samplers calls it anyway: the probe keeps that result instead of calling it
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# The import of torch.utils.data, which has these classes, too, may not be complete here.
from torch.utils.data import sampler as samplers

from fastloop.explain.attach.by_identity import ByIdentity
from fastloop.explain.attach.loader_facts import count_samples
from fastloop.observe.event_log import EventLog
from fastloop.observe.warning_frames import skip_in_warnings

if TYPE_CHECKING:
    from torch.utils.data import DataLoader  # noqa: TID251 - for annotations


class SamplerLengths:
    """The lengths that samplers have asked for, and the DataLoaders that wait for one."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._known: ByIdentity[int] = ByIdentity()
        self._awaited: ByIdentity[list[int]] = ByIdentity()

    def probe_samplers(self) -> None:
        """Let torch's samplers find `measure` in their module instead of Python's own len."""
        module: Any = samplers
        module.len = self.measure

    @skip_in_warnings
    def measure(self, sized: Any) -> int:
        """len(sized), which is kept; the DataLoaders that wait for it get it as a fact."""
        length = len(sized)
        try:
            self._known[sized] = length
        # A list can't be followed.
        except TypeError:
            return length
        if numbers := self._awaited.get(sized):
            self._awaited[sized] = []
            for number in numbers:
                self._log.add_fact(loader=number, num_samples=length)
        return length

    def find(self, loader: DataLoader[Any], number: int) -> int | None:
        """The length of the dataset; None if it has no length, or if the sampler will ask for it
        later: a further fact then gives it to the DataLoader of this number."""
        dataset = loader.dataset
        length = self._known.get(dataset)
        if length is not None:
            return length
        if not _asks_for_length(loader):
            return count_samples(loader)
        try:
            self._awaited[dataset] = [*(self._awaited.get(dataset) or []), number]
        # A list can't be followed.
        except TypeError:
            return count_samples(loader)
        return None


def _asks_for_length(loader: DataLoader[Any]) -> bool:
    """True if the DataLoader's indices come from a sampler that asks the dataset for its length
    when it begins."""
    # The comparison is with None, because the truth of a batch sampler would ask for its length.
    sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while type(sampler) is samplers.BatchSampler:
        sampler = sampler.sampler
    is_asking = type(sampler) in (samplers.SequentialSampler, samplers.RandomSampler)
    return is_asking and sampler.data_source is loader.dataset
