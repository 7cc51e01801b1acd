"""The loops of scripts that are attached to: what is recorded, and what is said of it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from commands import fill_disk, run_fastloop, run_script
from interrupts import interrupt_after

from fastloop.core.load_text import load_text
from fastloop.core.machine_load import LoadSummary

SVG = "{http://www.w3.org/2000/svg}"
SCRIPTS = Path(__file__).parents[1] / "support" / "scripts"


def attach(*arguments, cwd):
    """The ended command, and what it has found."""
    process = run_fastloop(*arguments, cwd=cwd, command="attach")
    paths = sorted(cwd.glob("outputs/attach/*/attach.json"))
    return process, json.loads(paths[0].read_text()) if paths else None


def check_plain_loop(findings, workers):
    (loop,) = findings["loops"]
    assert (loop["passes"], loop["batches"]) == (2, 48)
    assert loop["facts"]["place"] == "plain_loop.py:42"
    assert loop["facts"]["num_workers"] == workers
    shares = {part: share["value"] for part, share in loop["shares"].items()}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["decode"] > shares["transform"] > 0
    assert loop["step_ms"] >= 1
    assert 0.98 <= loop["coverage"] <= 1
    assert loop["ranks"] is None


def check_picture(folder, lanes):
    (page,) = folder.glob("outputs/attach/*/attach.html")
    text = page.read_text()
    picture = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + len("</svg>")])
    drawn = [each.text for each in picture.iter(f"{SVG}text") if each.get("class") == "lane"]
    assert set(drawn) == {"ms", *lanes}
    assert text.index("<svg") < text.index("<table>"), "the picture is first"
    assert '<div class="scroll picture"' in text, "its edges are shaded where it continues"
    assert "On a narrow\nscreen the picture scrolls to the right." in text
    hints = [each.text for each in picture.iter(f"{SVG}title")]
    assert any(re.fullmatch(r"step, .* ms, batch \d+", hint) for hint in hints)
    trace = json.loads(page.with_name("timeline.json").read_text())["traceEvents"]
    waits = [event["args"]["batch"] for event in trace if event["name"] == "wait"]
    assert waits == 2 * [*range(24)]
    names = [event["args"]["name"] for event in trace if event["name"] == "thread_name"]
    assert {name.removesuffix(" (2)") for name in names} >= set(lanes)


def test_plain_loop_waits_for_its_dataset(tmp_path):
    process, findings = attach(str(SCRIPTS / "plain_loop.py"), "{}", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "True DataLoader\n"
    check_plain_loop(findings, workers=0)
    check_picture(tmp_path, ["main"])
    if sys.platform == "linux":
        load = LoadSummary(**findings["machine_load"])
        assert load.stretches == 1
        sentence = load_text(load, "run", "runs")
        assert sentence in " ".join(process.stderr.split())
        (page,) = tmp_path.glob("outputs/attach/*/attach.html")
        assert f"<p>{sentence}</p>" in page.read_text()
    word = findings["loops"][0]["verdict"]["word"]
    assert word in ("decode", "unattributed")  # on a busy machine any part may vary
    assert f"verdict: {word}" in process.stderr
    assert "files:" in process.stderr
    assert re.search(r"page: +\S+attach\.html\n", process.stderr)


LONG = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset

training = DataLoader(TensorDataset(torch.arange(40)), batch_size=2)
checks = DataLoader(TensorDataset(torch.arange(80)), batch_size=2)

def evaluate():
    with torch.no_grad():
        for batch in checks:
            pass

try:
    evaluate()
    for epoch in range(1000):
        for batch in training:
            time.sleep(0.01)
        evaluate()
finally:
    print("tidied up")
"""


