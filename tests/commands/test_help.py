"""Help of the command line: a list of all commands, and a description of each."""

from __future__ import annotations

import re
import subprocess
import sys
from subprocess import PIPE

import pytest
from hydra._internal.hydra import Hydra

import fastloop
from fastloop.__main__ import main
from fastloop.cli.commands import COMMANDS
from fastloop.core.parts import Part
from fastloop.explain.attach.loops import PARTS
from fastloop.explain.verdict import PHRASES


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


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("attach", {*map(str, PARTS), str(Part.UNATTRIBUTED)}),
        ("explain", {*map(str, PHRASES), str(Part.STEP)}),
    ],
)
def test_help_lists_the_words_of_a_verdict(monkeypatch, capsys, command, words):
    monkeypatch.setattr(sys, "argv", ["fastloop", command, "--help"])
    main()
    printed = capsys.readouterr().out
    assert len(words) >= 8
    assert {word for word in words if not re.search(rf"\b{word}\b", printed)} == set()


@pytest.mark.parametrize("overrides", [(), ("loader=np_memmap", "-m")], ids=str)
def test_help_of_run_does_not_list_groups_that_its_template_lacks(monkeypatch, capsys, overrides):
    """Hydra's list of all groups and options takes seconds."""
    monkeypatch.setattr(Hydra, "list_all_config_groups", None)
    monkeypatch.setattr(sys, "argv", ["fastloop", "run", "--help", *overrides])
    main()
    printed = capsys.readouterr().out
    assert printed.startswith("fastloop: which data loading loop is fastest")
    assert "np_memmap" in printed


@pytest.mark.heavy
def test_help_with_a_template_of_the_users_has_what_hydra_fills_in(monkeypatch, capsys):
    template = "hydra.help.template='mine: $APP_CONFIG_GROUPS'"
    monkeypatch.setattr(sys, "argv", ["fastloop", "run", "--help", template])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    printed = capsys.readouterr().out
    assert printed.startswith("mine: benchmark: all, inference, training, traversal\n")


@pytest.mark.parametrize("override", ["loader=nope", "nope=1"])
def test_help_with_a_wrong_override_ends_with_its_error(monkeypatch, capsys, override):
    monkeypatch.setattr(sys, "argv", ["fastloop", "run", "--help", override])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)


def test_unknown_command_is_rejected_with_all_commands(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fastloop", "measure"])
    with pytest.raises(
        SystemExit,
        match=r"measure: no such command; did you mean fastloop run\? allowed: run, prep",
    ):
        main()


@pytest.mark.parametrize("arguments", [("--version",), ("run", "--version")])
def test_version_is_that_of_fastloop(monkeypatch, capsys, arguments):
    monkeypatch.setattr(sys, "argv", ["fastloop", *arguments])
    main()
    assert capsys.readouterr().out == f"fastloop {fastloop.__version__}\n"


@pytest.mark.parametrize(
    "name", ["fastloop.run", "fastloop", pytest.param("fastloop compare", marks=pytest.mark.heavy)]
)
def test_reader_that_stops_reading_gets_no_traceback(tmp_path, name):
    command = [sys.executable, "-m", *name.split(), "--help"]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_generator_of_the_options_page_writes_to_no_folder_by_mistake(tmp_path, arguments):
    command = [sys.executable, "-m", "fastloop.config.help", *arguments]
    process = subprocess.run(command, cwd=tmp_path, stderr=PIPE, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr == "usage: python -m fastloop.config.help docs/options.md\n"
    assert list(tmp_path.iterdir()) == []


def test_commands_that_measure_nothing_do_not_wait_for_torch(tmp_path):
    """Nor does attach, before the script that it runs and after it."""
    (tmp_path / "script.py").write_text("print('ran')")
    modules = ("cli.clean", "cli.compare", "cli.report", "cli.log", "explain.attach.explain_script")
    program = "".join(f"import fastloop.{name}\n" for name in modules)
    program += "import sys; from fastloop.__main__ import main\n"
    program += "try: main()\nfinally: print(sorted({'torch', 'mlflow'} & set(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", program, "attach", "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout.split() == ["ran", "[]"], process.stderr
