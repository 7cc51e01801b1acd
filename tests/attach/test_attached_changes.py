"""Changes that are proposed for a script's loop: they can be made, and all their costs are told."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from commands import run_fastloop

from fastloop.explain.attach.change_notes import OF_FORKS
from fastloop.explain.attach.script_patch import patch_call
from fastloop.explain.attach.script_runner import AS_IS, ScriptRunner
from fastloop.explain.change import Change

SCRIPTS = Path(__file__).parents[1] / "support" / "scripts"


def find_loops(script, *arguments, cwd):
    process = run_fastloop(str(script), *arguments, cwd=cwd, command="attach")
    assert process.returncode == 0, process.stderr
    (path,) = cwd.glob("outputs/attach/*/attach.json")
    return json.loads(path.read_text())["loops"], process.stderr


def find_loop(script, *arguments, cwd):
    (loop,), printed = find_loops(script, *arguments, cwd=cwd)
    return loop, printed


@pytest.mark.heavy
def test_class_with_the_name_of_dataloader_is_told_apart(tmp_path):
    script = tmp_path / "derived.py"
    script.write_text(
        "import torch.utils.data\n"
        "class DataLoader(torch.utils.data.DataLoader):\n"
        "    pass\n"
        "for batch in DataLoader(range(80), 4):\n"
        "    batch.sum()\n"
    )
    loop, _ = find_loop(script, cwd=tmp_path)
    assert loop["facts"]["type"] == "DataLoader"
    assert loop["facts"]["is_derived"] is True


@pytest.mark.heavy
def test_loops_over_other_data_are_told_apart(tmp_path):
    found, _ = find_loops(SCRIPTS / "paired_loaders.py", cwd=tmp_path)
    loops = {each["name"]: each["batches"] for each in found}
    assert loops == {
        "DataLoader at paired_loaders.py:11 (of line 9, 60 samples)": 30,
        "DataLoader at paired_loaders.py:11 (of line 10, 60 samples)": 30,
        "DataLoader at paired_loaders.py:17 (of line 23, 80 samples)": 80,
        "DataLoader at paired_loaders.py:17 (of line 23, 40 samples)": 40,
    }


def changes_of(loop):
    return {each["change"]: each["gain"] for each in loop["what_ifs"]}


def has_stores(changes):
    return any("store" in change for change in changes)


@pytest.mark.heavy
def test_workers_that_start_in_each_short_epoch_are_not_proposed(tmp_path):
    loop, printed = find_loop(SCRIPTS / "short_epochs.py", "0", "Plain", cwd=tmp_path)
    changes = changes_of(loop)
    # An epoch takes some 30 ms, about a half of which are waits: two workers take longer to start.
    assert not {"num_workers=2", "num_workers=4"} & {*changes}
    assert all(gain is None or gain >= 0.02 for gain in changes.values())
    assert "at most" in printed or not has_stores(changes)
    if loop["model_ratio"] > 0.8:  # else nothing is predicted on a busy machine
        assert has_stores(changes)
        assert "the predictions may be" in printed


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["Drawn", "OwnGenerator", "Texts"])
@pytest.mark.parametrize("workers", ["0", "1"])
def test_no_store_is_proposed_for_samples_that_it_cannot_keep(tmp_path, kind, workers):
    loop, _ = find_loop(SCRIPTS / "short_epochs.py", workers, kind, cwd=tmp_path)
    assert not has_stores(changes_of(loop))


@pytest.mark.heavy
def test_streams_get_no_more_workers_than_divide_them(tmp_path):
    most = {"Stream": 1, "Shards": 2, "Divided": None}
    found, _ = find_loops(SCRIPTS / "short_epochs.py", "0", *most, cwd=tmp_path)
    loops = {loop["facts"]["dataset"]: loop for loop in found}
    assert {kind: loop["facts"]["most_workers"] for kind, loop in loops.items()} == most
    for kind in ("Stream", "Shards"):
        changes = changes_of(loops[kind])
        workers = [int(each[12]) for each in changes if each.startswith("num_workers=")]
        assert max(workers, default=0) <= most[kind]


@pytest.mark.heavy
@pytest.mark.skipif(not find_spec("torchvision"), reason="needs torchvision")
def test_fastloader_over_an_image_folder_itself_is_first(tmp_path):
    script = tmp_path / "folder.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "from torchvision import datasets, transforms\n"
        "from torchvision.io import write_jpeg\n"
        "for number in range(32):\n"
        "    path = Path(f'photos/{number % 2}/{number}.jpg')\n"
        "    path.parent.mkdir(parents=True, exist_ok=True)\n"
        "    write_jpeg(torch.randint(256, (3, 200, 300), dtype=torch.uint8), str(path))\n"
        "crops = [transforms.RandomResizedCrop(64), transforms.ToTensor()]\n"
        "folder = datasets.ImageFolder('photos', transforms.Compose(crops))\n"
        "for workers in (0, 2):\n"
        "    loader = DataLoader(folder, 4, num_workers=workers)\n"
        "    for epoch in range(2):\n"
        "        for images, labels in loader:\n"
        "            images.mean()\n"
    )
    loops, printed = find_loops(script, cwd=tmp_path)
    assert sorted(loop["facts"]["num_workers"] for loop in loops) == [0, 2]
    first = "fastloop.FastLoader in place of DataLoader at folder.py:14"
    for loop in loops:
        assert loop["what_ifs"][0]["change"] == first
        assert not has_stores(changes_of(loop))
    # Of each loop, and of the calls to change at the end.
    assert printed.count(first) >= 2


WAITING = """\
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 640
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(4)

