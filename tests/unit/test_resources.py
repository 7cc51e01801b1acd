"""Resources of a process, measured from outside: children of known use, constructed samples."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from options import disk_only

from fastloop.core.launcher import RankTask
from fastloop.core.machine_counters import cpu_seconds
from fastloop.explain.attach import usage_probe
from fastloop.options.launcher.single import SingleLauncher
from fastloop.processes import positions, resources
from fastloop.processes.resources import Sample, Usage, sample
from fastloop.trial.page_cache import evict

FORKSERVER = SingleLauncher(isolation="forkserver")
MIB = 2**20
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports it")
READ = "import sys; open(sys.argv[1], 'rb', buffering=0).read()"


def call_observed(function, *args):
    [answer] = FORKSERVER.call_ranks(RankTask(function=function, args=args), observed=True)
    assert answer.resources is not None
    return answer.value, answer.resources


def fill_shm(mib):
    path = f"/dev/shm/fastloop-test-{os.getpid()}"
    with open(path, "wb") as file:
        os.unlink(path)  # as torch does: without a name, yet still allocated
        file.write(bytes(mib * MIB))
        file.flush()
        time.sleep(1.0)


def burn(cpu_s):
    # Importing this module has taken CPU time before.
    start, before = time.perf_counter(), time.process_time()
    while time.process_time() < before + cpu_s:
        pass
    return (time.process_time() - before) / (time.perf_counter() - start)


def read_in_a_child(path):
    # Both processes live for less than the interval between two samples.
    subprocess.run([sys.executable, "-S", "-c", READ, str(path)], check=True)


def sleep_often(times):
    # Not in the main thread, which is the only one that /proc/<pid>/status covers.
    thread = threading.Thread(target=lambda: [time.sleep(1e-3) for _ in range(times)])
    thread.start()
    thread.join(timeout=1)
    thread.join()


@LINUX
def test_resources_include_unnamed_shared_memory():
    _, usage = call_observed(fill_shm, 64)
    assert 60 < usage.peak_shm_mib < 200


@pytest.mark.heavy
@LINUX
def test_resources_report_the_cores_that_a_process_used():
    cores, usage = call_observed(burn, 2.0)
    assert usage.cpu_cores == pytest.approx(cores, rel=0.5)


@pytest.mark.heavy
@LINUX
def test_resources_count_context_switches_of_every_thread():
    _, usage = call_observed(sleep_often, 2000)
    assert 1000 < usage.context_switches < 4000


@LINUX
def test_names_of_threads_need_not_be_text():
    """The kernel cuts a name off after 15 bytes, also within a character."""
    own = Path("/proc/thread-self/comm")
    before = own.read_bytes()
    own.write_bytes(b"vierzehn bytes\xc3")
    try:
        with pytest.raises(UnicodeDecodeError):
            own.read_text(encoding="utf-8")
        pid = os.getpid()
        assert sum(sample(pid).switches.values()) > 0
        assert usage_probe._count_switches(threading.get_native_id()) > 0
        assert not positions._writes_its_stack(pid)
    finally:
        own.write_bytes(before)


@pytest.mark.heavy
@disk_only
def test_resources_count_disk_reads_of_an_ended_child(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(os.urandom(128 * MIB))
    # Imports are read from the disk too if the system has dropped their pages: noise only adds.
    warm = [call_observed(read_in_a_child, path)[1].read_mib for _ in range(3)]
    evict([path])
    _, cold = call_observed(read_in_a_child, path)
    assert min(warm) < 64
    assert 128 <= cold.read_mib < 192


def test_sample_of_an_ended_process_is_empty():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    usage = Usage()
    usage.add(sample(child.pid))
    assert usage.resources(1.0) is None


def test_sample_includes_the_children(tmp_path):
    command = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE) as child:
        tree = psutil.Process(child.pid)
        while not tree.children():
            time.sleep(0.05)
        pids = {pid for pid, _ in sample(child.pid).cpu_s}
        assert pids == {child.pid, tree.children()[0].pid}
        child.communicate(b"\n")


ROOT, WORKER, NEXT = (1, 0.0), (2, 0.5), (2, 9.5)
"""Processes by id and start time; NEXT has the id of WORKER, reused."""


def usage_of(*samples):
    usage = Usage()
    for record in samples:
        usage.add(record)
    return usage.resources(10.0)


def test_usage_counts_a_reaped_child_once():
    usage = usage_of(
        Sample(cpu_s={ROOT: (1.0, 0.0), WORKER: (4.0, 0.0)}, read=3 * MIB),
        Sample(cpu_s={ROOT: (1.5, 6.0)}, read=5 * MIB),  # 6 s and 4 MiB of it were the worker's
    )
    assert usage.cpu_cores == pytest.approx(0.75)
    assert usage.read_mib == 5


def test_usage_keeps_the_last_values_of_an_unreaped_child():
    usage = usage_of(
        Sample(cpu_s={ROOT: (1.0, 0.0), WORKER: (4.0, 0.0)}, read=7 * MIB),
        Sample(cpu_s={ROOT: (2.0, 0.0)}, read=MIB),
    )
    assert usage.cpu_cores == pytest.approx(0.6)
    assert usage.read_mib == 7


def test_usage_separates_threads_and_reused_process_ids():
    usage = usage_of(
        Sample(cpu_s={ROOT: (0, 0)}, switches={(ROOT, 1): 10, (WORKER, 2): 5, (WORKER, 3): 7}),
        Sample(cpu_s={ROOT: (0, 0)}, switches={(ROOT, 1): 30, (WORKER, 2): 6}),
        Sample(cpu_s={ROOT: (0, 0)}, switches={(ROOT, 1): 31, (NEXT, 2): 2}),
    )
    assert usage.context_switches == 31 + 6 + 7 + 2
    assert usage.samples == 3


def test_usage_is_none_where_the_system_reports_nothing():
    usage = usage_of(Sample(cpu_s={ROOT: (0, 0)}))
    assert (usage.peak_pss_mib, usage.peak_shm_mib, usage.peak_gpu_mib, usage.read_mib) == (
        None,
    ) * 4
    assert usage.context_switches is None


def fake_nvml():
    """NVML of two devices; the driver of the second does not report memory per process."""

    def list_processes(device):
        this_process = SimpleNamespace(pid=os.getpid(), usedGpuMemory=None if device else 300 * MIB)
        return [this_process, SimpleNamespace(pid=-1, usedGpuMemory=900 * MIB)]

    return SimpleNamespace(
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetComputeRunningProcesses=list_processes,
    )


def test_gpu_memory_is_that_of_the_sampled_processes(monkeypatch):
    monkeypatch.setattr(resources, "_nvml", fake_nvml)
    assert sample(os.getpid()).gpu == 300 * MIB
    assert resources._gpu_bytes({12345678}) is None


def test_sample_tolerates_a_driver_that_lists_no_processes(monkeypatch):
    def refuse(device):
        raise RuntimeError("Not Supported")

    nvml = fake_nvml()
    nvml.nvmlDeviceGetComputeRunningProcesses = refuse
    monkeypatch.setattr(resources, "_nvml", lambda: nvml)
    assert sample(os.getpid()).gpu is None


@LINUX
def test_cpu_seconds_include_ended_children_of_a_living_child():
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
