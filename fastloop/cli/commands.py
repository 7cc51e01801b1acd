"""The commands of fastloop, and the text of `fastloop --help`."""

COMMANDS = {
    "run": "measure data loaders and compare them",
    "prepare": "download or generate data, and write all stores",
    "report": "write a report on a sweep: HTML page, Markdown, pictures, CSV",
    "compare": "compare two sets of results, and fail if a job has become slower",
    "check": "fail if a job is slower than in another version, or than its recorded base",
    "suite": "measure every loader on named workloads; verify and show the results",
    "log": "log to MLflow the results that its server has not received",
    "explain": "say why a job takes as long as it does, and which changes would help",
    "attach": "run a script of your own, and say what its loops wait for",
    "tune": "find the fastest settings for a job, or a script, within a budget",
    "doctor": "say whether this machine is ready to measure, and what it lacks",
    "list": "list the groups of options, their options and settings",
    "env": "list or create environments for libraries that exclude others",
    "ui": "start MLflow's web pages for the results in the outputs folder",
    "clean": "show the contents of the outputs folder, and remove parts of it",
}
"""Name of a command -> its purpose, for --help."""
LINES = "\n".join(f"  {name:<9}{purpose}" for name, purpose in COMMANDS.items())
HELP = f"""\
usage: fastloop <command> [arguments]

Find the fastest data loading loop for your data on your machine.

commands:
{LINES}

fastloop <command> --help describes a command. `fastloop run` measures a small set of
handwritten digits, `fastloop attach train.py` your own script. The word run may be left
out: `fastloop loader=np_memmap -m trials=20`.
"""
MEANT_COMMANDS = {
    "options": "list",
    "loaders": "list",
    "datasets": "list",
    "help": "--help",
    "measure": "run",
    "bench": "run",
    "benchmark": "run",
    "diff": "compare",
    "mlflow": "ui",
    "delete": "clean",
    "rm": "clean",
}
"""Word that other programs use for a command -> fastloop's command."""


def module_of(command: str) -> str:
    """Name of the command's module; its main() reads sys.argv."""
    return "fastloop.run" if command == "run" else f"fastloop.cli.{command}"