torch.set_num_threads(1)
matrix = torch.rand(200, 200)
for batch in DataLoader(Slow(), 8{given}):
    ends = time.thread_time() + 0.015
    while time.thread_time() < ends:
        matrix @ matrix
"""
TENSORS = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

samples = TensorDataset(torch.rand(8000, 11), torch.rand(8000))
for epoch in range(3):
    for rows, targets in DataLoader(samples, 64):
        rows.sum()
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "least", "reason"),
    [
        (WAITING.format(given=""), 0.1, "is predicted to save at least that: a thread reads"),
        (WAITING.format(given=", num_workers=0"), None, "is not predicted: the call passes num_w"),
        (TENSORS, 0.4, ""),
    ],
    ids=["waits", "no thread", "tensors"],
)
def test_gain_of_fastloader_is_predicted_or_said_not_to_be(tmp_path, text, least, reason):
    script = tmp_path / "train.py"
    script.write_text(text)
    loop, printed = find_loop(script, cwd=tmp_path)
    if not 0.8 < loop["model_ratio"] < 1.25:
        pytest.skip("on a busy machine nothing is predicted")
    fastloader = "fastloop.FastLoader in place of DataLoader"
    (found,) = [each for each in loop["what_ifs"] if each["change"].startswith(fastloader)]
    assert (found["gain"] is None) == (least is None)
    assert least is None or found["gain"] > least
    assert f"fastloop.FastLoader {reason}" in " ".join(printed.split())


SPAWNED = """\
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.tensor(index)

def main():
    total = 0
    for epoch in range(2):
        loader = DataLoader(Slow(), 8, num_workers=1, multiprocessing_context="spawn")
        for batch in loader:
            total += int(batch.sum())
    print(total, loader.multiprocessing_context.get_start_method())

if __name__ == "__main__":
    main()
"""


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
def test_forks_in_the_place_of_spawned_workers_are_predicted_tried_and_patched(
    tmp_path, monkeypatch
):
    script = tmp_path / "train.py"
    script.write_text(SPAWNED)
    loop, text = find_loop(script, cwd=tmp_path)
    assert (loop["facts"]["start_method"], loop["facts"]["uses_cuda"]) == ("spawn", False)
    if not 0.8 < loop["model_ratio"] < 1.25:
        pytest.skip("on a busy machine nothing is predicted")
    forked = Change(settings={"multiprocessing_context": "fork"})
    # A spawned worker imports torch: that takes far longer than the 20 batches of its epoch.
    assert changes_of(loop)[forked.name] > 0.5
    assert " ".join(OF_FORKS.split()) in " ".join(text.split())
    monkeypatch.chdir(tmp_path)
    names = ("facts", "batches", "passes", "seconds")
    found = SimpleNamespace(ranks=None, **{name: loop[name] for name in names})
    runner = ScriptRunner(["train.py"], cast("Any", found), loop["batches"], tmp_path)
    spawned_s, forked_s = (runner.seconds(each, 600.0) for each in (AS_IS, forked))
    assert forked_s < spawned_s
    call = patch_call(loop["facts"], forked)
    subprocess.run(["git", "apply", "-"], input=call.patch.encode(), check=True)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{2 * sum(range(160))} fork\n"
