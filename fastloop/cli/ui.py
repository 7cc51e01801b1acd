"""fastloop ui: start MLflow's web pages for the outputs folder, on this machine only.

    fastloop ui [port=5000]

Ctrl-C ends it. Don't leave it running beside a measurement: it takes memory and a core.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

from fastloop.cli.arguments import parse_settings
from fastloop.core.types import UsageError
from fastloop.options.tracker._location import default_database, is_default, tracker_place

DEFAULTS = {"port": "5000"}
"""The command's settings, with their defaults as text."""
HOST = "127.0.0.1"
"""The server's address, which only this machine can reach."""
HIGHEST_PORT = 65_535
SERVER_ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Environment variables of the server. Without its job runner, the server takes 0.5 GB of memory
instead of 2.3 GB."""


def main() -> None:
    """Replace this process by MLflow's server; exits with 1 and one line if that fails."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__, end="")
        return
    try:
        port = _port(parse_settings(sys.argv[1:], DEFAULTS)["port"])
        _refuse_remote()
        database = _database()
        _check_free(port)
        _serve(port, database)
    except UsageError as error:
        sys.exit(str(error))


def _port(text: str) -> int:
    """Parse the port number; raises UsageError unless it is from 1 to HIGHEST_PORT."""
    if not text.isdecimal() or not 0 < int(text) <= HIGHEST_PORT:
        raise UsageError(f"port={text}: allowed: 1 to {HIGHEST_PORT}")
    return int(text)


def _database() -> Path:
    """The path of mlflow.db; raises UsageError if there is none yet."""
    database = default_database().absolute()
    if not database.is_file():
        raise UsageError(f"{database}: no results yet; fastloop run produces some")
    return database


def _check_free(port: int) -> None:
    """Raise UsageError if the port is in use, or can't be used."""
    with socket.socket() as probe:
        # The server sets this option, too. Without the option, the port would seem to be in use for
        # a minute after an earlier server has ended.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            reason = error.strerror or "it can't be used"
            raise UsageError(f"port={port}: {reason.lower()}; allowed: a free port") from None


def _refuse_remote() -> None:
    """Raise UsageError if results are logged to an MLflow server, which shows them itself."""
    if not is_default():
        raise UsageError(
            f"{tracker_place()}: results are there, and that server shows them; ui shows mlflow.db"
        )


def _serve(port: int, database: Path) -> NoReturn:
    """Replace this process by MLflow's server, which only this machine can reach."""
    print(f"http://{HOST}:{port} shows {database}; Ctrl-C ends it", flush=True)
    arguments = [
        "--host",
        HOST,
        "--port",
        str(port),
        "--backend-store-uri",
        f"sqlite:///{database}",
    ]
    command = [sys.executable, "-m", "mlflow", "ui", *arguments]
    # execve replaces this process, so Ctrl-C and signals reach the server directly.
    os.execve(sys.executable, command, os.environ | SERVER_ENVIRONMENT)