@pytest.mark.heavy
@pytest.mark.parametrize("option", ["--batches=30", "--seconds=1"])
def test_script_ends_early_after_batches_or_seconds(tmp_path, option):
    (tmp_path / "long.py").write_text(LONG)
    process, findings = attach(option, "long.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "tidied up\n"
    # Neither of the evaluations, before the training and in it, ends the script.
    if option == "--batches=30":
        loops = {loop["facts"]["place"]: loop["batches"] for loop in findings["loops"]}
        assert loops == {"long.py:17": 30, "long.py:11": 80}
        training, _ = findings["loops"]
        longest = training["step_lines"]["of_loop"][0]
        assert (longest["place"], longest["code"]) == ("long.py:18", "time.sleep(0.01)")


BUSY_THREAD = """
import hashlib, threading
import torch
from torch.utils.data import DataLoader, Dataset

class Counting(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return sum(range(200_000 + index))

def hash_on():
    data = bytes(10_000_000)  # hashed without the interpreter's lock
    while not has_ended.is_set():
        hashlib.sha256(data)

has_ended = threading.Event()
threading.Thread(target=hash_on).start()
for batch in DataLoader(Counting(), batch_size=8):
    batch.sum()
has_ended.set()
"""


@pytest.mark.heavy
def test_other_threads_of_the_script_are_no_work_on_its_batches(tmp_path):
    (tmp_path / "busy_thread.py").write_text(BUSY_THREAD)
    process, findings = attach("busy_thread.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    (loop,) = findings["loops"]
    assert loop["load_cores"] <= 1.01


@pytest.mark.heavy
@pytest.mark.parametrize(
    "context", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.nightly)]
)
def test_workers_carry_the_probe(tmp_path, context):
    settings = {"num_workers": 2, "multiprocessing_context": context}
    settings["persistent_workers"] = context != "fork"
    process, findings = attach(str(SCRIPTS / "plain_loop.py"), json.dumps(settings), cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "True DataLoader\n"
    check_plain_loop(findings, workers=2)
    check_picture(tmp_path, ["worker 0", "queue 0", "worker 1", "queue 1", "main"])
    assert findings["loops"][0]["facts"]["start_method"] == context


OUT_OF_ORDER = """
import time
from torch.utils.data import DataLoader, Dataset

class Uneven(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        time.sleep(0.05 * (index % 4 == 0))
        return index

if __name__ == "__main__":
    order = [int(batch) for batch in DataLoader(Uneven(), num_workers=2, in_order=False)]
    assert order != sorted(order)
"""


@pytest.mark.heavy
def test_batches_that_come_out_of_order_are_all_seen(tmp_path):
    (tmp_path / "uneven.py").write_text(OUT_OF_ORDER)
    process, findings = attach("uneven.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    (loop,) = findings["loops"]
    assert (loop["batches"], loop["facts"]["in_order"]) == (24, False)
    (trace,) = tmp_path.glob("outputs/attach/*/timeline.json")
    events = json.loads(trace.read_text())["traceEvents"]
    numbers = [event["args"]["batch"] for event in events if event["name"] == "wait"]
    assert sorted(numbers) == [*range(24)]


ONE_SLOW_WORKER = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, index):
        # the pass takes 8 s whatever the load, beside which the start of a worker is short
        time.sleep(0.04)
        return torch.zeros(4)

if __name__ == "__main__":
    for batch in DataLoader(Slow(), num_workers=1):
        time.sleep(0.001)
"""


@pytest.mark.heavy
def test_more_workers_are_said_to_help_where_one_is_slow(tmp_path):
    (tmp_path / "one_slow_worker.py").write_text(ONE_SLOW_WORKER)
    process, findings = attach("one_slow_worker.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    (loop,) = findings["loops"]
    gains = {each["change"]: each["gain"] for each in loop["what_ifs"]}
    if gains:  # none where a busy machine makes the model miss the loop as it is
        assert gains["num_workers=2"] > 0.1
        assert gains["samples from a store (fastloop.write_store)"] > 0.2


@pytest.mark.heavy
def test_full_disk_costs_the_findings_and_not_the_status(tmp_path, small_disk):
    fill_disk(small_disk)
    arguments = (str(SCRIPTS / "plain_loop.py"), "{}")
    process = run_fastloop(
        *arguments, cwd=tmp_path, command="attach", FASTLOOP_OUTPUTS=str(small_disk)
    )
    assert (process.returncode, process.stdout) == (0, "True DataLoader\n")
    assert process.stderr.startswith("fastloop: no findings: [Errno 28] No space left on device")
    assert process.stderr.count("\n") == 1
    assert list((small_disk / "attach").iterdir()) == []


def loops_of(findings):
    return {loop["name"].rpartition(":")[0]: loop for loop in findings["loops"]}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("way", "status"),
    [
        ("raise", 1),
        pytest.param("exit", 3, marks=pytest.mark.nightly),
        ("kill", -signal.SIGKILL),
    ],
)
def test_two_loaders_are_told_apart_however_the_script_ends(tmp_path, way, status):
    process, _ = attach(str(SCRIPTS / "two_loaders.py"), way, cwd=tmp_path)
    assert process.returncode == status
    assert process.stdout == "trained\n"
    assert ("RuntimeError: diverged\n\nfastloop:" in process.stderr) == (way == "raise")
    (path,) = tmp_path.glob("outputs/attach/two_loaders-1/attach.json")
    training, validation = json.loads(path.read_text())["loops"]
    assert (training["passes"], training["batches"]) == (1, 20)
    assert (validation["passes"], validation["batches"]) == (2, 8)
    steps_s = 20 * 0.004
    assert training["seconds"] * training["shares"]["step"]["value"] >= steps_s
    assert validation["shares"]["decode"]["value"] > validation["shares"]["collate"]["value"]


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize("way", ["fail", "worker", "collate", "collate in worker"])
def test_errors_in_a_dataset_are_shown_without_the_probe(tmp_path, way):
    arguments = [str(SCRIPTS / "two_loaders.py"), way]
    plain = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    process, findings = attach(*arguments, cwd=tmp_path)
    assert process.stderr.startswith(f"{plain.stderr}\nfastloop: ")
    assert process.returncode == plain.returncode == 1
    assert len(findings["loops"]) == 2


@pytest.mark.heavy
def test_script_that_is_terminated_is_explained(tmp_path):
    command = [sys.executable, "-m", "fastloop", "attach", str(SCRIPTS / "two_loaders.py"), "wait"]
    status, output, errors = interrupt_after(command, "trained\n", tmp_path)
    assert output == "finally\n"
    assert "KeyboardInterrupt\n\nfastloop: " in errors
    assert status == -signal.SIGINT


@pytest.mark.heavy
def test_streams_are_explained(tmp_path):
    process, findings = attach(str(SCRIPTS / "stream.py"), "0", "2", cwd=tmp_path)
    assert process.stdout == "True\nTrue\n", process.stderr
    loops = {loop["facts"]["num_workers"]: loop for loop in findings["loops"]}
    assert len(findings["loops"]) == len(loops) == 2
    for workers, batches in {0: 23, 2: 2 * 12}.items():
        loop = loops[workers]
        assert loop["facts"]["iterable"]
        assert (loop["passes"], loop["batches"]) == (2, 2 * batches)
        assert loop["shares"]["decode"]["value"] > 0


@pytest.mark.heavy
def test_usual_example_learns_the_same_and_its_transform_is_seen(tmp_path):
    arguments = ["--batch-size=32", "--epochs=3"]
    plain = run_script(SCRIPTS / "fashion.py", *arguments, cwd=tmp_path)
    process, findings = attach(str(SCRIPTS / "fashion.py"), *arguments, cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    assert process.stdout == plain.stdout
    (loop,) = findings["loops"]
    assert loop["facts"]["type"] == "DeviceLoader"
    assert loop["facts"]["dataset"] == "Clothes"
    # Not the batch that was looked at, at another place.
    assert (loop["passes"], loop["batches"]) == (3, 24)
    assert loop["shares"]["transform"]["value"] > 0


@pytest.mark.heavy
def test_script_without_a_dataloader_is_said_to_have_none(tmp_path):
    process, findings = attach(str(SCRIPTS / "char_gpt.py"), cwd=tmp_path)
    assert process.stdout == "trained\n"
    first, advice = process.stderr.splitlines()
    assert first == "fastloop: no DataLoader was iterated over, nothing to explain"
    assert "fastloop.watch" in advice
    assert findings is None


@pytest.mark.heavy
def test_ranks_of_torchrun_carry_the_probe(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    process, findings = attach(*torchrun, str(SCRIPTS / "two_ranks.py"), "-x", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout == f"{sum(range(96))} ['-x']\n"
    (loop,) = findings["loops"]
    assert (loop["passes"], loop["batches"]) == (2, 24)
    assert loop["shares"]["decode"]["value"] > 0
    assert [each["batches"] for each in loop["ranks"]["ranks"]] == [12, 12]
