"""What a process takes, seen from outside: children of known appetite, and samples made by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from options import disk_only

from fastloop import resources
from fastloop.environment import cpu_seconds
from fastloop.launchers.single import Single
from fastloop.page_cache import evict
from fastloop.resources import Sample, Usage, sample

FORKSERVER = Single(isolation="forkserver")
MIB = 2**20
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
READ = "import sys; open(sys.argv[1], 'rb', buffering=0).read()"


def observed(function, *args):
    [(outcome, seen)] = FORKSERVER.call_ranks(function, *args, observed=True)
    assert seen is not None
    return outcome, seen


def fill_shm(mib):
    path = f"/dev/shm/fastloop-test-{os.getpid()}"
    with open(path, "wb") as file:
        os.unlink(path)  # as torch does: no name, and still there
        file.write(bytes(mib * MIB))
        file.flush()
        time.sleep(1.0)


def burn(cpu_s):
    start, before = time.perf_counter(), time.process_time()  # it has imported this module
    while time.process_time() < before + cpu_s:
        pass
    return (time.process_time() - before) / (time.perf_counter() - start)


def let_a_child_read(path):
    # Both live shorter than the pause between two looks.
    subprocess.run([sys.executable, "-S", "-c", READ, str(path)], check=True)


def sleep_often(times):
    # Not in the main thread: that is the only one that /proc/<pid>/status tells of.
    thread = threading.Thread(target=lambda: [time.sleep(1e-3) for _ in range(times)])
    thread.start()
    thread.join(timeout=1)
    thread.join()


@LINUX
def test_growth_of_shared_memory_without_a_name_is_seen():
    _, seen = observed(fill_shm, 64)
    assert 60 < seen.peak_shm_mib < 200


@LINUX
def test_cores_used_are_those_that_the_process_itself_tells():
    cores, seen = observed(burn, 2.0)
    assert seen.cpu_cores == pytest.approx(cores, rel=0.25)


@LINUX
def test_context_switches_of_every_thread_count():
    _, seen = observed(sleep_often, 2000)
    assert 1000 < seen.context_switches < 4000


@disk_only
def test_what_an_ended_child_read_from_the_disk_counts_and_a_cached_file_does_not(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(os.urandom(128 * MIB))
    # What is imported may have to be read too, if the system has taken its pages: noise only adds.
    warm = [observed(let_a_child_read, path)[1].read_mib for _ in range(3)]
    evict([path])
    _, cold = observed(let_a_child_read, path)
    assert min(warm) < 64
    assert 128 <= cold.read_mib < 192


def test_a_process_that_has_ended_gives_an_empty_look_and_no_figures():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    usage = Usage()
    usage.add(sample(child.pid))
    assert usage.resources(1.0) is None


def test_a_look_takes_in_the_children(tmp_path):
    command = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE) as child:
        tree = psutil.Process(child.pid)
        while not tree.children():
            time.sleep(0.05)
        pids = {pid for pid, _ in sample(child.pid).cpu_s}
        assert pids == {child.pid, tree.children()[0].pid}
        child.communicate(b"\n")


ROOT, WORKER, NEXT = (1, 0.0), (2, 0.5), (2, 9.5)
"""The third has the second's number, given again."""


def usage_of(*samples):
    usage = Usage()
    for one in samples:
        usage.add(one)
    return usage.resources(10.0)


def test_a_reaped_child_is_counted_once():
    seen = usage_of(
        Sample(cpu_s={ROOT: (1.0, 0.0), WORKER: (4.0, 0.0)}, read=3 * MIB),
        Sample(cpu_s={ROOT: (1.5, 6.0)}, read=5 * MIB),  # 6 s and 4 MiB of it were the worker's
    )
    assert seen.cpu_cores == pytest.approx(0.75)
    assert seen.read_mib == 5


def test_a_child_that_nobody_waited_for_keeps_its_last_values():
    seen = usage_of(
        Sample(cpu_s={ROOT: (1.0, 0.0), WORKER: (4.0, 0.0)}, read=7 * MIB),
        Sample(cpu_s={ROOT: (2.0, 0.0)}, read=MIB),
    )
    assert seen.cpu_cores == pytest.approx(0.6)
    assert seen.read_mib == 7


def test_switches_are_kept_by_thread_and_a_number_given_again_is_another_process():
    seen = usage_of(
        Sample(cpu_s={ROOT: (0, 0)}, switches={(ROOT, 1): 10, (WORKER, 2): 5, (WORKER, 3): 7}),
        Sample(cpu_s={ROOT: (0, 0)}, switches={(ROOT, 1): 30, (WORKER, 2): 6}),
        Sample(cpu_s={ROOT: (0, 0)}, switches={(ROOT, 1): 31, (NEXT, 2): 2}),
    )
    assert seen.context_switches == 31 + 6 + 7 + 2
    assert seen.samples == 3


def test_what_the_system_does_not_tell_is_none():
    seen = usage_of(Sample(cpu_s={ROOT: (0, 0)}))
    assert (seen.peak_pss_mib, seen.peak_shm_mib, seen.peak_gpu_mib, seen.read_mib) == (None,) * 4
    assert seen.context_switches is None


def fake_nvml():
    """Two devices; the second one's driver does not tell a process's memory."""

    def running(device):
        mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=None if device else 300 * MIB)
        return [mine, SimpleNamespace(pid=-1, usedGpuMemory=900 * MIB)]

    return SimpleNamespace(
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetComputeRunningProcesses=running,
    )


def test_gpu_memory_is_that_of_the_processes_looked_at(monkeypatch):
    monkeypatch.setattr(resources, "_nvml", fake_nvml)
    assert sample(os.getpid()).gpu == 300 * MIB
    assert resources._gpu_bytes({12345678}) is None


def test_a_driver_that_lists_no_processes_is_no_error(monkeypatch):
    def refuse(device):
        raise RuntimeError("Not Supported")

    nvml = fake_nvml()
    nvml.nvmlDeviceGetComputeRunningProcesses = refuse
    monkeypatch.setattr(resources, "_nvml", lambda: nvml)
    assert sample(os.getpid()).gpu is None


@LINUX
def test_cpu_time_of_what_a_living_child_has_started_and_ended_counts():
    burning = "import time\nwhile time.process_time() < 0.5: pass"
    waiting = "import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', sys.argv[1]])"
    waiting += "\nprint(flush=True)\ninput()"
    before = cpu_seconds()
    command = [sys.executable, "-S", "-c", waiting, burning]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert cpu_seconds() - before >= 0.4
        child.communicate(b"\n")
    assert cpu_seconds() - before >= 0.4
