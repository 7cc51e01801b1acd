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

# These variables are set before the client is used. Telemetry would run a thread during the
# measurements. By default MLflow retries a refused connection for 247 s, and waits 8 x 120 s for a
# server that does not answer. With these values the client gives up on an unreachable server after
# two attempts of 7 s.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "7")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

# MLflow logs the creation of tables, and logs errors with a traceback. fastloop reports errors
# itself.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
PAGE = 1000
"""Maximum number of runs or experiments on a page, the result of one call of MLflow's client."""
DATABASE_ATTEMPTS = 5
"""Maximum number of attempts to open a database. Five attempts take 3 s; MLflow's default of ten
attempts takes 102 s."""


def open_client() -> MlflowClient:
    """An MLflow client for the database or the server that `tracking_uri` names."""
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
    """All runs of these experiments that match the filter, from all pages.

    filter_string: a filter in MLflow's search language. order_by: MLflow's sort keys, such as
    "attributes.start_time ASC"; None: MLflow's own order.
    """
    return _read_pages(
        partial(client.search_runs, experiment_ids, filter_string, order_by=order_by)
    )


def filter_of_finished_runs(sweep: str) -> str:
    """MLflow's filter for the finished runs of a sweep."""
    return f"{filter_of_sweep(sweep)} AND attributes.status = 'FINISHED'"


def filter_of_sweep(sweep: str) -> str:
    """MLflow's filter for all runs of a sweep; `sweep` is the name of the sweep."""
    # A quote would end the name in the filter. No sweep's name contains a quote.
    name = sweep.replace("'", "")
    return f"tags.sweep = '{name}'"


def search_experiments(client: MlflowClient) -> list[Experiment]:
    """All experiments, from all pages."""
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
    """A context that turns errors into UsageErrors that name the database or the server.

    UsageErrors that are raised inside the context stay as they are.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        # A server may cause errors of any type.
        reason = first_line(error) or type(error).__name__
        raise UsageError(without_passwords(f"{tracker_place()}: {reason}")) from error


def limit_attempts() -> None:
    """Limit MLflow's attempts to open a database to DATABASE_ATTEMPTS."""
    from mlflow.store.db import utils

    utils.MAX_RETRY_COUNT = DATABASE_ATTEMPTS
