"""Everything that fastloop measures on a GPU, in one command: the tests marked gpu, the experiments
on it, and three headlines. `make gpu` calls it.

    python -m experiments.gpu.run [--out outputs/gpu] [--wheels FOLDER] [--device cuda]
                                  [--seconds 540]

It needs no network, no Hydra and no MLflow; wheels.py lists and fetches the wheels. Every part runs
in a process of its own for its share of the time and writes its figures as it goes, so that the
folder has figures.json and figures.md whatever happens, and pictures of the headlines as soon as
these are known. The exit status is 1 if a part failed or was ended, or if there is no such device;
`--device cpu --small` runs every part on little data, to check that it runs.
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

from experiments.gpu.parts import PARTS, REPOSITORY
from experiments.gpu.report import HEADLINES, write
from experiments.gpu.wheels import NEEDED, install

Figures = dict[str, Any]
GRACE, SPARE_S = 1.25, 15
"""A part is ended GRACE times its share of the time, plus SPARE_S, after it began."""
DRAWING_S, LONGEST_DRAWING_S = 10, 40
"""Seconds that are reserved for the pictures, and the time after which drawing is ended."""
TAIL = 40


def main() -> int:
    # fastloop's own clock needs torch, and the import of torch may take long and has to be counted.
    start_s = os.times().elapsed
    arguments = _parse_arguments()
    # SystemExit also ends the part that runs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="fastloop-gpu-", ignore_cleanup_errors=True) as scratch:
        environment = _environment(Path(scratch))
        try:
            if arguments.wheels:
                install(arguments.wheels, Path(scratch) / "site")
        except (OSError, subprocess.CalledProcessError) as error:
            return _refuse(str(error))
        if reason := _find_obstacle(arguments.device, environment):
            return _refuse(reason)
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "log.txt").write_text("")
        figures: Figures = {"device": arguments.device, "small": arguments.small, "parts": {}}
        series = _PartSeries(arguments, Path(scratch), environment, figures)
        try:
            series.run(lambda: arguments.seconds - (os.times().elapsed - start_s))
        finally:
            _kill_children()
            series.draw()
            write(arguments.out, figures)
    print(f"figures: {arguments.out}/figures.md")
    states = [part["state"] for part in figures["parts"].values()]
    return int(any(state != "done" for state in [*states, figures["pictures"]]))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu"))
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install beforehand")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:<number> or cpu")
    parser.add_argument("--seconds", type=float, default=540, help="for everything together")
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="names of parts, separated by commas"
    )
    parser.add_argument(
        "--small", action="store_true", help="little data, to check that everything runs"
    )
    arguments = parser.parse_args()
    arguments.parts = arguments.parts.split(",")
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no such parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return arguments


def _environment(scratch: Path) -> dict[str, str]:
    """The environment of the parts: this checkout, the installed wheels, a temporary outputs
    folder."""
    paths = [str(scratch / "site"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "FASTLOOP_OUTPUTS": str(scratch / "outputs"),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch),
        # Otherwise jax takes most of the device's memory.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def _find_obstacle(device: str, environment: dict[str, str]) -> str:
    """The reason why nothing can be run here; empty if nothing is missing."""
    sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
    absent = [name for name in ("torch", *NEEDED) if find_spec(name) is None]
    if absent:
        remedy = "experiments.gpu.wheels fetches the small ones, --wheels installs them"
        return f"not installed: {', '.join(absent)}; {remedy}"
    import torch

    index = int(device.partition(":")[2] or 0)
    if device.startswith("cuda") and index >= torch.cuda.device_count():
        version = f"torch {torch.__version__} built for CUDA {torch.version.cuda}"
        return f"no CUDA device {index} is here ({version}); --device cpu --small runs without one"
    return ""


def _refuse(reason: str) -> int:
    print(f"make gpu: {reason}", file=sys.stderr)
    return 1


class _PartSeries:
    """All parts, which run one after the other, and their figures so far."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        scratch: Path,
        environment: dict[str, str],
        figures: Figures,
    ) -> None:
        self._arguments, self._scratch = arguments, scratch
        self._environment, self._figures = environment, figures

    def run(self, seconds_left: Callable[[], float]) -> None:
        """Run each part for its share of the remaining seconds."""
        parts = self._figures["parts"]
        names = [name for name in PARTS if name in self._arguments.parts]
        for number, name in enumerate(names):
            left_s = seconds_left() - DRAWING_S
            shares = sum(PARTS[later][1] for later in names[number:])
            share_s = left_s * PARTS[name][1] / shares
            if share_s < 1:
                parts[name] = {"state": "left out: no time was left", "rows": []}
                continue
            print(f"{name}: {share_s:.0f} s of {left_s:.0f} s", flush=True)
            parts[name] = self._run_part(name, share_s, min(left_s, GRACE * share_s + SPARE_S))
            took_s = parts[name]["seconds"] = round(left_s - (seconds_left() - DRAWING_S), 1)
            print(f"{name}: {parts[name]['state']}, {took_s} s", flush=True)
            if name == [*HEADLINES][-1]:
                self.draw()
            write(self._arguments.out, self._figures)

    def draw(self) -> None:
        """Draw pictures of the figures so far."""
        write(self._arguments.out, self._figures)
        command = ["experiments.gpu.pictures", str(self._arguments.out)]
        state = _run_module(command, self._environment, None, LONGEST_DRAWING_S)
        self._figures["pictures"] = state

    def _run_part(self, name: str, share_s: float, limit_s: float) -> Figures:
        file, log = self._scratch / f"{name}.json", self._scratch / f"{name}.log"
        device = self._arguments.device
        command = ["experiments.gpu.parts", name, device, f"{share_s:.1f}", str(file)]
        command += ["--small"] if self._arguments.small else []
        state = _run_module(command, self._environment, log, limit_s)
        part = json.loads(file.read_text()) if file.is_file() else {"rows": []}
        with (self._arguments.out / "log.txt").open("a") as all_logs:
            all_logs.write(f"==== {name}\n{log.read_text(errors='replace')}\n")
        return _judge(part, state, log)


def _run_module(
    command: list[str], environment: dict[str, str], log: Path | None, limit_s: float
) -> str:
    """Run `python -m <command>`, and leave none of its processes. Returns `done`, or how it ended
    otherwise."""
    with open(log or os.devnull, "wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"ended after {limit_s:.0f} s"
        # A signal, too, arrives as an exception.
        finally:
            with contextlib.suppress(ProcessLookupError):
                # The part leads its own process group.
                os.killpg(child.pid, signal.SIGKILL)
            # A driver may block the part for ever.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
    return "done" if status == 0 else f"failed: exit status {status}"


def _kill_children() -> None:
    """Kill a part that was being started when a signal came, before it had been recorded."""
    import psutil

    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(children, timeout=10)


def _judge(part: Figures, state: str, log: Path) -> Figures:
    """The part's figures with its state and the figures that are missing, and, if it failed, its
    last lines."""
    left_out = list(part.get("left_out", []))
    failed = part.get("failed", False)
    for row in part["rows"]:
        reason = str(row.get("why", ""))
        if reason.startswith(("unsupported", "left out")):
            left_out.append(f"{row['name']}: {reason}")
        elif reason:
            failed = True
    if state == "done" and failed:
        state = "done, with failures"
    tail = [] if state == "done" else log.read_text(errors="replace").splitlines()[-TAIL:]
    return part | {"state": state, "left_out": left_out, "tail": tail}


if __name__ == "__main__":
    sys.exit(main())
