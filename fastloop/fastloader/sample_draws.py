"""Seed the random draws of each sample by (seed, epoch, index), whichever thread reads the sample.

Augmentations draw from the global generators of torch, numpy and `random`. A process has only one
of each, which all of its threads share. The loop always reads the loader's first batch itself, and
that batch shows from which of these generators the samples draw. Later batches are read by the loop
or by other threads:

- The loop seeds the global generators for each sample, and restores them after each batch.
- Other threads leave the global generators alone, because the loop may draw from them at any
  moment. In these threads, torch's functions draw from a generator of the thread, see PrivateDraws.
  The functions of numpy and `random` can't be redirected in this way, so the loop reads the samples
  that call them.

A transform of torchvision draws once for each call. Given a batch, a RandomHorizontalFlip would
flip all images or none. Such a transform is therefore applied to each sample of the batch by
itself. Other callables get the whole batch, because they can draw for each of its samples.
"""

from __future__ import annotations

import struct
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from fastloop.core.seeds import mix_seed
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.global_generators import GENERATORS
from fastloop.fastloader.private_draws import PrivateDraws, is_redirected

T = TypeVar("T")
SAMPLE, COLLATE, TRANSFORM = range(3)
"""Kinds of draws: those of a Dataset for a sample, of the collate_fn for a batch, and of a
transform for either."""
Begin = Callable[[int, Sequence[int]], None]
"""A function (kind of draws, indices of the samples) that is called before these samples draw."""

DRAWING = frozenset(
    (
        "AugMix",
        "AutoAugment",
        "ColorJitter",
        "ElasticTransform",
        "GaussianBlur",
        "GaussianNoise",
        "JPEG",
        "RandAugment",
        "ScaleJitter",
        "TrivialAugmentWide",
    )
)
"""Transforms of torchvision that draw, besides those with names that begin with Random."""


class _Current(threading.local):
    """The samples that this thread is making, as SampleDraws.begin has set them."""

    key: tuple[int, int, Sequence[int]] | None = None
    """(epoch's seed, kind of draws, indices of the samples); None outside of a FastLoader."""
    seed: int | None = None
    """The seed that follows from the key; None until something draws."""
    follow: Callable[[], None] | None = None
    """A function that is called whenever the key is set; None: no function."""


_current = _Current()


@dataclass(frozen=True)
class SampleDraws:
    """The seeds of all samples of an epoch."""

    seed: int
    """The seed on which the draws of all samples depend."""
    epoch: int
    """Number of the epoch, from 0 on."""
    is_base: bool = False
    """True if the seed is the base seed that DataLoader would draw, see torch_draws.py."""
    is_drawn_each_epoch: bool = False
    """True if each epoch draws a new seed. The epoch's number is then ignored, so that all epochs
    after the same torch.manual_seed have the same draws."""

    def worker_seed(self, number: int) -> int:
        """The seed of the worker process of this number; with a base seed, that of DataLoader."""
        if self.is_base:
            return self.seed + number
        return mix_seed(self.seed, self.epoch, number)

    # Every sample asks for this seed, and computing it takes 3 us, so it is cached.
    @cached_property
    def epoch_seed(self) -> int:
        """The seed of this epoch, of 63 bits, for its samples and for columns that draw."""
        return mix_seed(self.seed, 0 if self.is_drawn_each_epoch else self.epoch)

    def begin(self, kind: int, indices: Sequence[int]) -> None:
        """Make this thread's draws depend on these samples, until the next call.

        kind: SAMPLE, COLLATE or TRANSFORM.
        """
        # Computing the samples' seed takes longer, so `sample_seed` does that when something draws.
        current = _current
        current.key = (self.epoch_seed, kind, indices)
        current.seed = None
        if current.follow is not None:
            current.follow()


