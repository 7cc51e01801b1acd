"""fastloop doctor: is this machine ready to measure, and is anything missing?

    fastloop doctor [seconds=2]

Watches for some seconds how much of the machine other processes use. The first sentence is
the answer: the machine is ready, or it is not quiet, or another fastloop measures. Below it
are the things on which a measurement depends: cores, memory, FastLoader's engines,
accelerators, free space, limits, the environments that `fastloop env` has created, and the
optional libraries, with the commands that install the missing ones. Nothing is written.

The exit status is 0 if the machine is ready, or if the system does not report whether
it is quiet; 1 if it is not ready; 2 for a wrong setting.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from threading import Event

from fastloop.cli.arguments import parse_settings
from fastloop.core.cgroup import count_affinity, cpu_quota, usable_cores, usable_memory_bytes
from fastloop.core.load_text import load_text
from fastloop.core.machine_counters import read_counters
from fastloop.core.machine_load import LEAST_SECONDS, Load, load_between, summarize_loads
from fastloop.core.text import align, wrap
from fastloop.core.types import MachineBusy, UsageError

DEFAULTS = {"seconds": "2"}
"""The command's settings, with their defaults as text."""
MOST_SECONDS = 600.0
"""Longest time for which the machine can be watched."""
NO_OPTIONS = {"dev", "docs", "ffcv", "programs"}
"""Extras of the package that `_optional_libraries` leaves out: dev, docs and programs are not
options, and ffcv is listed separately, because other commands than pip's build it."""
GIB, MIB = 2**30, 2**20
"""Units of memory in bytes."""
LITTLE_SHM = 512 * MIB
"""Size in bytes: a hint is printed if /dev/shm is smaller. Docker gives containers 64 MiB, which is
too little for the batches of a few workers."""
FEW_FILES = 1024
"""If the limit on open files is at most this number, and the user may raise it above this number, a
hint is printed. Workers of torch's DataLoader send a file descriptor for each tensor."""
WAIT_WORDS = {"cpu": "a core", "io": "the disk", "memory": "memory"}
"""The kernel's name of a resource -> a word for it."""


def main() -> None:
    """Print the verdict on the machine, and its equipment.

    Exits with 1 if the machine is not ready, and with 2 for a wrong setting.
    """
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__, end="")
        return
    try:
        seconds = _parse_seconds(parse_settings(sys.argv[1:], DEFAULTS)["seconds"])
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    load = _watch(seconds)
    reason = _holder() or _busy(load)
    print("\n".join(wrap([_answer(load, reason, seconds)])), end="\n\n", flush=True)
    # The answer is printed first, because the functions below import torch, which takes seconds.
    rows = [*_hardware(load), *_software(), *_space(), ("environments", _environments())]
    print("\n".join(align(rows)))
    print("\n" + "\n".join(wrap(_libraries())))
    sys.exit(int(bool(reason)))


def _parse_seconds(text: str) -> float:
    """Parse the seconds to watch; raises UsageError unless they are a number from LEAST_SECONDS to
    MOST_SECONDS."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        allowed = f"allowed: {LEAST_SECONDS} to {MOST_SECONDS:.0f}"
        raise UsageError(f"seconds={text}: {allowed}")
    return seconds


def _watch(seconds: float) -> Load:
    """Measure the load by other processes for that time, while this process only waits."""
    before = read_counters()
    # The wait is a little longer, because the system's counters advance in steps of 0.01 s.
    Event().wait(seconds + 0.05)
    return load_between(before, read_counters())


def _holder() -> str:
    """A line about another fastloop command that is measuring, or about a lock file that can't be
    used; empty if there is neither."""
    from fastloop.sweep.machine_lock import lock_machine

    try:
        with lock_machine(wait=False):
            return ""
    except MachineBusy as error:
        return str(error)


def _busy(load: Load) -> str:
    """A phrase about the processes that keep the machine busy.

    Empty if the machine is quiet, or if the system does not report whether it is.
    """
    if load.is_quiet is not False:
        return ""
    names = ", ".join(load.busiest)
    used = f"other processes used {load.foreign_cores:.2f} of {load.cores} cores"
    reason = f"{used}{names and f' ({names})'}"
    if (waits := load.pressure.get("memory", 0.0)) > 0:
        reason += f", and processes waited for memory {100 * waits:.0f} % of the time"
    return reason


def _answer(load: Load, reason: str, seconds: float) -> str:
    """The sentences that say whether the machine is ready to measure and, if it is, how quiet it
    was.

    reason: the reason why the machine is not ready; empty if it is. seconds: time for which the
    load was measured.
    """
    if reason:
        return f"This machine is not ready to measure: {reason}."
    summary = summarize_loads([load])
    assert summary is not None
    watched = f"{seconds:g} s"
    return f"This machine is ready to measure. {load_text(summary, watched, watched)}"


def _hardware(load: Load) -> Iterator[tuple[str, str]]:
    """Yield rows on the processor, cores, memory, waits and accelerators."""
    from fastloop.core.machine import describe_machine

    machine = describe_machine()
    visible = count_affinity()
    quota = cpu_quota()
    limit = f"a quota of {quota:g} cores" if quota else "no quota"
    yield "processor", str(machine["cpu"])
    yield "cores", f"{usable_cores()} usable: {visible} of {machine['cores']} by affinity, {limit}"
    yield "memory", f"{usable_memory_bytes() / GIB:.1f} GiB usable"
    waits = [f"{WAIT_WORDS[name]} {100 * share:.0f} %" for name, share in load.pressure.items()]
    yield "waits", ", ".join(waits) or "unknown: no /proc/pressure here"
    yield "accelerators", ", ".join(machine["gpus"]) or _accelerator()


def _accelerator() -> str:
    """The accelerator that torch finds, such as "mps"; "none" if there is none."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return str(found) if found else "none"


