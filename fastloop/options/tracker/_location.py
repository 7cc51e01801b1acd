"""The place of MLflow's runs, and a check of an SQLite database before MLflow opens it.

Without this check, MLflow would try for two minutes to open a database that is locked or damaged.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

from fastloop.core.outputs_folder import outputs_folder
from fastloop.core.passwords import without_passwords
from fastloop.core.types import UsageError

LOCK_TIMEOUT_S = 10.0
"""Seconds to wait until another process releases its lock on the database."""
DAMAGES = ("not a database", "malformed")
"""Parts of SQLite's messages about a damaged database."""
REMEDY = "move it away, and `fastloop log <folder>` logs results to a new one"
"""The advice for a damaged database."""


def is_default() -> bool:
    """True if runs go to the default database, as $MLFLOW_TRACKING_URI names no other place."""
    return not os.environ.get("MLFLOW_TRACKING_URI")


def tracking_uri() -> str:
    """URI of MLflow's runs: $MLFLOW_TRACKING_URI or, if not set, that of the default database."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{default_database()}"


def default_database() -> Path:
    """Path of the default database, which is in the outputs folder."""
    return outputs_folder() / "mlflow.db"


def default_artifacts() -> str:
    """URI of the folder with the files of the runs in the default database."""
    return (outputs_folder() / "mlartifacts").as_uri()


def tracker_place() -> str:
    """The place of MLflow's runs, as a text for messages.

    This is the setting of MLFLOW_TRACKING_URI, without a password, or the path of the default
    database.
    """
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        return without_passwords(f"MLFLOW_TRACKING_URI={uri}")
    return str(default_database())


def check_default_place() -> None:
    """Raise UsageError if the path of the default database can't be part of an address."""
    # SQLAlchemy takes the text after a ? for a query, and decodes characters such as %41. Encoding
    # the path is no remedy, because MLflow would make a folder with the encoded name.
    path = str(default_database())
    if "?" in path or unquote(path) != path:
        reason = "an address of a database can't hold a ? or an encoded character"
        raise UsageError(f"{path}: {reason}; FASTLOOP_OUTPUTS names another folder")


def check_database(timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Raise UsageError if runs go to an SQLite database that is damaged, locked or not writable.

    Any other place of runs is not checked. timeout_s: seconds to wait for the lock.
    """
    scheme, _, name = tracking_uri().partition(":///")
    if not scheme.startswith("sqlite") or not name:
        return
    path = Path(unquote(name.partition("?")[0]))
    try:
        # MLflow would also create the folder, but sqlite3 does not.
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=timeout_s)) as connection:
            # This takes the lock for writing, which opening the database does not.
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()
    except (OSError, sqlite3.Error) as error:
        remedy = f"; {REMEDY}" if any(damage in str(error) for damage in DAMAGES) else ""
        raise UsageError(f"{tracker_place()}: {error}{remedy}") from error
