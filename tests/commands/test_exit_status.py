"""The exit status of a wrong setting is for every command that of docs/commands.md's table."""

from __future__ import annotations

import re

import pytest
from commands import run_fastloop
from options import REPOSITORY

from fastloop.cli.commands import COMMANDS

pytestmark = pytest.mark.slow
TABLE = {
    row[0].strip(" `"): int(row[-1])
    for line in (REPOSITORY / "docs" / "commands.md").read_text().splitlines()
    if len(row := line.strip("|").split("|")) == 6 and re.fullmatch(r" \d ", row[-1])
}
"""Command -> its status for a wrong setting, as documented."""
WRONG = {
    "compare": ["nope=1"],
    "list": ["nope"],
    "log": ["nope"],
    "attach": ["--nope"],
    "suite verify": ["verify", "nope.json"],
    "clean": ["nope"],
}
"""The arguments of a command of which `nope=1` is no setting, but something else."""


def test_table_has_every_command():
    assert [each for each in TABLE if each != "suite verify"] == [*COMMANDS]


@pytest.mark.parametrize("command", TABLE)
def test_wrong_setting_has_the_documented_status(tmp_path, command):
    arguments = WRONG.get(command, ["nope=1"])
    process = run_fastloop(*arguments, cwd=tmp_path, command=command.partition(" ")[0])
    assert process.returncode == TABLE[command]
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1
    assert "nope" in process.stderr
    assert not [*tmp_path.iterdir()]


def test_folder_that_the_system_refuses_is_no_slower_job(tmp_path):
    """compare exits with 1 after a regression."""
    process = run_fastloop(f"base={'a' * 300}", "new=.", cwd=tmp_path, command="compare")
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1
