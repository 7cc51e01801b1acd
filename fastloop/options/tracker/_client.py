"""MLflow's client, searches that return all pages of their results, and filters for them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from fastloop.core.passwords import without_passwords
from fastloop.core.text import first_line
from fastloop.core.types import UsageError
from fastloop.options.tracker._location import tracker_place, tracking_uri

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run
    from mlflow.store.entities import PagedList
    from mlflow.tracking import MlflowClient

T = TypeVar("T")

# These are set before the client is used. Telemetry would run a thread during the measurements. By
# default MLflow retries a refused connection for 247 s and waits 8 x 120 s for a server that does
# not answer. With these values the client gives up on an unreachable server after 14 s.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "7")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

# MLflow logs the creation of tables, and errors with a traceback; fastloop reports errors itself.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
PAGE = 1000
"""Maximum number of runs, or experiments, that one call returns; there may be more pages."""
DATABASE_ATTEMPTS = 5
"""Attempts to open a database, which take 3 s. MLflow's default, 10 attempts, takes 102 s."""


def open_client() -> MlflowClient:
    """A client for the database or the server."""
    from mlflow.tracking import MlflowClient

    scheme = urlsplit(tracking_uri()).scheme
    if scheme and not scheme.startswith("http"):
        limit_attempts()
    return MlflowClient(tracking_uri=tracking_uri())


def search_runs(
    client: MlflowClient,
    experiment_ids: list[str],
    filter_string: str,
    order_by: list[str] | None = None,
) -> list[Run]:
    """All runs that match the filter, however many there are."""
    return _read_pages(
        partial(client.search_runs, experiment_ids, filter_string, order_by=order_by)
    )


def filter_of_finished_runs(sweep: str) -> str:
    """MLflow's filter for the runs of a sweep that have figures."""
    return f"{filter_of_sweep(sweep)} AND attributes.status = 'FINISHED'"


def filter_of_sweep(sweep: str) -> str:
    """MLflow's filter for the runs of a sweep."""
    # A quote would end the text. No sweep has one in its name.
    name = sweep.replace("'", "")
    return f"tags.sweep = '{name}'"


def search_experiments(client: MlflowClient) -> list[Experiment]:
    """All experiments, however many there are."""
    return _read_pages(client.search_experiments)


def _read_pages(search: Callable[..., PagedList[T]]) -> list[T]:
    """The results of all pages of a search."""
    page = search(max_results=PAGE)
    found = [*page]
    while page.token:
        page = search(max_results=PAGE, page_token=page.token)
        found += page
    return found


@contextlib.contextmanager
def errors_name_place() -> Iterator[None]:
    """Raise errors of MLflow as UsageErrors that name the database or server."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        # A server may cause any error.
        reason = first_line(error) or type(error).__name__
        raise UsageError(without_passwords(f"{tracker_place()}: {reason}")) from error


def limit_attempts() -> None:
    """Limit MLflow's attempts to open a database to DATABASE_ATTEMPTS."""
    from mlflow.store.db import utils

    utils.MAX_RETRY_COUNT = DATABASE_ATTEMPTS
