"""The tracker's database: what is wrong with it is told by name, before MLflow tries to open it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from fastloop.core.types import UsageError
from fastloop.options.tracker._location import check_database, tracker_place


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(tmp_path))
    return tmp_path / "mlflow.db"


def test_locked_database_is_told_by_its_path(path):
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UsageError, match=f"^{path}: database is locked$"):
            check_database(timeout_s=0)
        other.rollback()
    check_database()


@pytest.mark.parametrize("variable", [True, False])
def test_damaged_database_is_told_with_its_remedy(path, monkeypatch, variable):
    path.write_bytes(b"no database" * 100)
    if variable:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    place = f"MLFLOW_TRACKING_URI=sqlite:///{path}" if variable else path
    with pytest.raises(UsageError, match=f"^{place}: file is not a database; move it away, and"):
        check_database()


@pytest.mark.parametrize("name", ["/proc/nope/mlflow.db", "/"])
def test_database_that_cannot_be_opened_is_told_by_its_setting(monkeypatch, name):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{name}")
    with pytest.raises(UsageError, match=f"^MLFLOW_TRACKING_URI=sqlite:///{name}: "):
        check_database()


def test_server_is_told_without_its_password(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://user:secret@host:5000/path")
    assert tracker_place() == "MLFLOW_TRACKING_URI=https://host:5000/path"
    check_database()  # which is for SQLite only
