"""`fastloop ui` serves MLflow's page over the outputs folder, and leaves no process behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
import urllib.request

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.heavy]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def fetch(address: str) -> str:
    """The page, or nothing while the server does not answer."""
    try:
        with urllib.request.urlopen(address, timeout=10) as response:
            return response.read().decode()
    except OSError:
        return ""


@pytest.mark.nightly
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_page_is_served_and_every_process_ends_with_the_command(end, tmp_path, empty_database):
    (tmp_path / "outputs").mkdir()
    shutil.copy(empty_database, tmp_path / "outputs")
    port = free_port()
    command = [sys.executable, "-m", "fastloop", "ui", f"port={port}"]
    environment = os.environ | {"FASTLOOP_OUTPUTS": str(tmp_path / "outputs")}
    environment.pop("MLFLOW_TRACKING_URI", None)
    with (tmp_path / "ui.log").open("w") as log:
        server = psutil.Popen(
            command, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    family = [server]
    try:
        page = ""
        while not page:
            assert server.poll() is None, (tmp_path / "ui.log").read_text()
            page = fetch(f"http://127.0.0.1:{port}/")
            time.sleep(0.2)
        assert "<title>MLflow</title>" in page
        family += server.children(recursive=True)
        server.send_signal(end)
        left = psutil.wait_procs(family, timeout=60)[1]
        assert [each.cmdline() for each in left] == []
    finally:
        for process in family:
            if process.is_running():
                process.kill()
    told = (tmp_path / "ui.log").read_text()
    assert told.startswith(f"http://127.0.0.1:{port} shows {tmp_path / 'outputs' / 'mlflow.db'}")
