"""Make MLflow's default database, completely or not at all.

If a client made the database in place and were killed meanwhile, it would leave a broken one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fastloop.core.atomic_files import flush_to_disk, write_beside
from fastloop.options.tracker._client import limit_attempts
from fastloop.options.tracker._location import default_database


def make_database() -> None:
    """Make the default database with its tables; it gets its name only when it is complete."""
    from mlflow.tracking import MlflowClient

    with write_beside(default_database()) as path:
        with _synchronous_off():
            limit_attempts()
            MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
        flush_to_disk(path)


@contextlib.contextmanager
def _synchronous_off() -> Iterator[None]:
    """Turn off SQLite's syncs to disk while hundreds of statements create the tables."""
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
