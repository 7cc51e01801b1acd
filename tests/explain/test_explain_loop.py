"""`fastloop.explain(loader, step)` on constructed loops, one of whose stages takes far longer."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

import fastloop
from fastloop.core.load_text import load_text
from fastloop.explain.rung_passes import consume_epoch

SLOW_S = 0.005
SETTINGS = {"trials": 3, "device": "cpu"}


class Numbers(Dataset):
    def __init__(self, sleep_s: float = 0.0) -> None:
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.sleep_s)
        return torch.full((4,), float(index)), index


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(32))


def slow_collate(samples):
    time.sleep(8 * SLOW_S)
    return default_collate(samples)


def slow_step(batch) -> None:
    time.sleep(SLOW_S)


def parts(explanation) -> dict[str, float]:
    return {str(row.rung): row.share.value for row in explanation.ladder.rows}


@pytest.mark.parametrize(
    ("loader", "slow"),
    [
        pytest.param(DataLoader(Numbers(SLOW_S), 8), "decode", id="decode"),
        pytest.param(DataLoader(Numbers(), 8, collate_fn=slow_collate), "collate", id="collate"),
    ],
)
def test_the_slow_part_of_a_dataloader_is_the_greatest(loader, slow):
    explanation = fastloop.explain(loader, lambda _: time.sleep(0.001), **SETTINGS)
    shares = parts(explanation)
    assert list(shares) == ["step", "start-up", "hand-off", "collate", "decode"]
    assert max(shares, key=lambda part: shares[part]) == slow
    assert explanation.verdict.word in (slow, "unattributed")
    assert explanation.ladder.batches == 4
    text = str(explanation)
    if sys.platform == "linux":
        load = load_text(explanation.machine_load, "pass", "passes")
        # The lines are broken anywhere between two words, also within the name of a program.
        assert text.split()[: len(load.split())] == load.split()
    assert f"verdict: {explanation.verdict.word}" in text
    assert "share of the epoch" in text
    assert json.loads(explanation.to_json())["verdict"]["word"] == explanation.verdict.word
    assert repr(explanation) == text
    assert list(explanation.to_frame().index) == list(shares)
    assert explanation._repr_html_().count("<tr>") > len(shares)


def functions_of_epochs(number: int):
    return (torch.full((8,), float(number)) for _ in range(10))


def generator():
    for number in range(10):
        yield {"x": torch.full((8,), float(number))}


@pytest.mark.parametrize(
    ("loader", "batches"),
    [
        pytest.param([torch.zeros(8)] * 10, 10, id="list"),
        pytest.param(generator, 10, id="generator function"),
        pytest.param(functions_of_epochs, 10, id="function of the epoch"),
        pytest.param(fastloop.FastLoader(torch.zeros(80, 2), 8), 10, id="FastLoader"),
        pytest.param(DataLoader(Stream(), 4), 8, id="IterableDataset"),
        pytest.param(DataLoader(Numbers(), batch_size=None), 32, id="no batches"),
    ],
)
def test_other_loaders_get_a_verdict_without_parts(loader, batches):
    explanation = fastloop.explain(loader, slow_step, **SETTINGS)
    assert list(parts(explanation)) == ["step", "start-up", "unattributed"]
    assert explanation.verdict.word in ("step", "unattributed", "start-up")
    assert explanation.ladder.perfect_s.value >= SLOW_S * explanation.ladder.batches
    assert explanation.ladder.batches <= batches
    assert "can't be measured" in " ".join(str(explanation).split())


@pytest.mark.heavy
@pytest.mark.slow
def test_work_of_workers_is_hidden():
    loader = DataLoader(Numbers(SLOW_S), 8, num_workers=1)
    explanation = fastloop.explain(loader, lambda _: time.sleep(12 * SLOW_S), **SETTINGS)
    decode = explanation.ladder.rows[-1]
    assert decode.rung == "decode"
    assert decode.hidden_ms is not None


def test_a_missing_step_is_named_as_the_user_calls_it():
    with pytest.raises(TypeError, match=r"step.*fastloop\.explain\(loader, step\)"):
        fastloop.explain([torch.zeros(8)])


def test_what_can_be_iterated_over_once_is_refused():
    batches = iter([torch.zeros(8)] * 10)
    with pytest.raises(TypeError, match="loader=list_iterator: it can be iterated over only once"):
        fastloop.explain(batches, slow_step)
    with pytest.raises(TypeError, match="second epoch has no batches"):
        fastloop.explain(lambda: batches, slow_step, **SETTINGS)
    with pytest.raises(TypeError, match="loader=int: allowed: an iterable"):
        fastloop.explain(3, slow_step)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="an epoch has no batches"):
        fastloop.explain([], slow_step)


def test_device_that_cannot_be_waited_for_is_refused():
    with pytest.raises(ValueError, match="device=meta: its steps can't be waited for"):
        fastloop.explain([torch.zeros(8)] * 10, slow_step, device="meta")
    with pytest.raises(ValueError, match="device=meta: its steps can't be waited for"):
        fastloop.explain([torch.zeros(8)] * 10, lambda batch: batch.to("meta"))


@pytest.mark.parametrize(
    "setting", [{"trials": 0}, {"trials": 2.5}, {"seconds": -1}, {"device": "toaster"}]
)
def test_wrong_settings_are_named(setting):
    ((name, value),) = setting.items()
    with pytest.raises(ValueError, match=f"{name}={value}: allowed"):
        fastloop.explain([torch.zeros(8)] * 10, slow_step, **setting)


def test_step_that_is_no_function_is_named():
    with pytest.raises(TypeError, match=r"^step=5: allowed is a function of a batch$"):
        fastloop.explain([torch.zeros(8)] * 10, 5)


PROGRAM = """
import fastloop, sys, torch
from fastloop import explain
import fastloop.explain.explain_loop
assert fastloop.explain is explain is sys.modules["fastloop.explain"]
assert "verdict" in str(explain([torch.zeros(8)] * 4, lambda _: None, trials=2))
print(*{"hydra", "omegaconf", "mlflow", "scipy"} & set(sys.modules))
"""


@pytest.mark.slow
def test_the_folder_of_modules_is_a_function_and_needs_no_hydra():
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == ""


def test_batch_may_be_nothing():
    """As of a collate_fn that returns None if all samples of a batch are broken."""
    seen = []
    waits = consume_epoch([1, None, 2], seen.append)
    assert seen == [1, None, 2]
    assert len(waits) == 4, "of each batch, and of the end"
