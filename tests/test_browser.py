"""The printed link in a real browser, over the real MLflow UI, after the real quickstart."""

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
from commands import fastloop, results
from options import REPOSITORY, absent

pytestmark = pytest.mark.slow
SCREENSHOTS = REPOSITORY / "outputs" / "screenshots"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--window-size=1600,3200", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--no-proxy-server"),
)


@pytest.fixture
def browser(tmp_path):
    """Debian's chromium, driven by its chromedriver."""
    from selenium import webdriver

    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver:
        absent("no browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'chromium'}"):
        options.add_argument(flag)
    driven = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield driven
    driven.quit()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def ui(tmp_path):
    """`make ui` over the folder's outputs: (address, its process)."""
    port = free_port()
    command = ["make", "ui", f"PORT={port}", f"VENV={Path(sys.executable).parents[1]}"]
    for mark in (".installed", ".installed-dev"):
        (Path(sys.executable).parents[1] / mark).touch()
    environment = os.environ | {"FASTLOOP_OUTPUTS": str(tmp_path / "outputs")}
    with (tmp_path / "ui.log").open("w") as log:
        make = psutil.Popen(command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log)
        yield f"http://127.0.0.1:{port}", make
        below = make.children(recursive=True)
        for process in below:
            process.terminate()
        psutil.wait_procs([make, *below], timeout=30)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def until(condition):
    """What the condition gives once it gives something."""
    for _ in range(600):
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError(f"never: {condition}")


def test_the_printed_link_shows_a_bar_for_each_loader_in_both_benchmarks(tmp_path, ui, browser):
    done = fastloop("experiment=quickstart", "trials=2", "epochs=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (link,) = re.findall(r"^charts: (\S+)$", done.stdout, re.M)
    address, make = ui
    until(lambda: answers(address))
    only_here(make)
    found = results(tmp_path)
    colours = {rgb(result.tags["mlflow.runColor"]): result.loader for result in found}
    assert len(colours) == 5
    browser.get(link.replace("http://127.0.0.1:5000", address))
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for section in ("traversal", "training"):
        until(lambda section=section: scrolled_to(browser, section))
        for figure in ("seconds_median", "limit_fraction", "samples_per_s"):
            chart = f"{section}/{figure}"
            fills = until(lambda chart=chart: bars(browser).get(chart))
            assert {colours[fill] for fill in fills} == set(colours.values()), chart
        browser.save_screenshot(str(SCREENSHOTS / f"{section}.png"))


def only_here(make) -> None:
    """The server listens on loopback alone, and has started no job runner."""
    server = make.children(recursive=True)
    listening = [
        connection.laddr
        for one in server
        for connection in one.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {ip for ip, _ in listening} == {"127.0.0.1"}
    assert not any("huey" in " ".join(one.cmdline()) for one in server)


def rgb(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"


def scrolled_to(browser, section: str) -> bool:
    """True once the page has that section of charts and shows it: others are not drawn."""
    return browser.execute_script(
        """
        const headers = document.querySelectorAll(
            '[data-testid="experiment-view-compare-runs-section-header"]')
        const found = [...headers].find(one => one.innerText.startsWith(arguments[0]))
        found?.scrollIntoView()
        return Boolean(found)
        """,
        section,
    )


def bars(browser) -> dict[str, list[str]]:
    """The colours of the bars in each chart that is drawn, by its title."""
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
