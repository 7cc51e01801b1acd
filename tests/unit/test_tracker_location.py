"""The tracker's database: what is wrong with it is told by name, before MLflow tries to open it."""

from __future__ import annotations

import json
import socket
import sqlite3
from contextlib import closing

import pytest
from commands import QUICK, run_fastloop

from fastloop.core.passwords import without_address_users, without_passwords
from fastloop.core.types import UsageError
from fastloop.options.tracker._location import check_database, tracker_place
from fastloop.options.tracker.mlflow import MlflowTracker


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


@pytest.mark.parametrize(
    ("name", "fits"),
    [pytest.param("50 %, ü #1", True, marks=pytest.mark.heavy), ("a?b", False), ("%41", False)],
)
def test_folder_that_no_address_can_hold_is_told_and_no_other_one_is_made(
    tmp_path, monkeypatch, name, fits
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    outputs = tmp_path / name / "outputs"
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(outputs))
    tracker = MlflowTracker(experiment="fastloop")
    if fits:
        assert not tracker.holds("0" * 32)
        assert (outputs / "mlflow.db").exists()
        assert [path.name for path in tmp_path.iterdir()] == [name]
        return
    with pytest.raises(UsageError, match="FASTLOOP_OUTPUTS names another folder"):
        tracker.holds("0" * 32)
    assert not [*tmp_path.iterdir()]


def test_server_is_told_without_its_password(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://user:secret@host:5000/path")
    assert tracker_place() == "MLFLOW_TRACKING_URI=https://host:5000/path"
    check_database()  # which is for SQLite only


SECRET = "s%C3%A9cret%2Fhush"
"""`sécret/hush`, as an address must write it."""


@pytest.mark.parametrize(
    ("uri", "text", "shown"),
    [
        (
            "",
            "see http://user:hush@host:9/a?b=1 or git@host",
            "see http://host:9/a?b=1 or git@host",
        ),
        ("", "postgresql+psycopg://me:hush@h/db failed", "postgresql+psycopg://h/db failed"),
        ("", "to=http%3A%2F%2Fuser%3Ahush%40host%2Fa", "to=http%3A%2F%2Fhost%2Fa"),
        ("", "http://host/?user=me&password=hush&x=1", "http://host/?user=me&password=***&x=1"),
        (f"http://user:{SECRET}@host/", f"http://user:{SECRET}@host/x", "http://host/x"),
        (f"http://user:{SECRET}@host/", "wrong password: sécret/hush", "wrong password: ***"),
        (
            "http://user:a/b@hush@host/",
            "no port: 'http://user:a/b@hush@host/'",
            "no port: 'http://host/'",
        ),
        (
            "",
            '{"a": "http://host/", "mail": "me@host"}',
            '{"a": "http://host/", "mail": "me@host"}',
        ),
        ("", "file:///home/me/a@b/c.db", "file:///home/me/a@b/c.db"),
        ("http://user:data@host/", "no dataset, wrong data", "no dataset, wrong ***"),
    ],
)
def test_passwords_are_not_in_texts(monkeypatch, uri, text, shown):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert without_passwords(text) == shown


@pytest.mark.parametrize("secret", ["store", "data", "1234", "user"])
def test_names_and_numbers_in_files_stay_though_they_are_a_password(monkeypatch, secret):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", secret)
    content = {f"{secret}@loader.{secret}": "npy", secret: 1234.5, "at": [f"{secret}@x", secret]}
    assert json.loads(without_address_users(json.dumps(content))) == content
    addresses = f"http://me:{secret}@host http://{secret}@host %3A%2F%2F{secret}%40host"
    assert without_address_users(addresses) == "http://host http://host %3A%2F%2Fhost"


@pytest.mark.parametrize("secret", ["a/b@hush", "a?b#hush"])
def test_passwords_of_any_characters_are_in_no_file(monkeypatch, secret):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{secret}@host/")
    text = json.dumps({"at": f"http://me:{secret}@host/x", "other": f"http://you:{secret}@host"})
    assert json.loads(without_address_users(text)) == {
        "at": "http://host/x",
        "other": "http://host",
    }


@pytest.mark.heavy
def test_password_is_in_no_line_and_no_file_of_a_lost_server(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    uri = f"http://user:hush-hush@127.0.0.1:{port}/"
    quick = [each for each in QUICK if not each.startswith("tracker=")]
    process = run_fastloop("loader=raw", *quick, cwd=tmp_path, MLFLOW_TRACKING_URI=uri)
    assert process.returncode == 0, process.stderr
    (folder,) = tmp_path.glob("outputs/20*/*/0")
    logged = run_fastloop(str(folder), cwd=tmp_path, command="log", MLFLOW_TRACKING_URI=uri)
    assert logged.returncode == 1
    assert f"127.0.0.1:{port}" in logged.stderr
    files = [path.read_text() for path in folder.iterdir() if path.is_file()]
    lines = process.stdout + process.stderr + logged.stdout + logged.stderr
    assert [text for text in (lines, *files) if "hush-hush" in text] == []
