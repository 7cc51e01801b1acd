"""Help of the command line: a list of all commands, and a description of each."""

from __future__ import annotations

import sys

import pytest

from fastloop.__main__ import COMMANDS, main


@pytest.mark.parametrize("arguments", [("-h",), ("--help",)])
def test_help_lists_all_commands(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["fastloop", *arguments])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"run"}))
def test_help_of_a_command_shows_its_usage(monkeypatch, capsys, command):
    monkeypatch.setattr(sys, "argv", ["fastloop", command, "--help"])
    main()
    printed = capsys.readouterr().out
    assert printed.startswith(f"fastloop {command}: ")
    assert f"\n    fastloop {command} " in printed


def test_unknown_command_is_rejected_with_all_commands(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fastloop", "measure"])
    with pytest.raises(SystemExit, match="measure: no such command; allowed: run, prepare, report"):
        main()
