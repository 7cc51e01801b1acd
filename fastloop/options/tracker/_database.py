"""Make MLflow's default database, completely or not at all.

A client that makes the database in place leaves a broken database if it is killed meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fastloop.core.atomic_files import flush_to_disk, write_beside
from fastloop.options.tracker._client import limit_attempts
from fastloop.options.tracker._location import default_database


def make_database() -> None:
    """Make the default database with its tables, under another name until it is complete."""
    from mlflow.tracking import MlflowClient

    with write_beside(default_database()) as path:
        with _synchronous_off():
            limit_attempts()
            MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
        flush_to_disk(path)


@contextlib.contextmanager
def _synchronous_off() -> Iterator[None]:
    """A context in which SQLite does not sync to disk, and keeps its journal in memory.

    Hundreds of statements create the tables, and SQLite would sync after each of them.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def relax(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = MEMORY")

    event.listen(Engine, "connect", relax)
    try:
        yield
    finally:
        event.remove(Engine, "connect", relax)
