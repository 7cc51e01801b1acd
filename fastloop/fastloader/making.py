"""How the batches of an epoch's blocks are made: by threads or by who asks for them, whole or in
parts, with a transform, on a device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from fastloop.fastloader.ahead import Own, in_threads
from fastloop.fastloader.buffers import Pool
from fastloop.fastloader.columns import Tree
from fastloop.fastloader.divided import filled, joined, parts_of
from fastloop.fastloader.indices import Block
from fastloop.fastloader.pace import BLOCK_BYTES, Pace, spare
from fastloop.fastloader.rows import Rows
from fastloop.fastloader.samples import Batches
from fastloop.fastloader.sending import Sending
from fastloop.fastloader.source import Source
from fastloop.torch_threads import keep_to_one_torch_thread, one_torch_thread

Made = Generator[Sequence[Tree], None, None]
"""The batches of one block after the other."""


@dataclass(frozen=True)
class Making:
    """What is done with every block."""

    pace: Pace
    batch_size: int
    transform: Callable[[Tree], Tree] | None
    target: torch.device | None

    def begun(self, source: Batches, pool: Pool, blocks: Iterable[Block]) -> Made:
        """Their batches; the threads that make them have started."""
        nbytes = max(BLOCK_BYTES, sum(source.row_nbytes) * self.batch_size)
        begin = partial(self._in_threads, source, nbytes, self.pace.prefetch_factor)
        if self.target is None:
            return begin(partial(_made, source, pool, self.transform), blocks)
        sending = Sending(self.target)
        if self.transform is None and isinstance(source, Source):
            source = replace(source, placed=sending.placed)
            make = partial(sending.made, partial(_made, source, pool, None))
        else:
            make = partial(sending.moved, partial(_made, source, pool, self.transform))
        return sending.received(begin(make, blocks))

    def begun_in_parts(self, source: Source, pool: Pool, blocks: Iterable[Block]) -> Made:
        """The same of large batches, for which nothing but rows is made."""
        rows, ahead = self.pace.part_rows, self.pace.parts_ahead
        parts, nbytes = parts_of(source, pool, blocks, rows), sum(source.row_nbytes) * rows
        first = -(-self.batch_size // rows)
        return joined(self._in_threads(source, nbytes, ahead, filled, parts, first))

    def _in_threads(
        self,
        source: Batches,
        block_nbytes: int,
        ahead: int,
        make: Callable[[Any], Any],
        work: Iterable[Any],
        first: int = 0,
    ) -> Generator[Any, None, None]:
        # a sample that costs more than its copy keeps every core busy by threads alone
        cheap = source.together and self.transform is None and self.target is None
        own = Own(spare(block_nbytes), first) if cheap else Own()
        begin = None
        if self.pace.num_threads and not _copies(source):
            # OpenMP's threads wait for each other, where a busy neighbour holds up all of them
            begin = keep_to_one_torch_thread
            make = partial(_made_on_one, make)
        return in_threads(make, work, self.pace.num_threads, ahead, own, begin)


def _copies(source: Batches) -> bool:
    """True where nothing is done that torch's own threads would share."""
    return isinstance(source, Source) and all(isinstance(one, Rows) for one in source.columns)


def _made_on_one(make: Callable[[Any], Any], one: Any) -> Any:
    # the consumer makes blocks, too, and has more threads, which would go on spinning
    with one_torch_thread():
        return make(one)


def _made(
    source: Batches, pool: Pool, transform: Callable[[Tree], Tree] | None, block: Block
) -> Sequence[Tree]:
    batches = source.batches(block, pool)
    return batches if transform is None else [transform(batch) for batch in batches]
