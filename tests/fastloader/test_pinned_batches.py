"""Batches in pinned memory, of whatever a collate_fn makes."""

from __future__ import annotations

from collections import UserDict

from fastloop.fastloader.batch_stages import StagedGroup, pin


class Own:
    """A batch of a class of the program, as torch's documentation of memory pinning has it."""

    is_pinned = False

    def pin_memory(self) -> Own:
        self.is_pinned = True
        return self


def test_batches_of_the_programs_own_classes_pin_themselves():
    made = [Own(), {"x": [Own()]}, UserDict(x=Own()), ("text", 1, None, Own())]
    alone, within, mapped, mixed = pin(StagedGroup([], 0, 1, made)).made
    assert alone.is_pinned
    assert within["x"][0].is_pinned
    assert mapped["x"].is_pinned
    assert mixed[:3] == ("text", 1, None)
    assert mixed[3].is_pinned