def sample_seed() -> int:
    """The seed of the sample that this thread is reading for a FastLoader, of 63 bits.

    The seed depends on the loader's seed, the epoch and the sample's index. In a collate_fn, in a
    transform of whole batches and in `__getitems__`, the indices of the batch take the place of the
    sample's index. Outside of FastLoader, such as under a DataLoader, the seed is drawn from
    torch's global generator.

    >>> rng = np.random.default_rng(fastloop.sample_seed())
    """
    # Outside of FastLoader there is no key. A worker of a DataLoader has seeded its global
    # generator with the base seed, so the number drawn here is reproducible there, too.
    if _current.key is None:
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_())
    if _current.seed is None:
        epoch, kind, indices = _current.key
        # A batch has many indices, so the seed is a hash of all of them.
        numbers = struct.pack(f"<{2 + len(indices)}q", epoch, kind, *indices)
        digest = blake2b(numbers, digest_size=8)
        _current.seed = int.from_bytes(digest.digest(), "little") >> 1
    return _current.seed


@contextmanager
def draw_privately() -> Iterator[None]:
    """Redirect torch's draws in this thread to a generator that is seeded for each sample."""
    draws = PrivateDraws(sample_seed)
    with _following(draws.restart), draws:
        yield


@dataclass
class GlobalDraws:
    """The global generators that a loader's samples and transforms draw from, by library."""

    shared: set[str] | None = None
    """The generators that threads would have to share: "numpy", "random", and "torch" if some of
    its draws can't be redirected. None until the loader's first batch has shown them."""
    seeded: set[str] = field(default_factory=set)
    """All generators from which samples draw, which the loop seeds for each sample. "torch" is
    among them even if all of its draws can be redirected."""


def make_seeded(make: Callable[[], T], draws: GlobalDraws) -> T:
    """The value of make(), which reads samples, with the generators of `draws.seeded` seeded.

    The generators are seeded for each sample. If a sample draws from another generator, that
    generator is added to `draws.seeded`, and make() is called once more.
    """
    while True:
        unforeseen: set[str] = set()
        with _draw_globally(draws.seeded, unforeseen):
            made = make()
        if not unforeseen or is_redirected():
            return made
        draws.seeded |= unforeseen
        # Nearly all of torch's draws can be redirected to a generator of a thread, so threads need
        # not share torch's generator.
        draws.shared = (draws.shared or set()) | (unforeseen - {"torch"})


def make_seeded_once(make: Callable[[], T], draws: GlobalDraws) -> T:
    """The value of make() as in make_seeded, but make() is never called twice.

    The samples of an iterable can't be read twice. If a sample draws from a generator that is not
    seeded yet, a warning says so.
    """
    unforeseen: set[str] = set()
    with _draw_globally(draws.seeded, unforeseen):
        made = make()
    if unforeseen and not is_redirected():
        draws.seeded |= unforeseen
        names = " and ".join(sorted(unforeseen))
        warnings.warn(
            f"an iterable has drawn from the global generators of {names}, but not for its first "
            "batch: the seed decides these numbers from the next batch on",
            stacklevel=2,
        )
    return made


@contextmanager
def _draw_globally(seeded: Collection[str], unforeseen: set[str]) -> Iterator[None]:
    """Seed these generators for each sample, and restore all generators at the end.

    seeded: names of the generators. unforeseen: gets the names of the other generators from which
    samples have drawn.
    """
    states = {name: GENERATORS[name].save() for name in seeded}
    others = {name: each for name, each in GENERATORS.items() if name not in seeded}
    watched = {name: each.watch() for name, each in others.items()}
    try:
        with _following(partial(_seed, seeded) if seeded else None):
            yield
    finally:
        for name, state in states.items():
            GENERATORS[name].restore(state)
        for name, generator in others.items():
            if generator.watch() != watched[name]:
                generator.rewind(watched[name])
                unforeseen.add(name)


@contextmanager
def draw_globally() -> Iterator[None]:
    """Seed all global generators for each sample, and restore them at the end."""
    with _draw_globally(GENERATORS, set()):
        yield


