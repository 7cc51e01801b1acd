"""What a GPU tells of fastloop, in one command: the tests marked gpu, the experiments on it,
and three headlines. `make gpu` calls it.

    python experiments/gpu.py [--out outputs/gpu] [--wheels FOLDER] [--device cuda] [--seconds 540]

It needs no network, no Hydra and no MLflow; gpu_wheels.py names and fetches the wheels. Every part
runs in a process of its own for its share of the time and writes what it knows as it goes, so that
the folder has figures.json and figures.md whatever happens, and pictures of the headlines from the
moment that these are known. The exit status is 1 where a part failed or was ended, or where there
is no such device; `--device cpu --small` runs every part on little data, to see that it runs.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_parts import PARTS, REPOSITORY
from gpu_report import HEADLINES, write
from gpu_wheels import NEEDED, install

Figures = dict[str, Any]
GRACE, SPARE_S = 1.25, 15
"""A part is ended when it has taken so many times its share, and so much more."""
DRAWING_S, LONGEST_DRAWING_S = 10, 40
"""Kept for the pictures, and when they are given up."""
TAIL = 40


def main() -> int:
    # fastloop's own clock comes with torch, whose import may take long and counts as well
    begun_s = os.times().elapsed
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that its part ends with it
    with tempfile.TemporaryDirectory(prefix="fastloop-gpu-", ignore_cleanup_errors=True) as scratch:
        environment = _environment(Path(scratch))
        try:
            if given.wheels:
                install(given.wheels, Path(scratch) / "site")
        except (OSError, subprocess.CalledProcessError) as error:
            return _refused(str(error))
        if why := _missing(given.device, environment):
            return _refused(why)
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "log.txt").write_text("")
        figures: Figures = {"device": given.device, "small": given.small, "parts": {}}
        parts = _Parts(given, Path(scratch), environment, figures)
        try:
            parts.run(lambda: given.seconds - (os.times().elapsed - begun_s))
        finally:
            _end_what_is_left()
            parts.draw()
            write(given.out, figures)
    print(f"figures: {given.out}/figures.md")
    states = [part["state"] for part in figures["parts"].values()]
    return int(any(state != "done" for state in [*states, figures["pictures"]]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu"))
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install beforehand")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:<number> or cpu")
    parser.add_argument("--seconds", type=float, default=540, help="for all of it together")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, by their names")
    parser.add_argument("--small", action="store_true", help="little data: is it all there?")
    given = parser.parse_args()
    given.parts = given.parts.split(",")
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return given


def _environment(scratch: Path) -> dict[str, str]:
    """Of the parts: this checkout, the installed wheels, and an outputs folder that goes away."""
    # beside an installed package its modules would hide Python's own
    source = [str(REPOSITORY)] if (REPOSITORY / "fastloop" / "__init__.py").is_file() else []
    paths = [str(scratch / "site"), *source, os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "FASTLOOP_OUTPUTS": str(scratch / "outputs"),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # jax would take most of the device's memory
    }


def _missing(device: str, environment: dict[str, str]) -> str:
    """Why nothing can be run here, in a line; empty where it can."""
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    absent = [name for name in ("torch", *NEEDED, "yaml") if find_spec(name) is None]
    if absent:
        remedy = "experiments/gpu_wheels.py fetches the small ones, --wheels installs them"
        return f"not installed: {', '.join(absent)}; {remedy}"
    import torch

    index = int(device.partition(":")[2] or 0)
    if device.startswith("cuda") and index >= torch.cuda.device_count():
        built = f"torch {torch.__version__} built for CUDA {torch.version.cuda}"
        return f"no CUDA device {index} is here ({built}); --device cpu --small runs it without"
    return ""


def _refused(why: str) -> int:
    print(f"make gpu: {why}", file=sys.stderr)
    return 1


class _Parts:
    """All parts, one after the other, and what they have told so far."""

    def __init__(
        self,
        given: argparse.Namespace,
        scratch: Path,
        environment: dict[str, str],
        figures: Figures,
    ) -> None:
        self._given, self._scratch = given, scratch
        self._environment, self._figures = environment, figures

    def run(self, left: Callable[[], float]) -> None:
        """Each for its share of the seconds that `left` tells."""
        found = self._figures["parts"]
        names = [name for name in PARTS if name in self._given.parts]
        for number, name in enumerate(names):
            left_s = left() - DRAWING_S
            share_s = left_s * PARTS[name][1] / sum(PARTS[one][1] for one in names[number:])
            if share_s < 1:
                found[name] = {"state": "left out: no time was left", "rows": []}
                continue
            print(f"{name}: {share_s:.0f} s of {left_s:.0f} s", flush=True)
            found[name] = self._part(name, share_s, min(left_s, GRACE * share_s + SPARE_S))
            took_s = found[name]["seconds"] = round(left_s - (left() - DRAWING_S), 1)
            print(f"{name}: {found[name]['state']}, {took_s} s", flush=True)
            if name == [*HEADLINES][-1]:
                self.draw()
            write(self._given.out, self._figures)

    def draw(self) -> None:
        """Pictures of what is known."""
        write(self._given.out, self._figures)
        command = ["gpu_pictures.py", str(self._given.out)]
        self._figures["pictures"] = _child(command, self._environment, None, LONGEST_DRAWING_S)

    def _part(self, name: str, share_s: float, limit_s: float) -> Figures:
        file, log = self._scratch / f"{name}.json", self._scratch / f"{name}.log"
        command = ["gpu_parts.py", name, self._given.device, f"{share_s:.1f}", str(file)]
        command += ["--small"] if self._given.small else []
        state = _child(command, self._environment, log, limit_s)
        found = json.loads(file.read_text()) if file.is_file() else {"rows": []}
        with (self._given.out / "log.txt").open("a") as all_logs:
            all_logs.write(f"==== {name}\n{log.read_text(errors='replace')}\n")
        return _judged(found, state, log)


def _child(
    command: list[str], environment: dict[str, str], log: Path | None, limit_s: float
) -> str:
    """`done`, or how it ended otherwise; nothing of it is left."""
    script = REPOSITORY / "experiments" / command[0]
    with open(log or os.devnull, "wb") as output:
        child = subprocess.Popen(
            [sys.executable, str(script), *command[1:]],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"ended after {limit_s:.0f} s"
        finally:  # a signal as well
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # it leads a group of its own
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it for good
                child.wait(10)
    return "done" if status == 0 else f"failed: exit status {status}"


def _end_what_is_left() -> None:
    """A signal may come while a part is being started, when nobody knows it yet."""
    import psutil

    left = psutil.Process().children(recursive=True)
    for one in left:
        with contextlib.suppress(psutil.Error):
            one.kill()
    psutil.wait_procs(left, timeout=10)


def _judged(found: Figures, state: str, log: Path) -> Figures:
    """The part's figures with its state, what it left out, and its last lines where it failed."""
    left_out = list(found.get("left_out", []))
    failed = found.get("failed", False)
    for row in found["rows"]:
        why = str(row.get("why", ""))
        if why.startswith(("unsupported", "left out")):
            left_out.append(f"{row['name']}: {why}")
        elif why:
            failed = True
    if state == "done" and failed:
        state = "done, with failures"
    tail = [] if state == "done" else log.read_text(errors="replace").splitlines()[-TAIL:]
    return found | {"state": state, "left_out": left_out, "tail": tail}


if __name__ == "__main__":
    sys.exit(main())
