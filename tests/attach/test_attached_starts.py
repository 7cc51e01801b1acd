"""Each loop over a DataLoader is seen, however its iterators start, and apart from others."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import run_fastloop, run_script

SCRIPTS = Path(__file__).parents[1] / "support" / "scripts"


def attach(script, *arguments, cwd):
    process = run_fastloop(str(script), *arguments, cwd=cwd, command="attach")
    paths = sorted(cwd.glob("outputs/attach/*/attach.json"))
    return process, json.loads(paths[0].read_text()) if paths else None


@pytest.mark.heavy
def test_epochs_over_a_kept_iterator_are_passes(tmp_path):
    process, findings = attach(SCRIPTS / "kept_iterator.py", "0", "2", cwd=tmp_path)
    assert (process.returncode, process.stdout) == (0, "True\nTrue\n"), process.stderr
    assert sorted(loop["facts"]["num_workers"] for loop in findings["loops"]) == [0, 2]
    for loop in findings["loops"]:
        # The loop does not ask for more after an epoch's last batch, which then has no step.
        assert (loop["passes"], loop["batches"]) == (3, 3 * 9)
        assert loop["facts"]["place"] == "kept_iterator.py:55"
        assert loop["shares"]["decode"]["value"] > 0
    assert findings["unseen"] == []


@pytest.mark.heavy
@pytest.mark.alone
def test_loops_over_one_loader_at_two_places_are_two(tmp_path):
    process, findings = attach(SCRIPTS / "one_loader.py", "alone", "workers", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert len(findings["loops"]) == 4
    for workers in (0, 2):
        loops = [loop for loop in findings["loops"] if loop["facts"]["num_workers"] == workers]
        training, evaluation = loops
        assert training["facts"]["place"] == "one_loader.py:27"
        assert evaluation["facts"]["place"] == "one_loader.py:15"
        for loop in loops:
            assert (loop["passes"], loop["batches"]) == (2, 32)
            assert loop["coverage"] > 0.9
        assert training["step_ms"] >= 4
        assert evaluation["step_ms"] < training["step_ms"]
    assert findings["unseen"] == ["DataLoader at one_loader.py:20"]
    assert (
        "\n\nDataLoaders over which no loop was seen: DataLoader at one_loader.py:20."
        in process.stderr
    )


def test_script_that_failed_before_its_first_batch_is_told_so(tmp_path):
    process, findings = attach(SCRIPTS / "one_loader.py", "fail", cwd=tmp_path)
    assert (process.returncode, findings) == (1, None)
    assert process.stderr.endswith(
        "RuntimeError: too early\n"
        "fastloop: the script failed (exit status 1) before it had worked on a batch of a "
        "DataLoader, nothing to explain\n"
        "DataLoaders over which no loop was seen: DataLoader at one_loader.py:20, "
        "DataLoader at one_loader.py:23.\n"
    )


FAILS_FIRST = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        assert sys.argv[1] != "make"
        return torch.zeros(2)

for batch in DataLoader(Samples(), 4):
    assert sys.argv[1] == "glance"
    break
"""


FAILS_LATER = """
import torch
from torch.utils.data import DataLoader, TensorDataset

for number, batch in enumerate(DataLoader(TensorDataset(torch.zeros(400)), 4)):
    assert number < 50
"""


def test_script_that_fails_in_its_loop_is_said_to_have_failed(tmp_path):
    (tmp_path / "later.py").write_text(FAILS_LATER)
    process, findings = attach("later.py", cwd=tmp_path)
    assert process.returncode == 1
    assert findings["loops"][0]["batches"] == 50
    _, text = process.stderr.split("fastloop: later.py\n")
    assert "The script failed (exit status 1): these figures end there.\n\n" in text


@pytest.mark.parametrize(
    ("where", "answer", "how"),
    [
        pytest.param(
            "make",
            "the script failed (exit status 1) in the first batch of a loop over a DataLoader",
            "ended before its first batch was made",
            marks=pytest.mark.heavy,
        ),
        (
            "step",
            "the script failed (exit status 1) in the first batch of a loop over a DataLoader",
            "got its first batch, and asked for no other",
        ),
        pytest.param(
            "glance",
            "no loop over a DataLoader got beyond its first batch",
            "got its first batch, and asked for no other",
            marks=pytest.mark.heavy,
        ),
    ],
)
def test_loop_that_ends_in_its_first_batch_is_said_to_have_begun(tmp_path, where, answer, how):
    (tmp_path / "first.py").write_text(FAILS_FIRST)
    process, findings = attach("first.py", where, cwd=tmp_path)
    assert (process.returncode, findings) == (int(where != "glance"), None)
    assert process.stderr.endswith(
        f"fastloop: {answer}, nothing to explain\n"
        f"The loop over DataLoader at first.py:13 began: it {how}.\n"
    )


