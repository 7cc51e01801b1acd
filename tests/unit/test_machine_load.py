"""Whether the machine was quiet: readings of /proc with known answers, and of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fastloop.core.load_text import load_text
from fastloop.core.machine_counters import read_counters
from fastloop.core.machine_load import (
    LEAST_SECONDS,
    Load,
    LoadWatch,
    load_between,
    summarize_loads,
)

OWN, WORKER, FOREIGN, INIT, KERNEL, KWORKER = 10, 11, 20, 1, 2, 30
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports it")
TICKS = os.sysconf("SC_CLK_TCK")
BURN = "while True: pass"


def write_proc(
    proc: Path,
    processes: dict[int, tuple[int, str, float, float]],
    idle_s: float,
    waits_s: dict[str, float] | None = None,
    other_s: float = 0.0,
    stolen_s: float = 0.0,
) -> None:
    """A folder like /proc of two cores. processes: (parent, name, CPU seconds, those of ended
    children) by id; other_s: busy time of processes that are not listed."""
    for old in proc.glob("[0-9]*/stat"):
        old.unlink()
    for pid, (parent, name, own_s, children_s) in processes.items():
        ticks = [round(own_s * TICKS), 0, round(children_s * TICKS), 0]
        fields = ["S", parent, *["0"] * 9, *ticks, 20, 0, 1, 0, 100 + pid]
        (proc / str(pid)).mkdir(parents=True, exist_ok=True)
        (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))} 0 0\n")
    busy_s = other_s + sum(own_s + children_s for *_, own_s, children_s in processes.values())
    rows = [[each / 2 for each in (busy_s, 0, 0, idle_s, 0, 0, 0, stolen_s)] for _ in range(2)]
    total = [2 * each for each in rows[0]]
    lines = [
        " ".join([name, *(str(round(each * TICKS)) for each in row), "0", "0"])
        for name, row in zip(("cpu ", "cpu0", "cpu1"), (total, *rows), strict=True)
    ]
    (proc / "stat").write_text("\n".join([*lines, "intr 1 2 3", "ctxt 4"]) + "\n")
    for name, waited_s in (waits_s or {}).items():
        (proc / "pressure").mkdir(exist_ok=True)
        text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={round(1e6 * waited_s)}\n"
        (proc / "pressure" / name).write_text(text + text.replace("some", "full"))


def read(proc: Path, cpus: tuple[int, ...] = (0, 1)):
    return read_counters(proc, root=OWN, cpus=cpus)


BEFORE = {
    INIT: (0, "init", 1.0, 500.0),
    KERNEL: (0, "kthreadd", 0.0, 0.0),
    KWORKER: (KERNEL, "kworker/0:1", 3.0, 0.0),
    OWN: (INIT, "fastloop", 5.0, 7.0),
    WORKER: (OWN, "python", 2.0, 0.0),
    FOREIGN: (INIT, "stress (ng) 1", 50.0, 0.0),
}


def load_of(tmp_path, after, **changes) -> Load:
    """The load between BEFORE and `after`, one second later."""
    write_proc(tmp_path, BEFORE, idle_s=100.0, waits_s={"cpu": 1.0, "memory": 2.0})
    before = read(tmp_path)
    settings = {"idle_s": 101.0, "waits_s": {"cpu": 1.5, "memory": 2.0}} | changes
    write_proc(tmp_path, after, **settings)
    return load_between(before, read(tmp_path))


def test_own_and_the_kernels_time_is_not_that_of_others(tmp_path):
    after = BEFORE | {
        OWN: (INIT, "fastloop", 5.2, 7.0),
        WORKER: (OWN, "python", 2.3, 0.0),
        KWORKER: (KERNEL, "kworker/0:1", 3.1, 0.0),
        FOREIGN: (INIT, "stress (ng) 1", 50.4, 0.0),
    }
    load = load_of(tmp_path, after)
    assert load.seconds == pytest.approx(1.0)
    assert load.other_cores == pytest.approx(0.4)
    assert load.busiest == {"stress (ng) 1": pytest.approx(0.4)}
    assert load.pressure == {"cpu": pytest.approx(0.5), "memory": 0.0}
    assert (load.cores, load.is_quiet) == (2, False)


def test_names_of_processes_are_printable_and_each_is_told_once(tmp_path):
    """A program may give itself any name, also one with a line feed or an escape sequence."""
    after = BEFORE | {
        41: (INIT, "python", 0.1, 0.0),
        42: (INIT, "python\n", 0.2, 0.0),
        43: (INIT, "\tmux: \x1b[1m\n2", 0.1, 0.0),
    }
    load = load_of(tmp_path, after, idle_s=101.6)
    assert load.busiest == {"python": pytest.approx(0.3), "mux: [1m 2": pytest.approx(0.1)}


def test_own_children_that_ended_and_those_that_began_are_own(tmp_path):
    after = BEFORE | {
        OWN: (INIT, "fastloop", 5.0, 7.0 + 2.0 + 0.6),  # WORKER ended, which had used 2 s before
        40: (OWN, "python", 0.4, 0.0),
    }
    del after[WORKER]
    load = load_of(tmp_path, after)
    assert load.other_cores == pytest.approx(0.0, abs=1e-9)
    assert load.is_quiet
    assert load.busiest == {}


def test_processes_that_are_not_visible_count_as_others(tmp_path):
    load = load_of(tmp_path, BEFORE, other_s=0.7, idle_s=101.3)
    assert load.other_cores == pytest.approx(0.7)
    assert load.busiest == {}


def test_a_new_process_with_an_old_id_is_new(tmp_path):
    write_proc(tmp_path, BEFORE, idle_s=100.0)
    before = read(tmp_path)
    write_proc(tmp_path, BEFORE | {FOREIGN: (INIT, "make", 0.5, 0.0)}, 101.5, other_s=50.0)
    stat = tmp_path / str(FOREIGN) / "stat"
    stat.write_text(stat.read_text().replace(f" {100 + FOREIGN} ", " 999 "))
    load = load_between(before, read(tmp_path))
    assert load.other_cores == pytest.approx(0.5)
    assert load.busiest == {"make": pytest.approx(0.5)}


@pytest.mark.parametrize("quiet_s", [0.08, 0.12])
def test_others_may_use_a_twentieth_of_the_cores(tmp_path, quiet_s):
    load = load_of(tmp_path, BEFORE, other_s=quiet_s, idle_s=102.0 - quiet_s)
    assert load.is_quiet == (quiet_s == 0.08)


def test_what_the_host_gives_to_others_is_taken(tmp_path):
    load = load_of(tmp_path, BEFORE, stolen_s=0.5, idle_s=101.5)
    assert (load.other_cores, load.stolen_cores) == (0.0, pytest.approx(0.5))
    assert load.foreign_cores == pytest.approx(0.5)
    assert load.is_quiet is False


def test_waiting_for_memory_is_not_quiet(tmp_path):
    load = load_of(tmp_path, BEFORE, idle_s=102.0, waits_s={"cpu": 1.0, "memory": 2.2})
    assert load.is_quiet is False
    summary = summarize_loads([load])
    assert summary
    assert "Memory was short: processes waited for it up to 20 %" in load_text(summary)


def test_only_the_cores_of_this_process_are_looked_at(tmp_path):
    write_proc(tmp_path, BEFORE, idle_s=100.0)
    before = read(tmp_path, cpus=(1,))
    write_proc(tmp_path, BEFORE, idle_s=101.0, other_s=1.0)
    load = load_between(before, read(tmp_path, cpus=(1,)))
    assert (load.cores, load.other_cores) == (1, pytest.approx(0.5))


def test_there_is_no_figure_of_too_short_a_time(tmp_path):
    load = load_of(tmp_path, BEFORE, idle_s=100.0 + 2 * 0.9 * LEAST_SECONDS)
    assert load.other_cores is None
    assert load.is_quiet is None


@pytest.mark.parametrize("hidden", ["no file", "zeros", "of the container"])
def test_a_system_that_does_not_tell_is_unknown(tmp_path, hidden):
    write_proc(tmp_path, BEFORE, idle_s=100.0)
    if hidden == "no file":  # macOS
        (tmp_path / "stat").unlink()
    if hidden == "zeros":  # some sandboxes
        (tmp_path / "stat").write_text("cpu  0 0 0 0\ncpu0 0 0 0 0\ncpu1 0 0 0 0\n")
    before = read(tmp_path)
    if hidden == "of the container":
        write_proc(tmp_path, BEFORE, idle_s=102.0)
        (tmp_path / "mounts").write_text(f"lxcfs {tmp_path}/stat fuse.lxcfs rw,nosuid 0 0\n")
        before = read(tmp_path)
    load = load_between(before, read(tmp_path))
    assert load.is_quiet is None
    summary = summarize_loads([load])
    assert summary
    assert summary.is_quiet is None
    assert load_text(summary).startswith("It is unknown whether the machine was quiet")


def loads(*others: float, stolen: float = 0.0) -> list[Load | None]:
    return [
        Load(
            seconds=1.0,
            cores=2,
            other_cores=each,
            stolen_cores=stolen,
            busiest={"chromium": each} if each else {},
        )
        for each in others
    ]


@pytest.mark.parametrize(
    ("given", "is_quiet", "sentence"),
    [
        (
            loads(0.0, 0.03, 0.01),
            True,
            "The machine was quiet: other processes used at most 0.03 of 2 cores "
            "during the trials.",
        ),
        (
            loads(0.02),
            True,
            "The machine was quiet: other processes used at most 0.02 of 2 cores during the trial.",
        ),
        (
            loads(0.0, 1.0, 0.01),
            True,
            "The machine was quiet except in 1 of 3 trials: "
            "other processes used up to 1.00 of 2 cores (chromium).",
        ),
        (
            loads(0.0, 1.0, 1.6),
            False,
            "The machine was busy: other processes used 1.00 of 2 cores (median of the trials; "
            "chromium). The figures, and conclusions from them, may differ on a quiet machine.",
        ),
        (
            loads(1.5),
            False,
            "The machine was busy: other processes used 1.50 of 2 cores during the trial "
            "(chromium). The figures, and conclusions from them, may differ on a quiet machine.",
        ),
        (
            loads(0.0, stolen=0.5),
            False,
            "The machine was busy: other processes used 0.00 of 2 cores during the trial. The host "
            "of this virtual machine took up to 0.50 for others. The figures, and conclusions from "
            "them, may differ on a quiet machine.",
        ),
    ],
)
def test_the_first_sentence_says_whether_the_machine_was_quiet(given, is_quiet, sentence):
    summary = summarize_loads([*given, None])
    assert summary is not None
    assert (summary.is_quiet, load_text(summary)) == (is_quiet, sentence)


def test_older_results_say_nothing():
    assert summarize_loads([None, None]) is None


@contextmanager
def process(*command: str):
    child = subprocess.Popen([sys.executable, "-S", "-c", *command], stdout=subprocess.PIPE)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@LINUX
def test_a_real_busy_process_is_seen_unless_it_is_this_commands():
    core = min(os.sched_getaffinity(0))
    with process(BURN) as busy, process("import time; time.sleep(60)") as idle:
        os.sched_setaffinity(busy.pid, {core})
        before, before_s = read_counters(root=idle.pid), psutil.Process(busy.pid).cpu_times()
        time.sleep(1.0)
        after, after_s = read_counters(root=idle.pid), psutil.Process(busy.pid).cpu_times()
        foreign = load_between(before, after)
        own = load_between(before, replace(after, root=busy.pid))
    # its core is busy all the time, however many others share it
    assert foreign.foreign_cores is not None
    assert foreign.foreign_cores > 0.8
    assert foreign.is_quiet is False
    assert foreign.other_cores is not None
    assert own.other_cores is not None
    spent_s = after_s.user + after_s.system - before_s.user - before_s.system
    difference = (foreign.other_cores - own.other_cores) * foreign.seconds
    assert difference == pytest.approx(spent_s, abs=0.1)


@LINUX
def test_a_real_child_that_has_ended_is_own():
    code = (
        "import subprocess, sys, time; print(flush=True); "
        "subprocess.run([sys.executable, '-S', '-c', 'import time\\n"
        "while time.process_time() < 0.5: pass']); print(flush=True); time.sleep(60)"
    )
    with process(code) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        before = read_counters(root=parent.pid)
        parent.stdout.readline()
        after = read_counters(root=parent.pid)
    others = load_between(before, replace(after, root=0)), load_between(before, after)
    seconds = [(each.other_cores or 0.0) * each.seconds for each in others]
    assert seconds[0] - seconds[1] == pytest.approx(0.5, abs=0.1)


@LINUX
def test_a_watch_tells_stretches_that_are_long_enough():
    watch = LoadWatch()
    watch.end_stretch()  # too short: it goes on
    assert watch.loads == []
    time.sleep(1.5 * LEAST_SECONDS)
    watch.end_stretch()
    time.sleep(1.5 * LEAST_SECONDS)
    summary = watch.summary()
    assert summary is not None
    assert summary.stretches == 2
    assert all(load.seconds >= LEAST_SECONDS for load in watch.loads)
