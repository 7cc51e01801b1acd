"""FastLoader as workloads B and C of peers.md use it, which no option's settings say: bytes that
become floats where they are gathered, and files that are decoded in its threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from fastloop import FastLoader
from fastloop.loaders.fastloop import epochs_of
from fastloop.plans import honours_only
from fastloop.protocols import Store
from fastloop.rows import read_into_memory
from fastloop.types import Epochs, Plan, Prepared, Tree, Unsupported, option


@option
class Converting:
    """FastLoader over rows in memory, with what transform=peers/to_floats asks for done by
    `fastloop.converted`."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = ("transform",)

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        honours_only("peers/fastloop_converting", plan, *self.honours)
        pixels, labels = read_into_memory(self.store.open(prepared.folder))
        asked: Any = plan.transform
        if asked is not None:
            from fastloop import converted

            pixels = converted(pixels, mean=asked.mean, std=asked.std)
        yield fastloader((pixels, labels), plan)


@option
class Decoding:
    """FastLoader over files, for dataset=peers/jpegs."""

    store: ClassVar[None] = None
    honours: ClassVar[tuple[str, ...]] = ()

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        honours_only("peers/fastloop_decoding", plan, *self.honours)
        samples: Any = prepared.dataset.open()
        if not hasattr(samples, "into"):
            raise Unsupported(f"peers/fastloop_decoding: {prepared.label} has no encoded images")
        from fastloop import Images

        paths = [str(samples.folder / name) for name, _ in samples.files]
        labels = torch.tensor([label for _, label in samples.files])
        yield fastloader((Images(paths, size=samples.size), labels), plan)


def fastloader(source: Tree, plan: Plan) -> Epochs:
    loader = FastLoader(source, plan.batch_size, drop_last=plan.drop_last, seed=plan.seed)
    return epochs_of(loader, plan)
