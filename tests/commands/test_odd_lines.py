"""Odd arguments and surroundings of commands: a clear line, and no setting is ignored."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from commands import QUICK, results, run_fastloop

from fastloop.core.result_io import RESULT_FILE, load, save

pytestmark = pytest.mark.slow
LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (
            "report",
            ("format=md", "format=html"),
            "format=html: format= is given twice; allowed: once",
        ),
        ("report", ("folder=\n",), "'folder=\\n': allowed: printable characters"),
        ("report", (f"folder={LONG}",), "folder=xxxxxxxx"),
        ("report", (LONG,), "settings have the form name=value; allowed: sweep=…"),
        ("report", ("folder=\x9b31mred",), r"'folder=\x9b31mred': allowed: printable characters"),
        ("compare", ("\x1b[31mred",), "compare ?[31mred: allowed: two folders"),
        ("suite", ("\x1b[31mred",), "suite ?[31mred: allowed: "),
        ("suite", ("verify", "\x1b[31mred"), "?[31mred: No such file"),
        ("attach", ("-\x1b[31mred",), r"attach '-\x1b[31mred': allowed: [-m] <script>"),
        ("compare", ("base=a", "base=a"), "base=a: base= is given twice; allowed: once"),
        ("compare", ("fail_above=\uff15",), "fail_above=\uff15: allowed: a percentage, 0 or more"),
        ("check", ("record=true", "record=true"), "record=true: record= is given twice"),
        ("attach", ("mine.py\n",), "attach 'mine.py\\n': no such file; allowed: a Python script"),
        ("attach", (LONG,), "xxxxxxxx"),
        ("attach", ("",), "attach : no such file; allowed: a Python script"),
        ("log", ("",), "usage: fastloop log <folder of a sweep or of a job>"),
        ("log", (LONG,), "xxxxxxxx"),
        ("run", (f"loader={LONG}",), "the name is too long for a file"),
        ("run", ("loader=raw\udcff",), r"'loader=raw\udcff': allowed: text in UTF-8"),
    ],
)
def test_odd_argument_is_refused_in_one_short_line(tmp_path, command, arguments, message):
    process = run_fastloop(*arguments, cwd=tmp_path, command=command)
    assert process.returncode not in (0, None)
    assert process.stdout == ""
    assert message in process.stderr
    assert process.stderr.count("\n") == 1
    assert process.stderr.strip().isprintable()
    assert len(process.stderr) < 2000
    assert not (tmp_path / "outputs").exists()


def test_long_name_of_a_folder_is_shortened_where_it_fails(tmp_path):
    process = run_fastloop("loader=raw", f"dataset.root={LONG}", *QUICK, cwd=tmp_path)
    assert process.returncode == 1
    assert "File name too long" in process.stderr
    assert len(process.stderr) < 2000


@pytest.mark.parametrize("root", ["file", "/dev/full"])
def test_store_root_that_is_a_file_is_named(tmp_path, root):
    (tmp_path / "file").write_text("mine")
    process = run_fastloop("loader=np_memmap", f"loader.store.root={root}", *QUICK, cwd=tmp_path)
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1] == f"loader.store.root={root}: it is not a folder"
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (("hydra.run.dir=mine/here",), "mine/here"),
        (("-m", "hydra.sweep.dir=mine/sweep"), "mine/sweep"),
        (("hydra.mode=MULTIRUN", "hydra.sweep.dir=mine/mode"), "mine/mode"),
    ],
)
def test_folder_that_hydra_is_given_has_the_results(tmp_path, given, place):
    process = run_fastloop(*given, *QUICK, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    (path,) = tmp_path.rglob(RESULT_FILE)
    assert path.is_relative_to(tmp_path / place)
    assert load(path.parent).status == "FINISHED"
    assert place in process.stdout


ODD_ENVIRONMENT = {
    "COLUMNS": "abc",
    "CUDA_VISIBLE_DEVICES": "nope",
    "OMP_NUM_THREADS": "abc",
    "PYTHONOPTIMIZE": "2",
    "PYTHONPATH": "/no/such:\x01",
}


@pytest.mark.heavy
def test_odd_environment_keeps_no_job_from_its_end(tmp_path):
    environment = {name: each for name, each in os.environ.items() if name != "HOME"}
    paths = [*filter(None, [environment.get("PYTHONPATH")]), ODD_ENVIRONMENT["PYTHONPATH"]]
    odd = ODD_ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.run(
        [sys.executable, "-m", "fastloop", "run", "loader=raw", *QUICK],
        cwd=tmp_path,
        env=environment | odd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr
    (result,) = results(tmp_path)
    assert result.status == "FINISHED"


def test_time_limit_that_no_trial_can_keep_is_the_reason_of_a_failed_job(tmp_path):
    process = run_fastloop("loader=raw", "trial_timeout_s=1e-9", *QUICK, cwd=tmp_path)
    assert process.returncode == 1
    (result,) = results(tmp_path)
    assert result.status_reason.startswith("timeout: ")


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the stream")
@pytest.mark.heavy
@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-"])
def test_closed_stream_is_as_one_that_leads_nowhere(tmp_path, closed):
    line = f'exec "$0" -m fastloop run "$@" {closed}'
    command = ["bash", "-c", line, sys.executable, "loader=raw", "isolation=inline", *QUICK]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    (result,) = results(tmp_path)
    assert result.status == "FINISHED"
    assert "Traceback" not in process.stdout + process.stderr
    line = f'exec "$0" -m fastloop report format=md {closed}'
    command = ["bash", "-c", line, sys.executable]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert (process.stdout == "") == (closed == ">&-")
    assert list(tmp_path.glob("outputs/20*/*/report/report.md"))


def test_rank_without_torchrun_is_told(tmp_path):
    variables = {"RANK": "1", "WORLD_SIZE": "2"}
    process = run_fastloop("loader=raw", *QUICK, cwd=tmp_path, **variables)
    assert process.returncode == 1
    assert process.stderr.startswith("WORLD_SIZE=2 without ")
    assert process.stderr.count("\n") == 1


def test_log_asks_an_unreachable_server_only_once(tmp_path):
    quick = ("loader=raw", "isolation=inline", *QUICK)
    assert run_fastloop(*quick, cwd=tmp_path).returncode == 0
    (folder,) = tmp_path.glob("outputs/20*/*/0")
    save(replace(load(folder), run_id="of a server that was lost"), folder)
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections = []

        def refuse() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # closed
                    return
                connections.append(connection.recv(1 << 16))
                connection.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        process = run_fastloop(str(folder), cwd=tmp_path, command="log", MLFLOW_TRACKING_URI=uri)
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert process.returncode == 1
    assert len(connections) <= 2  # the second one is MLflow's only retry
    assert process.stderr.count("\n") == 1
