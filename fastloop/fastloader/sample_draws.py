"""Random draws of a sample, from generators seeded by (seed, epoch, index) in any thread.

Augmentations draw from the global generators of torch, numpy and `random`, and a process has only
one of each. The loader's first batch, which the loop always reads itself, shows from which of these
generators its samples draw. If the loop's own thread reads samples, it seeds these generators for
each sample and restores them after each batch. Other threads leave the global generators alone,
because the loop may draw from them at any moment. In these threads, torch's functions draw from a
generator of the thread, see PrivateDraws. The functions of numpy and `random` can't be redirected
in this way: samples that call them are read in the loop.

torchvision's transforms draw once for each call: a RandomHorizontalFlip of a batch flips all of its
images, or none. So they are applied to each sample of a batch by itself. Other callables get the
batch: they can draw for each of its samples.
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
"""Kinds of draws: of a Dataset's sample, the collate_fn of a batch, the transform of either."""
Begin = Callable[[int, Sequence[int]], None]
"""A function that is called before anything is drawn, with a kind of draws and the indices of the
samples."""

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
    """The samples or the batch that this thread is making, from `begin` on."""

    key: tuple[int, int, Sequence[int]] | None = None
    """(epoch's seed, kind of draws, indices of the samples)."""
    seed: int | None = None
    """The seed of the key, once it is needed."""
    follow: Callable[[], None] | None = None
    """A function that is called when another key begins."""


_current = _Current()


@dataclass(frozen=True)
class SampleDraws:
    """The seeds of all samples of an epoch."""

    seed: int
    epoch: int
    is_base: bool = False
    """True if the seed is DataLoader's base seed."""
    is_drawn_each_epoch: bool = False
    """True if each epoch draws the seed: after the same torch.manual_seed all are alike."""

    def worker_seed(self, number: int) -> int:
        """The seed of a worker process: DataLoader's, if the seed is its base seed."""
        if self.is_base:
            return self.seed + number
        return mix_seed(self.seed, self.epoch, number)

    # It is cached, as every sample asks for it and making it takes 3 us.
    @cached_property
    def epoch_seed(self) -> int:
        """A seed of 63 bits for the columns of the epoch."""
        return mix_seed(self.seed, 0 if self.is_drawn_each_epoch else self.epoch)

    def begin(self, kind: int, indices: Sequence[int]) -> None:
        """Make this thread's draws depend on these samples, until the next call.

        kind: SAMPLE, COLLATE or TRANSFORM.
        """
        # Making the seed itself takes longer, so it is made only when something draws.
        current = _current
        current.key = (self.epoch_seed, kind, indices)
        current.seed = None
        if current.follow is not None:
            current.follow()


def sample_seed() -> int:
    """The seed of the sample that this thread is reading for a FastLoader, of 63 bits.

    It depends on the loader's seed, the epoch and the sample's index; in a collate_fn, in a
    transform of whole batches and in `__getitems__`, on the batch's indices. Outside of FastLoader,
    such as under a DataLoader, it is drawn from torch's global generator.

    >>> rng = np.random.default_rng(fastloop.sample_seed())
    """
    # Outside of FastLoader there is no key. Under a DataLoader, the base seed has seeded the
    # worker's generator, from which this draws.
    if _current.key is None:
        return int(torch.empty((), dtype=torch.int64, device="cpu").random_())
    if _current.seed is None:
        epoch, kind, indices = _current.key
        # A batch has many indices: its seed is their hash.
        numbers = struct.pack(f"<{2 + len(indices)}q", epoch, kind, *indices)
        digest = blake2b(numbers, digest_size=8)
        _current.seed = int.from_bytes(digest.digest(), "little") >> 1
    return _current.seed


@contextmanager
def draw_privately() -> Iterator[None]:
    """Redirect this thread's draws from torch's generator to one that each sample seeds."""
    draws = PrivateDraws(sample_seed)
    with _following(draws.restart), draws:
        yield


@dataclass
class GlobalDraws:
    """The global generators that a loader's samples and transforms draw from, by library."""

    shared: set[str] | None = None
    """The generators that threads would have to share: "numpy", "random", and "torch" for draws
    that can't be redirected. None: no batch has shown yet which ones they are."""
    seeded: set[str] = field(default_factory=set)
    """All generators that are drawn from, also torch's if its draws can be redirected. They are
    seeded for each sample."""


def make_seeded(make: Callable[[], T], draws: GlobalDraws) -> T:
    """make(), which reads samples, with the generators of `draws.seeded` seeded for each sample.

    If a sample has drawn from another generator, that generator is added to `draws.seeded`, and
    make() is called once more.
    """
    while True:
        unforeseen: set[str] = set()
        with _draw_globally(draws.seeded, unforeseen):
            made = make()
        if not unforeseen or is_redirected():
            return made
        draws.seeded |= unforeseen
        # torch's draws can be redirected to a generator of a thread, in nearly all cases.
        draws.shared = (draws.shared or set()) | (unforeseen - {"torch"})


def make_seeded_once(make: Callable[[], T], draws: GlobalDraws) -> T:
    """make() as in make_seeded, but called once: the samples of an iterable can't be read twice.

    If a sample has drawn from a generator that is not seeded, a warning says so.
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

    The names of other generators that samples have drawn from are added to `unforeseen`.
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
    """Seed the global generators for each sample; they are restored at the end."""
    with _draw_globally(GENERATORS, set()):
        yield


@contextmanager
def find_global_draws(found: GlobalDraws, *, for_threads: bool) -> Iterator[None]:
    """Seed the global generators as draw_globally does, and note in `found` those that samples draw
    from.

    for_threads: redirect torch's functions, as threads do. A draw that can't be redirected then
    raises RuntimeError, or adds its generator to `found.shared`.
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
    # A sample may itself iterate over a loader: afterwards it goes on as before.
    before = _current.follow, _current.key, _current.seed
    _current.follow = follow
    try:
        yield
    finally:
        _current.follow, _current.key, _current.seed = before


def _seed(names: Iterable[str]) -> None:
    seed = sample_seed()
    for name in names:
        GENERATORS[name].seed(seed)


def seed_transform(
    transform: Callable[[Tree], Tree] | None, begin: Begin, is_batched: bool
) -> Callable[[Tree, list[int]], Tree] | None:
    """The transform, if any, by batch or by sample, called with a batch and its samples' indices.

    is_batched: False for single samples.
    """
    if transform is None:
        return None
    apply = _transform_samples if is_batched and draws_once(transform) else _transform_batch
    return partial(apply, transform, begin)


def _transform_batch(
    transform: Callable[[Tree], Tree], begin: Begin, batch: Tree, indices: list[int]
) -> Tree:
    begin(TRANSFORM, indices)
    return transform(batch)


def _transform_samples(
    transform: Callable[[Tree], Tree], begin: Begin, batch: Tree, indices: list[int]
) -> Tree:
    """The batch of the transformed samples. Raises ValueError for samples of several shapes."""
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
    if isinstance(transform, torch.nn.Module):
        yield from transform.children()
    parts = getattr(transform, "transforms", ())
    yield from parts if isinstance(parts, Sequence) else ()


def _stack(leaves: Sequence[Any]) -> Any:
    if not isinstance(leaves[0], torch.Tensor):
        return list(leaves)
    shapes = {tuple(leaf.shape) for leaf in leaves}
    if len(shapes) > 1:
        raise ValueError(f"transform made samples of shapes {sorted(shapes)}: a batch has one")
    return torch.stack(list(leaves))
