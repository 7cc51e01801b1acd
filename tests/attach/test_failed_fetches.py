"""Batches that can't be made: the probe leaves nothing behind that the next batch would meet."""

from __future__ import annotations

from typing import cast

import pytest

from fastloop.explain.attach import usage_probe
from fastloop.explain.attach.fetch_probe import _probe_fetcher
from fastloop.explain.attach.recorded_processes import open_script_log
from fastloop.explain.attach.usage_probe import PassUsage, ThreadTotals
from fastloop.observe.event_log import EventLog


class Fetcher:
    """As torch's fetcher, for a file that can be read at last."""

    def __init__(self):
        self.dataset, self.collate_fn, self.is_missing = [1.0, 2.0], list, True

    def fetch(self, indices):
        if self.is_missing:
            raise FileNotFoundError("a.jpg")
        return self.collate_fn([self.dataset[index] for index in indices])


def test_fetcher_has_its_own_function_again_after_an_error(tmp_path):
    fetcher = Fetcher()
    _probe_fetcher(fetcher, open_script_log(str(tmp_path)))
    own = fetcher.collate_fn
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            fetcher.fetch([0])
        assert fetcher.collate_fn is own
    fetcher.is_missing = False
    assert fetcher.fetch([0, 1]) == [1.0, 2.0]
    assert fetcher.collate_fn is own


class Shy:
    """An object that can't be looked at, as a proxy outside of its context."""

    def __getattribute__(self, name):
        raise RuntimeError(f"asked for {name}")


class Syntax:
    """As an object of Python's ast: its _fields are no values."""

    _fields = ("name",)


def endless():
    batch = []
    batch.append(batch)
    return batch


@pytest.mark.parametrize("make", [Shy, Syntax, endless])
def test_sample_that_can_not_be_looked_at_is_fetched(tmp_path, make):
    fetcher, sample = Fetcher(), make()
    fetcher.is_missing, fetcher.dataset = False, [sample]
    log = open_script_log(str(tmp_path))
    _probe_fetcher(fetcher, log)
    (batch,) = fetcher.fetch([0])
    # pytest would look at the sample to show it.
    is_same = batch is sample
    assert is_same
    (facts,) = log.read_facts().values()
    (fact,) = [each for each in facts if "samples_of" in each]
    assert fact["no_store"]
    assert fact["tensors"] == 0


class ShyDataset(Shy):
    def __getitem__(self, index):
        return float(index)


def test_dataset_that_can_not_be_looked_at_is_read(tmp_path):
    fetcher = Fetcher()
    fetcher.is_missing, fetcher.dataset = False, ShyDataset()
    _probe_fetcher(fetcher, open_script_log(str(tmp_path)))
    assert fetcher.fetch([0, 1]) == [0.0, 1.0]


def test_reading_before_an_error_is_not_that_of_a_later_batch(monkeypatch):
    monkeypatch.setattr(usage_probe, "HAS_COUNTERS", True)
    monkeypatch.setattr(usage_probe.THREAD_ALLOWANCE, "has_left", lambda: False)
    usage = PassUsage(cast("EventLog", None), "makes", before=ThreadTotals())
    usage.begin_part()
    assert usage.before is None
