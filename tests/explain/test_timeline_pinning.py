"""Events of DataLoader's pinning thread, whose loop runs here for batches that pin themselves:
where there is no accelerator, torch pins no memory."""

from __future__ import annotations

import queue
from threading import Event, Thread

import pytest
import torch
from torch.utils.data._utils import pin_memory as module

from fastloop.core.parts import Part
from fastloop.observe.event_log import EventLog
from fastloop.observe.lanes import build_lane_rows
from fastloop.observe.torch_hooks import loaders_watched


class Pinnable:
    """A part of a batch that says that it was pinned."""

    is_pinned = False

    def pin_memory(self):
        self.is_pinned = True
        return self


@pytest.mark.heavy
def test_thread_records_each_batch_once_under_its_number(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _: None)
    log, made, pinned, done = EventLog(tmp_path), queue.Queue(), queue.Queue(), Event()
    original = module.pin_memory
    with loaders_watched(log):
        arguments = made, pinned, 0, done, "cpu"
        thread = Thread(target=module._pin_memory_loop, args=arguments, daemon=True)
        thread.start()
        for number in (1, 0):
            made.put((number, [Pinnable(), {"label": Pinnable()}]))
        batches = [pinned.get(timeout=60) for _ in range(2)]
        done.set()
        thread.join(60)
    assert module.pin_memory is original
    assert [number for number, _ in batches] == [1, 0]
    assert all(first.is_pinned and parts["label"].is_pinned for _, (first, parts) in batches)
    (row,) = build_lane_rows(log.read())
    assert row.name == "pin 0"
    assert [(event.part, event.batch) for event in row.events] == [(Part.PIN, 1), (Part.PIN, 0)]