def _software() -> Iterator[tuple[str, str]]:
    """Yield rows on torch, the compiler and FastLoader's native parts."""
    import torch

    from fastloop.fastloader.columns.decoders import INSTALL_JPEG, describe_native_decoder, has_jpeg
    from fastloop.fastloader.load_native_core import has_core

    # The variable CC may contain options after the compiler, or may be empty.
    compiler = shutil.which((os.environ.get("CC", "").split() or ["cc"])[0])
    yield "torch", f"{torch.__version__}, {torch.get_num_threads()} threads"
    yield "C compiler", compiler or "none: apt-get install gcc, for FastLoader's native core"
    without = "Python, without the native core: install a C compiler, then fastloop again"
    if os.environ.get("FASTLOOP_PURE") == "1":
        without = "Python, as FASTLOOP_PURE=1"
    yield "FastLoader", "native core" if has_core() else without
    crops = describe_native_decoder() if has_jpeg() else f"torchvision: {INSTALL_JPEG}"
    yield "JPEG crops", crops


def _space() -> Iterator[tuple[str, str]]:
    """Yield rows on free space and on the limit on open files."""
    from fastloop.core.outputs_folder import nearest_existing, outputs_folder

    folder = outputs_folder()
    nearest = nearest_existing(folder)
    hint = "" if os.access(nearest, os.W_OK) else ", not writable: set FASTLOOP_OUTPUTS"
    yield "outputs", f"{shutil.disk_usage(nearest).free / GIB:.1f} GiB free in {folder}{hint}"
    shm = Path("/dev/shm")
    if shm.exists():
        usage = shutil.disk_usage(shm)
        hint = " (docker run --shm-size=2g gives more)" if usage.total < LITTLE_SHM else ""
        yield "/dev/shm", f"{usage.free / MIB:,.0f} of {usage.total / MIB:,.0f} MiB free{hint}"
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    hint = f" (ulimit -n {most} allows more)" if files <= FEW_FILES < most else ""
    yield "open files", f"{files:,} a process{hint}"


def _environments() -> str:
    """Number, size and requirements of the environments that `fastloop env` has created."""
    from fastloop.cli.clean import describe_item
    from fastloop.core.spans import wall_ms
    from fastloop.processes.environments import list_environments

    found, damaged = list_environments()
    if not found and not damaged:
        return "none: fastloop env loader=<loader> creates the one that a loader needs"
    mib = sum(describe_item(built.folder, wall_ms() / 1000).mib for built in found)
    labels = [*(built.label for built in found), *damaged]
    return f"{len(found)}, {mib:,.1f} MiB: {'; '.join(labels)}"


def _libraries() -> Iterator[str]:
    """Yield a line on the installed optional libraries, and a line on each missing library."""
    from fastloop.core.optional_libraries import INSTALL_FFCV, version_of

    try:
        names = _optional_libraries()
    except PackageNotFoundError:
        yield "optional libraries: not known, as fastloop itself is not installed: pip install -e ."
        return
    found = {name: version_of(name) for name in names}
    present = [f"{name} {number}" for name, number in found.items() if number]
    if find_spec("ffcv"):
        present.append("ffcv")
    yield f"optional libraries: {', '.join(present) or 'none'}"
    for name, options in names.items():
        if not found[name]:
            yield f"not installed: {name} (for {', '.join(options)}): pip install {name}"
    if not find_spec("ffcv"):
        yield f"not installed: ffcv (for ffcv): {INSTALL_FFCV}"


def _optional_libraries() -> dict[str, list[str]]:
    """Optional library -> the options that need it, from the extras in fastloop's metadata.

    Raises PackageNotFoundError if fastloop is not installed.
    """
    # Each extra has the name of the option that needs it, with - in place of _.
    names: dict[str, list[str]] = {}
    for line in requires("fastloop") or []:
        match = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if match and (option := match[2].replace("-", "_")) not in NO_OPTIONS:
            names.setdefault(match[1], []).append(option)
    return names
