"""The link printed by the quickstart, opened in a real browser on the real MLflow UI."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from commands import results, run_fastloop
from options import REPOSITORY, skip_or_fail

from fastloop.core.tracked_metrics import metrics

pytestmark = [pytest.mark.slow, pytest.mark.heavy]
SCREENSHOTS = REPOSITORY / "outputs" / "screenshots"
QUICKSTART = ("experiment=quickstart", "trials=1", "epochs=1", "min_window_s=0", "isolation=inline")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--window-size=1600,3200", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--no-proxy-server"),
)


@pytest.fixture
def browser(tmp_path):
    """Debian's chromium, controlled by its chromedriver."""
    from selenium import webdriver

    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver:
        skip_or_fail("no browser: apt-get install chromium chromium-driver")
    settings = webdriver.ChromeOptions()
    settings.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'chromium'}"):
        settings.add_argument(flag)
    chrome = webdriver.Chrome(settings, webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def quickstart(tmp_path):
    """The quickstart's process, which has ended."""
    return run_fastloop(*QUICKSTART, cwd=tmp_path)


@pytest.fixture
def ui(tmp_path, quickstart):
    """`make ui` over the quickstart's outputs: (address, its process).

    Not at the same time: MLflow's server and a run that both create a database's tables disagree.
    """
    port = free_port()
    command = ["make", "ui", f"PORT={port}", f"VENV={Path(sys.executable).parents[1]}"]
    for mark in (".installed", ".installed-dev"):
        (Path(sys.executable).parents[1] / mark).touch()
    environment = os.environ | {"FASTLOOP_OUTPUTS": str(tmp_path / "outputs")}
    with (tmp_path / "ui.log").open("w") as log:
        make = psutil.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log)
        yield f"http://127.0.0.1:{port}", make
        children = make.children(recursive=True)
        for process in children:
            process.terminate()
        psutil.wait_procs([make, *children], timeout=30)


def is_up(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def wait_for(condition):
    """First true value of the condition, which is polled for five minutes."""
    for _ in range(1500):
        if value := condition():
            return value
        time.sleep(0.2)
    raise AssertionError(f"never: {condition}")


def test_printed_link_charts_every_loader_in_both_benchmarks(tmp_path, quickstart, ui, browser):
    assert quickstart.returncode == 0, quickstart.stderr
    (link,) = re.findall(r"^charts: (\S+)$", quickstart.stdout, re.M)
    address, make = ui
    wait_for(lambda: is_up(address))
    assert_only_loopback(make)
    sweep_results = results(tmp_path)
    colours = {
        css_colour(result.tags["mlflow.runColor"]): result.loader for result in sweep_results
    }
    assert len(colours) == 5
    browser.get(link.replace("http://127.0.0.1:5000", address))
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    charts = ("training/seconds_median", "traversal/samples_per_s", "training/wait_p95_ms")
    for chart in charts:
        fills = wait_for(lambda chart=chart: bar_colours(browser).get(chart))
        assert {colours[fill] for fill in fills} == set(colours.values()), chart
    # what a process of its own would measure, such as memory, is not there in this process
    assert set(bar_colours(browser)) == {*charts}
    titles = section_titles(browser)
    assert titles[0].startswith("Comparison")
    assert {"traversal", "training"} < {*titles}
    fastest = min(sweep_results, key=lambda result: metrics(result)[charts[0]])
    assert run_names(browser)[0] == fastest.name
    browser.save_screenshot(str(SCREENSHOTS / "charts.png"))


def assert_only_loopback(make) -> None:
    """Assert that the server listens on loopback only and started no job runner."""
    processes = make.children(recursive=True)
    listening = [
        connection.laddr
        for process in processes
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {ip for ip, _ in listening} == {"127.0.0.1"}
    assert not any("huey" in " ".join(process.cmdline()) for process in processes)


def css_colour(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"


def section_titles(browser) -> list[str]:
    """Titles of the page's sections, without their numbers of charts, in their order."""
    return browser.execute_script(
        """
        const headers = document.querySelectorAll(
            '[data-testid="experiment-view-compare-runs-section-header"]')
        return [...headers].map(each => each.innerText.split("\\n")[0])
        """
    )


def run_names(browser) -> list[str]:
    """Names of the runs in the list beside the charts, in their order."""
    return browser.execute_script(
        """
        const links = document.querySelectorAll('a[href*="/runs/"]')
        return [...links].map(each => each.innerText.trim()).filter(name => name)
        """
    )


def bar_colours(browser) -> dict[str, list[str]]:
    """Bar colours of each drawn chart, by its title."""
    return dict(
        browser.execute_script(
            """
            const cards = document.querySelectorAll(
                '[data-testid="experiment-view-compare-runs-card"]')
            const fills = card => [...card.querySelectorAll(".bars .point path")].map(
                path => path.style.fill)
            return [...cards].map(card => [card.innerText.split("\\n")[0], fills(card)])
            """
        )
    )
