"""What a GPU tells of fastloop, in one command: the tests marked gpu, the experiments on it,
and three headlines. `make gpu` calls it.

    python experiments/gpu.py [--out outputs/gpu] [--wheels FOLDER] [--device cuda] [--seconds 540]

It needs no network, no Hydra and no MLflow; gpu_wheels.py names and fetches the wheels. Every part
runs in a process of its own for its share of the time and writes what it knows as it goes, so that
the folder has figures.json, figures.md and pictures whatever happens. The exit status is 1 where a
part failed or was ended, or where there is no such device; `--device cpu --small` runs every part
on little data, to see that it runs.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpu_parts import PARTS, REPOSITORY
from gpu_wheels import NEEDED, install

Figures = dict[str, Any]
GRACE, SPARE_S = 1.25, 15
"""A part is ended when it has taken so many times its share, and so much more."""
DRAWING_S = 10
TAIL = 40


def main() -> int:
    given = _arguments()
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
        figures = _all_parts(given, Path(scratch), environment)
        drawn = _child(["gpu_pictures.py", str(given.out)], environment, None, 60)
        figures["pictures"] = drawn
        _write(given.out, figures)
    print(f"figures: {given.out}/figures.md")
    states = [part["state"] for part in figures["parts"].values()]
    return int(any(state != "done" for state in [*states, drawn]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu"))
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install beforehand")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:<number> or cpu")
    parser.add_argument("--seconds", type=float, default=540, help="for all parts together")
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


def _all_parts(given: argparse.Namespace, scratch: Path, environment: dict[str, str]) -> Figures:
    from fastloop.spans import now_ns, seconds_between

    start_ns, figures = now_ns(), {"device": given.device, "small": given.small, "parts": {}}
    names = [name for name in PARTS if name in given.parts]
    for number, name in enumerate(names):
        left_s = given.seconds - DRAWING_S - seconds_between(start_ns, now_ns())
        share_s = left_s * PARTS[name][1] / sum(PARTS[one][1] for one in names[number:])
        if share_s < 1:
            figures["parts"][name] = {"state": "left out: no time was left", "rows": []}
            continue
        print(f"{name}: {share_s:.0f} s of {left_s:.0f} s", flush=True)
        file, log, begun_ns = scratch / f"{name}.json", scratch / f"{name}.log", now_ns()
        command = ["gpu_parts.py", name, given.device, f"{share_s:.1f}", str(file)]
        command += ["--small"] if given.small else []
        state = _child(command, environment, log, min(left_s, GRACE * share_s + SPARE_S))
        found = json.loads(file.read_text()) if file.is_file() else {"rows": []}
        took_s = round(seconds_between(begun_ns, now_ns()), 1)
        figures["parts"][name] = _judged(found, state, log) | {"seconds": took_s}
        print(f"{name}: {figures['parts'][name]['state']}, {took_s} s", flush=True)
        with (given.out / "log.txt").open("a") as all_logs:
            all_logs.write(f"==== {name}\n{log.read_text(errors='replace')}\n")
        _write(given.out, figures)
    return figures


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
        except BaseException as end:  # a signal as well
            os.killpg(child.pid, signal.SIGKILL)  # it leads a group of its own
            child.wait()
            if not isinstance(end, subprocess.TimeoutExpired):
                raise
            status = None
    if status is None:
        return f"ended after {limit_s:.0f} s"
    return "done" if status == 0 else f"failed: exit status {status}"


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


def _write(folder: Path, figures: Figures) -> None:
    (folder / "figures.json").write_text(json.dumps(figures, indent=1))
    (folder / "figures.md").write_text(_markdown(figures))


def _markdown(figures: Figures) -> str:
    about = figures["parts"].get("machine", {}).get("machine", {})
    lines = [f"# {', '.join(about.get('gpus') or [figures['device']])}", ""]
    lines += [f"- {name}: {about[name]}" for name in ABOUT if about.get(name)]
    for name, part in figures["parts"].items():
        lines += ["", f"## {name}", "", f"{part['state']}, {part.get('seconds', 0)} s", ""]
        lines += [
            *_table(part["rows"]),
            *(f"- not here: {one}" for one in part.get("left_out", [])),
        ]
        lines += [part["summary"]] if part.get("summary") else []
        if part.get("tail"):
            lines += ["```", *part["tail"], "```"]
    return "\n".join(lines) + "\n"


ABOUT = ("cpu", "cores_usable", "memory_gib", "platform", "python", "git_commit")


def _table(rows: list[Figures]) -> list[str]:
    shown = [row for row in rows if not str(row.get("why", "")).startswith(("unsup", "left out"))]
    columns = list(dict.fromkeys(name for row in shown for name in row))
    if not columns:
        return []
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in shown:
        lines.append(f"| {' | '.join(_cell(row.get(name)) for name in columns)} |")
    return [*lines, ""]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value).replace("|", "/").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
