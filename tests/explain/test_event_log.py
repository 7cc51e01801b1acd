"""The files of an event log: complete however their process ends, and bounded by the disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest

from fastloop.core.parts import Part
from fastloop.observe import event_log
from fastloop.observe.event_log import LEAST_BYTES, RECORD_BYTES, EventLog
from fastloop.observe.lane_key import LOOP_LANE, LaneKey, LaneKind

COUNT = 5 * LEAST_BYTES // RECORD_BYTES + 7
"""More than a file has place for until it has grown three times."""
ADD = """
import os, resource, signal, sys
from pathlib import Path
from fastloop.observe.event_log import EventLog
from fastloop.core.parts import Part

def add_events(name, most_bytes, is_lenient):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
    (folder / name).mkdir()
    log = EventLog(folder / name, is_lenient=is_lenient)
    for number in range(count):
        log.here().add(Part.FETCH, number, number + 1, number)

folder, count, *sizes = Path(sys.argv[1]), *map(int, sys.argv[2:])
for most_bytes in sizes:
    add_events(str(most_bytes), most_bytes, is_lenient=True)
try:
    add_events("strict", 1, is_lenient=False)
except OSError as error:
    print(type(error).__name__, flush=True)
add_events("whole", resource.RLIM_INFINITY, is_lenient=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
ADD_FACTS = """
import resource, sys
from pathlib import Path
from fastloop.observe.event_log import EventLog

log, endless = EventLog(Path(sys.argv[1]), is_lenient=True), resource.RLIM_INFINITY
log.add_fact(number=0)
(path,) = log.folder.iterdir()
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, endless))
log.add_fact(number=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (endless, endless))
log.add_fact(number=2)
"""
ADD_LAST = """
import sys
from pathlib import Path
from fastloop.core.parts import Part
from fastloop.observe.event_log import EventLog

here = EventLog(Path(sys.argv[1])).here()
here.add(Part.WAIT, 1, 2, 0)
print("ready", flush=True)
sys.stdin.readline()
here.add(Part.WAIT, 1, 2, 1)
"""
SIZES = (1, LEAST_BYTES, 3 * LEAST_BYTES)
"""Bytes of the disk."""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(folder, the killed process that has written a log for each size of the disk)."""
    folder = tmp_path_factory.mktemp("logs")
    command = [sys.executable, "-c", ADD, str(folder), str(COUNT), *map(str, SIZES)]
    return folder, subprocess.run(command, capture_output=True, text=True, check=False)


def test_killed_process_has_recorded_all(written):
    folder, process = written
    assert process.returncode == -signal.SIGKILL
    events = EventLog(folder / "whole").read()
    assert [event.batch for event in events] == list(range(COUNT))
    assert [event.stop_ns for event in events] == list(range(1, COUNT + 1))


@pytest.mark.parametrize("most_bytes", SIZES)
def test_full_disk_ends_a_lenient_log(written, most_bytes):
    folder, process = written
    assert process.stderr == ""
    numbers = [event.batch for event in EventLog(folder / str(most_bytes)).read()]
    whole = max(size for size in (0, 1, 2) if size * LEAST_BYTES <= most_bytes)
    assert numbers == list(range(whole * LEAST_BYTES // RECORD_BYTES))


def test_full_disk_is_an_error_of_another_log(written):
    _, process = written
    assert process.stdout == "OSError\n"


def test_full_disk_leaves_no_half_line_of_a_fact(tmp_path):
    subprocess.run([sys.executable, "-c", ADD_FACTS, str(tmp_path)], check=True)
    (facts,) = EventLog(tmp_path).read_facts().values()
    assert facts == [{"number": 0}, {"number": 2}]


def test_lanes_are_read_as_they_were_written(tmp_path):
    worker = LaneKey(LaneKind.WORKER, 3)
    lanes = [LOOP_LANE, worker, LaneKey(LaneKind.NATIVE, 10), LaneKey(LaneKind.THREAD, 2, worker)]
    log = EventLog(tmp_path)
    for number, lane in enumerate(lanes):
        log.of_lane(lane).add(Part.READ, 1, 2, number)
    read = {event.batch: event.lane for event in log.read()}
    assert read == dict(enumerate(lanes))
    names = ["main", "worker 3", "native 10", "worker 3, thread 2"]
    assert [lane.name for lane in lanes] == names
    assert [lane.queue.name for lane in lanes[1:]] == [
        "queue 3",
        "queue native 10",
        "queue 3, thread 2",
    ]
    log.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_leaves_the_records_of_its_parent_alone(tmp_path):
    log = EventLog(tmp_path, main_process_id=None)
    log.here().add(Part.WAIT, 1, 2, 0)
    child = os.fork()
    if child == 0:
        log.here().add(Part.WAIT, 3, 4, 1)
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    log.here().add(Part.WAIT, 5, 6, 2)
    batches = {process_id: [] for process_id in (os.getpid(), child)}
    for event in log.read():
        batches[event.process_id].append(event.batch)
    assert batches == {os.getpid(): [0, 2], child: [1]}
    log.close()


def test_threads_that_begin_together_have_a_file_each(tmp_path):
    count, before = 16, sys.getswitchinterval()
    failures: list[Exception] = []
    # Otherwise a thread would usually get its log without another one in between.
    sys.setswitchinterval(1e-6)
    try:
        for number in range(100):
            folder = tmp_path / str(number)
            folder.mkdir()
            log, start = EventLog(folder), Barrier(count)

            def add(batch: int, log: EventLog = log, start: Barrier = start) -> None:
                start.wait()
                try:
                    log.here().add(Part.WAIT, 1, 2, batch)
                except RuntimeError as error:
                    failures.append(error)

            threads = [Thread(target=add, args=(batch,)) for batch in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failures == []
            events = log.read()
            assert sorted(event.batch for event in events) == list(range(count))
            assert len({event.lane for event in events}) == count
            log.close()
    finally:
        sys.setswitchinterval(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_records_whatever_a_thread_of_its_parent_was_doing(tmp_path):
    log = EventLog(tmp_path, main_process_id=None)
    is_held, may_end = Event(), Event()

    def hold() -> None:
        with event_log._lock:
            is_held.set()
            may_end.wait()

    thread = Thread(target=hold)
    thread.start()
    is_held.wait()
    child = os.fork()
    if child == 0:
        log.here().add(Part.WAIT, 1, 2, 3)
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    may_end.set()
    thread.join()
    assert [(event.process_id, event.batch) for event in log.read()] == [(child, 3)]
    log.close()


class EndsAfterReading(dict[Path, int]):
    """The offsets of a reader. The process adds its last event and ends right after a file was
    read."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__()
        self.process = process

    def __setitem__(self, path: Path, offset: int) -> None:
        super().__setitem__(path, offset)
        if self.process.poll() is None:
            self.process.communicate("go on\n")


@pytest.mark.heavy
def test_last_events_of_a_process_that_ends_while_it_is_read_are_read_later(tmp_path):
    command = [sys.executable, "-c", ADD_LAST, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        log, before = EventLog(tmp_path), dict[Path, int]()
        assert [event.batch for event in log.read_new(before)] == [0]
        offsets = EndsAfterReading(process)
        offsets.update(before)
        found = [*log.read_new(offsets), *log.read_new(offsets)]
    assert [event.batch for event in found] == [1]


def test_later_process_of_the_same_id_adds_to_the_file(tmp_path):
    first, second = (EventLog(tmp_path) for _ in range(2))
    first.here().add(Part.WAIT, 1, 2, 0)
    first.close()
    second.here().add(Part.WAIT, 3, 4, 1)
    assert [event.batch for event in second.read()] == [0, 1]
    second.close()
