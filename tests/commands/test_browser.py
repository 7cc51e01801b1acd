"""In a browser: the link that the quickstart prints, on MLflow's UI, and a page of the suite."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from commands import results, run_fastloop
from options import REPOSITORY, skip_or_fail
from suite_files import FAST, NOW_MS, claimed_file, document_of, example, measured_cell

from fastloop.core.tracked_metrics import metrics
from fastloop.suite.claims import CLAIMS, render_claims
from fastloop.suite.round_files import LoadedRound
from fastloop.suite.site import render_site
from fastloop.suite.suite_file import with_figures

pytestmark = [pytest.mark.slow, pytest.mark.heavy]
SCREENSHOTS = REPOSITORY / "outputs" / "screenshots"
PHONE_WIDTH = 390
QUICKSTART = ("experiment=quickstart", "trials=1", "epochs=1", "min_window_s=0", "isolation=inline")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=1600,3200",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
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


@pytest.fixture
def phone(browser):
    """The browser with the screen of a phone, which is narrower than any of its windows."""
    screen = {"width": PHONE_WIDTH, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    return browser


def claims_page() -> str:
    """A page of all claims: one holds, the others have a long reason why they weren't measured."""
    measured = claimed_file(CLAIMS[0], [1.5e3] * 5, [1.0] * 5).cells
    reason = "unsupported: no module named simplejpeg: pip install simplejpeg"
    empty = {"windows": {}, "measured_ms": None, "null_reason": reason}
    missing = [
        measured_cell(row.label, [], workload=claim.name, **empty)
        for claim in CLAIMS[1:]
        for row in (claim.slow, claim.fast)
    ]
    document = document_of(*measured, *missing)
    return render_claims([LoadedRound(round="2026-11", machine="box", document=document)])


def test_claims_are_read_on_a_phone_without_scrolling_sideways(tmp_path, phone):
    page = tmp_path / "claims.html"
    page.write_text(claims_page())
    phone.get(page.as_uri())
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    phone.save_screenshot(str(SCREENSHOTS / "claims.png"))
    assert phone.execute_script("return document.documentElement.clientWidth") == PHONE_WIDTH
    cells = phone.execute_script(
        """
        return [...document.querySelectorAll("#claims tbody th, #claims tbody td")].map(cell => {
            const content = document.createRange()
            content.selectNodeContents(cell)
            return [cell.innerText, content.getBoundingClientRect().right]
        })
        """
    )
    assert {claim.says for claim in CLAIMS} <= {text for text, _ in cells}
    assert max(right for _, right in cells) <= PHONE_WIDTH
    widths = (
        "return [...document.querySelectorAll('.scroll')].map(e => [e.scrollWidth, e.clientWidth])"
    )
    ((needed, given),) = phone.execute_script(widths)
    assert needed <= given


def loaders_page() -> str:
    """A page of two machines: rows that are tied, tuned, older than a year, and without figures."""
    code = "fastloop/options/loader/raw.py"
    tuned = {"loader": "raw", "configuration": "tuned", "overrides": ["num_workers=2"]}
    cells = [*example().cells, measured_cell("raw num_workers=2", [2.0] * 5, code=code, **tuned)]
    cells += [measured_cell(name, FAST, workload="tokens") for name in ("raw", "fastloop")]
    one = document_of(*cells)
    (rows,) = one.workloads
    one = with_figures(replace(one, workloads=[rows, replace(rows, name="tokens", title="Tokens")]))
    old = document_of(measured_cell("dali", FAST, measured_ms=NOW_MS - 2 * 365 * 86_400_000))
    return render_site(
        [
            LoadedRound(round="2024-11", machine="older", document=old),
            LoadedRound(round="2026-11", machine="box", document=one),
        ],
        NOW_MS,
        "https://code.example",
    )