@contextmanager
def find_global_draws(found: GlobalDraws, *, for_threads: bool) -> Iterator[None]:
    """Seed the global generators as draw_globally does, and find those from which samples draw.

    found: gets the generators. for_threads: redirect torch's functions, as threads do. A draw that
    can't be redirected then raises RuntimeError, or adds "torch" to `found.shared`.
    """
    shared: set[str] = set()
    after: dict[str, Any] = {}
    draws = PrivateDraws(sample_seed)

    def compare() -> None:
        # If a state has changed since it was seeded, the sample has drawn from it.
        for name, state in after.items():
            if GENERATORS[name].watch() != state:
                shared.add(name)
        if draws.has_drawn:
            found.seeded.add("torch")

    def follow() -> None:
        compare()
        draws.restart()
        _seed(GENERATORS)
        after.update({name: each.watch() for name, each in GENERATORS.items()})

    # If `draws` redirects torch's functions, torch's global generator changes only by draws that
    # can't be redirected.
    states = {name: each.save() for name, each in GENERATORS.items()}
    try:
        with _following(follow), draws if for_threads else nullcontext():
            yield
            compare()
    finally:
        for name, state in states.items():
            GENERATORS[name].restore(state)
    found.shared = shared if for_threads else shared - {"torch"}
    found.seeded |= shared


@contextmanager
def _following(follow: Callable[[], None] | None) -> Iterator[None]:
    """Call `follow` whenever this thread's key is set; None: call nothing."""
    # A sample may itself iterate over another loader. At the end, the state of the outer loader is
    # restored, so that the sample's further draws do not depend on the inner one.
    before = _current.follow, _current.key, _current.seed
    _current.follow = follow
    try:
        yield
    finally:
        _current.follow, _current.key, _current.seed = before


def _seed(names: Iterable[str]) -> None:
    """Seed the generators of these names with the seed of this thread's sample."""
    seed = sample_seed()
    for name in names:
        GENERATORS[name].seed(seed)


def seed_transform(
    transform: Callable[[Tree], Tree] | None, begin: Begin, is_batched: bool
) -> Callable[[Tree, list[int]], Tree] | None:
    """A function (batch, indices of its samples) that seeds the draws and applies the transform.

    None if there is no transform. begin: called before the transform draws. is_batched: False:
    single samples take the place of batches.
    """
    if transform is None:
        return None
    apply = _transform_samples if is_batched and draws_once(transform) else _transform_batch
    return partial(apply, transform, begin)


def _transform_batch(
    transform: Callable[[Tree], Tree], begin: Begin, batch: Tree, indices: list[int]
) -> Tree:
    """The batch, transformed by a single call."""
    begin(TRANSFORM, indices)
    return transform(batch)


def _transform_samples(
    transform: Callable[[Tree], Tree], begin: Begin, batch: Tree, indices: list[int]
) -> Tree:
    """The batch of the samples, each transformed by a call of its own.

    Raises ValueError for a batch that is not of tensors, and if the results differ in shape.
    """
    leaves, structure = pytree.tree_flatten(batch)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        reason = "applied to each sample, it needs batches of tensors; or apply it in the Dataset"
        raise ValueError(f"transform={type(transform).__name__}: {reason}")
    samples = []
    for place, index in zip(range(len(leaves[0])), indices, strict=False):
        begin(TRANSFORM, (index,))
        samples.append(transform(structure.unflatten([leaf[place] for leaf in leaves])))
    return pytree.tree_map(lambda *leaves: _stack(leaves), *samples) if samples else batch


def draws_once(transform: Any) -> bool:
    """True for a transform of torchvision that draws, and for a composition that contains one."""
    name = type(transform).__name__
    if type(transform).__module__.startswith("torchvision.transforms"):
        # Only torchvision's own classes count: another class of such a name may draw for each
        # sample of a batch.
        if name.startswith("Random") or name in DRAWING:
            return True
    elif not isinstance(transform, torch.nn.Sequential | torch.nn.ModuleList):
        return False
    return any(map(draws_once, _parts(transform)))


def _parts(transform: Any) -> Iterable[Any]:
    """Yield the transforms of a composition, from either kind of container."""
    if isinstance(transform, torch.nn.Module):
        yield from transform.children()
    parts = getattr(transform, "transforms", ())
    yield from parts if isinstance(parts, Sequence) else ()


def _stack(leaves: Sequence[Any]) -> Any:
    """The leaves as one tensor, or as a list if they are not tensors.

    Raises ValueError for tensors of several shapes.
    """
    if not isinstance(leaves[0], torch.Tensor):
        return list(leaves)
    shapes = {tuple(leaf.shape) for leaf in leaves}
    if len(shapes) > 1:
        raise ValueError(f"transform made samples of shapes {sorted(shapes)}: a batch has one")
    return torch.stack(list(leaves))
