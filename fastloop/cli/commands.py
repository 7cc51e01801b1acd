"""The commands of fastloop, and the text of `fastloop --help`."""

COMMANDS = {
    "run": "fastloop.run",
    "prepare": "fastloop.cli.prepare",
    "report": "fastloop.cli.report",
    "compare": "fastloop.cli.compare",
    "check": "fastloop.cli.check",
    "suite": "fastloop.cli.suite",
    "log": "fastloop.cli.log",
    "explain": "fastloop.cli.explain",
    "attach": "fastloop.cli.attach",
    "tune": "fastloop.cli.tune",
    "doctor": "fastloop.cli.doctor",
    "list": "fastloop.cli.list",
    "env": "fastloop.cli.env",
    "ui": "fastloop.cli.ui",
    "clean": "fastloop.cli.clean",
}
"""Module of each command. Its main() reads sys.argv."""
HELP = """\
usage: fastloop <command> [arguments]

Find the fastest data loading loop for your data on your machine.

commands:
  run      measure data loaders and compare them
  prepare  download or generate data and write all stores
  report   write a report on a sweep: HTML page, Markdown, pictures, CSV
  compare  compare two sets of results; fails if a job has become slower
  check    fail if a job is slower than in another version, or than its recorded base
  suite    measure every loader on named workloads; verify and show the results
  log      log results to MLflow that its server did not receive
  explain  say why a job takes as long as it does, and what would change that
  attach   run a script of your own and say what its loops wait for
  tune     find the fastest settings for a job within a budget
  doctor   say whether this machine is ready to measure, and what it lacks
  list     list what can be chosen: groups, their options, settings
  env      list or create environments for libraries that exclude others
  ui       start MLflow's UI over the outputs folder
  clean    show what lies in the outputs folder, and remove parts of it

fastloop <command> --help describes a command. fastloop run measures the digits,
fastloop attach train.py your own script. The command run may be left out:
fastloop loader=np_memmap -m trials=20
"""
MEANT = {
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