IN_A_THREAD = """
from concurrent.futures import ThreadPoolExecutor
import torch
from torch.utils.data import DataLoader, TensorDataset

with ThreadPoolExecutor(1) as executor:
    batches = iter(DataLoader(TensorDataset(torch.zeros(40)), 4))
    while executor.submit(next, batches, None).result() is not None:
        pass
"""


@pytest.mark.heavy
def test_loop_whose_batches_a_thread_asks_for_is_where_it_begins(tmp_path):
    (tmp_path / "ahead.py").write_text(IN_A_THREAD)
    _, findings = attach("ahead.py", cwd=tmp_path)
    assert [loop["facts"]["place"] for loop in findings["loops"]] == ["ahead.py:7"]


READ_BY_A_LIBRARY = """
import threading

def read(loader):
    thread = threading.Thread(target=run, args=[loader])
    thread.start()
    thread.join()

def run(loader):
    for batch in loader:
        pass
"""
CALLS_A_LIBRARY = """
import sys
sys.path.insert(0, "site-packages")
import reader
import torch
from torch.utils.data import DataLoader, TensorDataset

reader.read(DataLoader(TensorDataset(torch.zeros(40)), 4))
"""


@pytest.mark.heavy
def test_loop_in_a_thread_of_a_library_is_where_the_library_has_it(tmp_path):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "reader.py").write_text(READ_BY_A_LIBRARY)
    (tmp_path / "train.py").write_text(CALLS_A_LIBRARY)
    _, findings = attach("train.py", cwd=tmp_path)
    assert [loop["facts"]["place"] for loop in findings["loops"]] == ["reader.py:10"]


@pytest.mark.heavy
@pytest.mark.skipif(not find_spec("torchdata"), reason="needs torchdata")
def test_iterators_of_another_library_are_seen(tmp_path):
    script = tmp_path / "stateful.py"
    script.write_text(
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "from torchdata.stateful_dataloader import StatefulDataLoader\n"
        "samples = TensorDataset(torch.rand(32))\n"
        "for workers in (0, 2):\n"
        "    loader = StatefulDataLoader(samples, 4, num_workers=workers)\n"
        "    for epoch in range(2):\n"
        "        for batch in loader:\n"
        "            pass\n"
    )
    process, findings = attach(script, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert sorted(loop["facts"]["num_workers"] for loop in findings["loops"]) == [0, 2]
    for loop in findings["loops"]:
        assert (loop["passes"], loop["batches"]) == (2, 16)
        assert loop["name"].startswith("StatefulDataLoader at stateful.py:8")


MEASURED = """
import sys
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

class Measured(Dataset):
    asked = 0

    def __len__(self):
        self.asked += 1
        return 9

    def __getitem__(self, index):
        return index

def load(dataset, way):
    if way == "batches":
        return DataLoader(dataset, batch_sampler=BatchSampler(SequentialSampler(dataset), 2, True))
    if way == "single":
        return DataLoader(dataset, batch_size=None)
    return DataLoader(dataset, 2, shuffle=way == "shuffled", num_workers=2 * (way == "workers"))

if __name__ == "__main__":
    for way in sys.argv[1:]:
        dataset = Measured()
        for _ in range(2):
            for batch in load(dataset, way):
                pass
        print(way, dataset.asked)
"""


@pytest.mark.heavy
def test_a_dataset_is_asked_for_its_length_as_often_as_without_attach(tmp_path):
    script, ways = tmp_path / "measured.py", ("plain", "shuffled", "batches", "single", "workers")
    script.write_text(MEASURED)
    plain = run_script(script, *ways, cwd=tmp_path)
    process, findings = attach(script, *ways, cwd=tmp_path)
    assert (process.returncode, process.stdout) == (0, plain.stdout), process.stderr
    assert [line.split()[0] for line in plain.stdout.splitlines()] == [*ways]
    # They differ in the call, the sampler or the number of workers: each way has a loop.
    assert len(findings["loops"]) == len(ways)
    for loop in findings["loops"]:
        assert (loop["passes"], loop["facts"]["num_samples"]) == (2, 9)