SHOWN = """
return [...document.querySelectorAll("#cells tbody tr")].filter(row => !row.hidden).map(
    row => [row.dataset.machine, row.dataset.workload, row.dataset.loader])
"""
SET = """
const [name, value] = arguments, field = document.querySelector(`#filters [name=${name}]`)
field.type === "checkbox" ? field.checked = Boolean(value) : field.value = value
field.dispatchEvent(new Event("input", {bubbles: true}))
"""


def test_cells_of_loaders_are_filtered_and_sorted(tmp_path, browser):
    page = tmp_path / "index.html"
    page.write_text(loaders_page())
    browser.get(page.as_uri())
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    browser.save_screenshot(str(SCREENSHOTS / "loaders.png"))
    every = [tuple(each) for each in browser.execute_script(SHOWN)]
    filters = {
        ("workload", "tokens"): lambda machine, workload, loader: workload == "tokens",
        ("configuration", "tuned"): lambda machine, workload, loader: "=" in loader,
        ("machine", "older"): lambda machine, workload, loader: machine == "older",
        ("loader", "SPD"): lambda machine, workload, loader: "spd" in loader,
        ("filled", "yes"): lambda machine, workload, loader: loader != "ffcv",
    }
    for (name, value), is_wanted in filters.items():
        browser.execute_script(SET, name, value)
        shown = [tuple(each) for each in browser.execute_script(SHOWN)]
        assert shown == [each for each in every if is_wanted(*each)], name
        assert 0 < len(shown) < len(every)
        browser.execute_script(SET, name, "")
    browser.execute_script(SET, "loader", "no such loader")
    assert browser.execute_script(SHOWN) == []
    assert browser.find_element("id", "none").is_displayed()
    browser.execute_script(SET, "loader", "")
    head = {
        button.text: button for button in browser.find_elements("css selector", "#cells button")
    }
    for sign in (1, -1):
        head["ratio"].click()
        rows = browser.find_elements("css selector", "#cells tbody tr")
        cells = [row.find_elements("css selector", "td") for row in rows]
        numbers = [float(tds[3].text) for tds in cells if len(tds) > 3]
        assert numbers == sorted(numbers, reverse=sign < 0)
        # A row without figures is last in both directions.
        assert "ffcv" in rows[-1].text


def test_cells_of_loaders_show_ties_age_reasons_and_code(tmp_path, browser):
    page = tmp_path / "index.html"
    page.write_text(loaders_page())
    browser.get(page.as_uri())
    rows = {
        (row.get_attribute("data-workload"), row.get_attribute("data-loader")): row
        for row in browser.find_elements("css selector", "#cells tbody tr")
    }
    for name in ("grain", "spdl"):
        assert "1 =" in rows["small_rows", name].text
    assert "1 =" not in rows["small_rows", "raw"].text
    assert "needs" in rows["small_rows", "ffcv"].text
    assert "300" in rows["tokens", "raw"].text  # MiB
    assert "250" in rows["tokens", "raw"].text  # ms until the first batch
    colours = {key: row.value_of_css_property("color") for key, row in rows.items()}
    grey = colours.pop(("small_rows", "dali"))
    assert grey not in colours.values()
    for (_, name), row in rows.items():
        link = row.find_element("css selector", "a").get_attribute("href")
        loader = name.partition(" ")[0]
        assert link == f"https://code.example/fastloop/options/loader/{loader}.py"


def test_loaders_are_read_on_a_phone_without_a_page_that_scrolls_sideways(tmp_path, phone):
    page = tmp_path / "index.html"
    page.write_text(loaders_page())
    phone.get(page.as_uri())
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    phone.save_screenshot(str(SCREENSHOTS / "loaders-phone.png"))
    # The tables scroll inside of their own boxes.
    assert phone.execute_script("return document.documentElement.scrollWidth") == PHONE_WIDTH
    boxes = phone.execute_script(
        "return [...document.querySelectorAll('.scroll')].map(e => e.getBoundingClientRect().right)"
    )
    assert max(boxes) <= PHONE_WIDTH


@pytest.mark.nightly
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
