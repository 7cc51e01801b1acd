"""Tell what a change of a script's DataLoader does besides saving time, in notes for its user.

A note is a sentence on other results, on a risk, or on an argument that has no effect any more.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastloop.explain.change import Change

OTHER_ORDER = (
    "With workers that stay, DataLoader draws one number less from torch's generator in each later "
    "pass, so that a seeded script shuffles those passes otherwise than now, unless its sampler "
    "has a generator of its own"
)
"""The note on persistent workers."""
OF_FORKS = (
    "Forked workers are copies of the script's process: they can't use CUDA if it does, and "
    "a lock that another thread of the script holds meanwhile is never released in them"
)
"""The note on workers that are forked."""
OTHER_SUMS = (
    "With another number of threads torch adds long sums in another order, so that the last digits "
    "of losses may differ from those of now, even if the samples are the same"
)
"""The note on another number of torch's threads."""
DRAWING_SAMPLERS = ("RandomSampler", "WeightedRandomSampler", "SubsetRandomSampler")
"""torch's samplers that draw from its generator."""


def list_effects(facts: Mapping[str, Any], change: Change) -> tuple[str, ...]:
    """The notes on effects of the change other than speed.

    None of these effects changes the samples of the first pass over the DataLoader. They may change
    later passes or the results of the script, or let workers fail in other ways. facts: those about
    the DataLoader.
    """
    has_kept = bool(facts.get("persistent_workers"))
    keeps = bool(change.settings.get("persistent_workers")) and not has_kept
    notes = {
        # When DataLoader starts workers, it draws a seed for them from the generator that shuffles.
        # Workers that stay are started once only.
        OTHER_ORDER: keeps and facts.get("sampler") in DRAWING_SAMPLERS,
        OF_FORKS: change.forks_workers,
        OTHER_SUMS: change.torch_threads is not None,
    }
    return tuple(note for note, applies in notes.items() if applies)


@contextmanager
def collect_notes(notes: dict[str, None]) -> Iterator[None]:
    """A context in which a FastLoader is made. Its warnings about arguments that have no effect in
    FastLoader become keys of `notes`, in their order."""
    with warnings.catch_warnings(record=True) as caught:
        # If the script has turned warnings into errors, a warning would end it.
        warnings.simplefilter("always")
        yield
    # Other warnings, which DataLoader would give as well, do not name FastLoader.
    notes |= {text: None for each in caught if "FastLoader" in (text := str(each.message))}
