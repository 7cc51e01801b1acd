"""GlobalDraws, the global generators of torch, numpy and `random` from which samples draw.

The thread that reads the samples seeds these generators for each sample, and restores them
afterwards, so that the program's own draws stay the same. Only the loop's thread, or the only
thread of a process that reads samples, may do so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from fastloop.fastloader.global_generators import GENERATORS
from fastloop.fastloader.private_draws import PrivateDraws, is_redirected
from fastloop.fastloader.sample_draws import call_at_begin, sample_seed

T = TypeVar("T")


@dataclass
class GlobalDraws:
    """The global generators that a loader's samples and transforms draw from, by library."""

    shared: set[str] | None = None
    """The generators that threads would have to share: "numpy", "random", and "torch" if some of
    its draws can't be redirected. None until the loader's first batch has shown them."""
    seeded: set[str] = field(default_factory=set)
    """All generators from which samples draw, which the loop seeds for each sample. "torch" is
    among them even if all of its draws can be redirected."""

    def copy(self) -> GlobalDraws:
        """A copy, to which later findings are not added."""
        return replace(self, seeded={*self.seeded})

    @contextmanager
    def find(self, *, for_threads: bool) -> Iterator[None]:
        """Seed all global generators for each sample, and note those from which samples draw.

        for_threads: redirect torch's functions, as threads do. A draw that can't be redirected then
        raises RuntimeError, or adds "torch" to `shared`.
        """
        shared: set[str] = set()
        after: dict[str, Any] = {}
        private = PrivateDraws()

        def compare() -> None:
            # If a state has changed since it was seeded, the sample has drawn from it.
            for name, state in after.items():
                if GENERATORS[name].watch() != state:
                    shared.add(name)
            if private.has_drawn:
                self.seeded.add("torch")

        def compare_and_seed() -> None:
            compare()
            private.restart()
            _seed(GENERATORS)
            after.update({name: each.watch() for name, each in GENERATORS.items()})

        # If `private` redirects torch's functions, torch's global generator changes only by draws
        # that can't be redirected.
        redirecting = private if for_threads else nullcontext()
        with _restore(GENERATORS), call_at_begin(compare_and_seed), redirecting:
            yield
            compare()
        self.shared = shared if for_threads else shared - {"torch"}
        self.seeded |= shared

    def make_seeded(self, make: Callable[[], T]) -> T:
        """The value of make(), which reads samples, with the generators of `seeded` seeded.

        If a sample draws from another generator, that generator is added to `seeded`, and make() is
        called once more.
        """
        while True:
            made, unforeseen = _make_seeded(make, self.seeded)
            if not unforeseen:
                return made
            self.seeded |= unforeseen
            # Nearly all of torch's draws can be redirected to a generator of a thread, so threads
            # need not share torch's generator.
            self.shared = (self.shared or set()) | (unforeseen - {"torch"})

    def make_seeded_once(self, make: Callable[[], T]) -> T:
        """The value of make() as in `make_seeded`, but make() is never called twice.

        The samples of an iterable can't be read twice. If a sample draws from a generator that is
        not seeded yet, a warning says so.
        """
        made, unforeseen = _make_seeded(make, self.seeded)
        if unforeseen:
            self.seeded |= unforeseen
            names = " and ".join(sorted(unforeseen))
            warnings.warn(
                f"an iterable has drawn from the global generators of {names}, but not for its "
                "first batch: the seed decides these numbers from the next batch on",
                stacklevel=2,
            )
        return made


def _make_seeded(make: Callable[[], T], seeded: Collection[str]) -> tuple[T, set[str]]:
    """The value of make(), and the other generators from which its samples have drawn.

    seeded: names of the generators that are seeded for each sample.
    """
    others = {name: each for name, each in GENERATORS.items() if name not in seeded}
    watched = {name: each.watch() for name, each in others.items()}
    unforeseen: set[str] = set()
    try:
        with _restore(seeded), call_at_begin(partial(_seed, seeded) if seeded else None):
            made = make()
    finally:
        for name, generator in others.items():
            if generator.watch() != watched[name]:
                generator.rewind(watched[name])
                unforeseen.add(name)
    # In a thread of another loader, a sample of which iterates over this one, draws are redirected.
    # The changes are then other threads' draws.
    return made, set() if is_redirected() else unforeseen


@contextmanager
def draw_globally() -> Iterator[None]:
    """Seed all global generators for each sample, and restore them at the end."""
    with _restore(GENERATORS), call_at_begin(partial(_seed, GENERATORS)):
        yield


@contextmanager
def _restore(names: Iterable[str]) -> Iterator[None]:
    """Restore the generators of these names at the end."""
    states = {name: GENERATORS[name].save() for name in names}
    try:
        yield
    finally:
        for name, state in states.items():
            GENERATORS[name].restore(state)


def _seed(names: Iterable[str]) -> None:
    """Seed the generators of these names with the seed of this thread's sample."""
    seed = sample_seed()
    for name in names:
        GENERATORS[name].seed(seed)
