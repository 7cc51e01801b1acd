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
"""Time for another process to release its lock on the database."""
DAMAGES = ("not a database", "malformed")
"""Parts of SQLite's messages about a damaged database."""
REMEDY = "move it away, and `fastloop log <folder>` logs results to a new one"
"""The advice for a damaged database."""


def is_default() -> bool:
    """True if runs go to the database in the outputs folder: $MLFLOW_TRACKING_URI names no other
    place."""
    return not os.environ.get("MLFLOW_TRACKING_URI")


def tracking_uri() -> str:
    """$MLFLOW_TRACKING_URI, or the database in the outputs folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{default_database()}"


def default_database() -> Path:
    """The database in the outputs folder."""
    return outputs_folder() / "mlflow.db"


def default_artifacts() -> str:
    """URI of the files that belong to the default database."""
    return (outputs_folder() / "mlartifacts").as_uri()


def tracker_place() -> str:
    """The setting that names the server, without a password, or the path of the default database,
    for messages."""
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        return without_passwords(f"MLFLOW_TRACKING_URI={uri}")
    return str(default_database())


def check_default_place() -> None:
    """Raise UsageError if the path of the default database can't be part of an address."""
    # SQLAlchemy takes the text after a ? for a query, and decodes characters such as %41. If the
    # path were encoded instead, MLflow would make a folder with the encoded name.
    path = str(default_database())
    if "?" in path or unquote(path) != path:
        reason = "an address of a database can't hold a ? or an encoded character"
        raise UsageError(f"{path}: {reason}; FASTLOOP_OUTPUTS names another folder")


def check_database(timeout_s: float = LOCK_TIMEOUT_S) -> None:
    """Raise UsageError if an SQLite database can't be written, or is damaged or locked.

    Any other tracker is not checked.
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
