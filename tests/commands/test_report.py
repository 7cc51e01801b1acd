"""The report command: real results, known rankings, and the page in a real browser."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import run_fastloop, spawn_fastloop
from options import skip_or_fail
from sweep_results import LOADERS, set_seconds, sweep_folder

from fastloop.core.machine_load import Load
from fastloop.core.result_io import load
from fastloop.core.tracked_metrics import metrics
from fastloop.reporting.html_report import render_html
from fastloop.reporting.report_content import compose_document
from fastloop.reporting.report_files import render_markdown, write_report
from fastloop.reporting.summary import summarize

pytestmark = pytest.mark.slow
KINDS = ("seconds", "rounds", "waits", "memory", "limit")
BENCHMARKS = ("traversal", "training")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars "
    "--host-resolver-rules=MAP\t*\t~NOTFOUND"
)


@pytest.fixture
def known_sweep(measured_sweep, tmp_path) -> Path:
    """A copy of the sweep with trials of about 4 s (raw), 2 s (np_memmap) and 1 s (preload)."""
    no_reports = shutil.ignore_patterns("report")
    shutil.copytree(sweep_folder(measured_sweep), tmp_path / "known", ignore=no_reports)
    set_seconds(tmp_path / "known", {"raw": 4.0, "np_memmap": 2.0, "preload": 1.0})
    return tmp_path / "known"


def report(*arguments: str, cwd: Path, **environment: str):
    return run_fastloop(*arguments, cwd=cwd, command="report", **environment)


def all_results(folder: Path) -> list:
    return [load(path.parent) for path in sorted(folder.rglob("result.json"))]


def picture_names(results: list) -> set[str]:
    """Names of the pictures of a sweep: no shares of a limit of which the largest is below 5 %."""
    shares = {
        benchmark: [metrics(result).get(f"{benchmark}/limit_fraction", 0.0) for result in results]
        for benchmark in BENCHMARKS
    }
    names = {f"{benchmark}-{kind}" for benchmark in BENCHMARKS for kind in KINDS}
    return names - {f"{name}-limit" for name in BENCHMARKS if max(shares[name]) < 0.05}


@pytest.mark.heavy
def test_report_of_the_newest_sweep_writes_every_format(measured_sweep):
    process = spawn_fastloop(cwd=measured_sweep, command="report")
    assert process.returncode == 0, process.stderr
    folder = sweep_folder(measured_sweep) / "report"
    names = picture_names(all_results(sweep_folder(measured_sweep)))
    expected = {f"{name}.png" for name in names}
    expected |= {"report.html", "report.md", "report.csv"}
    assert {path.name for path in folder.iterdir()} == expected
    assert process.stdout.split() == [
        str(folder / Path(path).name) for path in process.stdout.split()
    ]
    assert len(process.stdout.split()) == len(expected)
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_report_states_the_known_ranking(known_sweep):
    process = report(f"folder={known_sweep}", "baseline=raw", "format=md", cwd=known_sweep)
    assert process.returncode == 0, process.stderr
    assert [path.name for path in (known_sweep / "report").iterdir()] == ["report.md"]
    text = (known_sweep / "report" / "report.md").read_text()
    assert text.count("preload is fastest: 4 times raw (1.02 s against 4.1 s; 95 %: 4 to 4)") == 2
    for row in (
        r"\| preload \| 1 \| 1\.02 \| 1\.0[23] \(0\.02\) \| .* \| 0\.250 \| 0\.250.0\.250 \|",
        r"\| np_memmap \| 2 \| 2\.05 \| .* \| 0\.500 \|",
        r"\| raw \| 3 \| 4\.10 \| .* \| 1 \| — \|",
    ):
        assert len(re.findall(row, text)) == 2, row


def test_a_report_begins_with_the_load_of_each_machine(known_sweep):
    busy = Load(seconds=1.0, cores=2, other_cores=1.6, busiest={"chromium": 1.6})
    quiet = replace(busy, other_cores=0.01, busiest={})

    def with_load(result, load, host):
        trials = [replace(trial, load=load) for trial in result.trials]
        return replace(result, trials=trials, environment=result.environment | {"host": host})

    first, *others = all_results(known_sweep)
    same = compose_document([with_load(each, busy, "a") for each in (first, *others)])
    (sentence,) = same.machine_load
    assert sentence.startswith("The machine was busy: other processes used 1.60 of 2 cores")
    assert f"<p>{sentence}</p>" in render_html(same)
    assert render_markdown(same, with_pictures=False).split("\n\n")[2] == sentence
    machines = [with_load(first, busy, "a"), *(with_load(each, quiet, "b") for each in others)]
    assert [line[:20] for line in compose_document(machines).machine_load] == [
        "a: The machine was b",
        "b: The machine was q",
    ]
    older = [with_load(each, None, "a") for each in (first, *others)]
    assert compose_document(older).machine_load == ()


def test_overview_has_loaders_as_rows_and_mean_and_std_as_cells(known_sweep):
    results = all_results(known_sweep)
    assert compose_document(results).overview == ()  # the ranking has the means too
    changes = {"dataset": "other", "fingerprint": "other", "content": "other"}
    others = [
        replace(each, name=each.name.replace("mydataset", "other"), **changes) for each in results
    ]
    document = compose_document([*results, *others])
    assert [table.heading.split(":")[0] for table in document.overview] == ["Training", "Traversal"]
    for table in document.overview:
        assert table.head == ("mean (std) per trial", "mydataset, s", "other, s")
        (row,) = [cells for label, *cells in table.rows if label == "raw"]
        assert row == ["4.10 (0.07)", "4.10 (0.07)"]


def test_csv_has_a_row_per_trial(known_sweep):
    assert report(f"folder={known_sweep}", "format=csv", cwd=known_sweep).returncode == 0
    text = (known_sweep / "report" / "report.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == len(LOADERS) * len(BENCHMARKS) * 6
    first = next(row for row in rows if row["loader"] == "raw" and row["round"] == "1")
    assert float(first["seconds"]) == pytest.approx(4)
    result = next(result for result in all_results(known_sweep) if result.name == first["job"])
    window = result.trials[0].benchmarks["traversal"]
    assert float(first["samples_per_s"]) == pytest.approx(window.samples / 4)
    assert float(first["limit_fraction"]) == pytest.approx(
        window.samples / 4 / window.limit_samples_per_s
    )


def test_unfinished_jobs_are_listed_with_their_reason_and_not_ranked(known_sweep):
    groups = summarize(all_results(known_sweep))
    ranked = {
        row.result.name
        for group in groups
        for comparison in group.comparisons
        for row in comparison.rows
    }
    assert ranked == {f"{loader} mydataset device=cpu" for loader in LOADERS}
    (table,) = [
        section
        for section in compose_document(all_results(known_sweep)).appendix
        if section.heading == "Not ranked"
    ]
    assert len(table.rows) == len(LOADERS)
    for name, status, reason, trials in table.rows:
        assert name.endswith("99")
        assert status == "skipped"
        assert reason.startswith("device=cuda:99")
        assert trials == "0"


@pytest.mark.parametrize(
    ("setting", "value"), [("epochs", 7), ("drop_last", True), ("content", "other")]
)
def test_different_data_or_amounts_are_ranked_separately(known_sweep, setting, value):
    path = next(
        path for path in known_sweep.rglob("result.json") if load(path.parent).loader == "raw"
    )
    content = json.loads(path.read_text())
    (content if setting in content else content["params"])[setting] = value
    if setting == "content":
        content["fingerprint"] = value
    content["status"] = "FINISHED"
    path.write_text(json.dumps(content))
    groups = summarize([result for result in all_results(known_sweep) if result.trials], "raw")
    assert sorted(len(group.results) for group in groups) == [1, 2]
    assert compose_document(all_results(known_sweep), "raw")


def test_two_trials_yield_no_verdict(known_sweep):
    for path in known_sweep.rglob("result.json"):
        content = json.loads(path.read_text())
        content["trials"] = content["trials"][:2]
        path.write_text(json.dumps(content))
    verdicts = [each.text for each in compose_document(all_results(known_sweep)).verdicts]
    assert len(verdicts) == 2
    assert all("fastest" not in text for text in verdicts)


def test_report_reads_a_sweep_from_mlflow(measured_sweep, tmp_path):
    outputs = measured_sweep / "outputs"
    sweep = "/".join(sweep_folder(measured_sweep).parts[-2:])
    environment = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{outputs / 'mlflow.db'}",
        "FASTLOOP_OUTPUTS": str(tmp_path / "outputs"),
    }
    process = report(f"sweep={sweep}", "format=csv,md", cwd=tmp_path, **environment)
    assert process.returncode == 0, process.stderr
    from_mlflow = tmp_path / "outputs" / sweep / "report"
    assert report(f"sweep={sweep}", "format=csv,md", cwd=measured_sweep).returncode == 0
    from_files = sweep_folder(measured_sweep) / "report"
    rows = [
        (folder / "report.csv").read_text().splitlines() for folder in (from_files, from_mlflow)
    ]
    assert sorted(rows[0]) == sorted(rows[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bananas=3"], "bananas=3: no such setting; allowed: sweep=…, folder=…, baseline=…"),
        (["format=md,pdf"], "format=md,pdf: no such format 'pdf'; allowed: md,html,png,csv"),
        (["--open", "format=md,csv"], "format=md,csv writes no page; allowed: format=md,csv,html"),
        (["folder=nowhere"], "folder=nowhere: no such folder"),
        (["baseline=nobody"], "baseline=nobody: no such job or loader; allowed: "),
        (["sweep=2000-01-01/00"], "neither in"),
        (["sweep=a", "folder=b"], "set only one of them"),
    ],
)
def test_report_rejects_wrong_arguments_in_one_line(measured_sweep, tmp_path, arguments, message):
    outputs = tmp_path / "outputs"
    day = sweep_folder(measured_sweep).parent
    shutil.copytree(day, outputs / day.name, ignore=shutil.ignore_patterns("report"))
    before = sorted(outputs.rglob("*"))
    process = report(*arguments, cwd=tmp_path)
    assert process.returncode == 1
    assert message in process.stderr
    assert len(process.stderr.splitlines()) == 1
    assert sorted(outputs.rglob("*")) == before


def test_report_names_a_foreign_result_file(tmp_path):
    (tmp_path / "result.json").write_text('{"a": 1}')
    process = report("folder=.", cwd=tmp_path)
    assert process.returncode == 1
    assert process.stderr.splitlines() == [
        "folder=result.json: can't be read: not one of fastloop's"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


HOSTILE_NAME = "$x^ <b onload=\"alert(1)\"> '&' ](x) | \x1b[31m red\nnext"


def test_report_shows_any_name_as_it_is(known_sweep, tmp_path):
    results = [
        replace(result, name=f"$x^{result.loader} {HOSTILE_NAME}", dataset=HOSTILE_NAME)
        for result in all_results(known_sweep)
    ]
    paths = {path.name: path for path in write_report(results, tmp_path)}
    page = paths["report.html"].read_text()
    assert "<b onload" not in page
    assert "&lt;b onload" in page
    assert "\x1b" not in page
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)
    assert "$x^raw" in unescape("".join(re.findall(r"<text.*?</text>", page, re.DOTALL)))
    assert "<b onload" not in paths["report.md"].read_text()
    with paths["report.csv"].open() as file:
        assert {row["dataset"] for row in csv.DictReader(file)} == {HOSTILE_NAME}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"traversal": {', '"../../up": {'),
        ('"start_ns": ', '"start_ns": 9'),
        ('"epochs": ', '"x": '),
    ],
)
def test_report_rejects_an_edited_result(known_sweep, tmp_path, old, new):
    path = min(known_sweep.rglob("result.json"))
    path.write_text(path.read_text().replace(old, new))
    process = report(f"folder={known_sweep}", cwd=tmp_path)
    assert process.returncode == 1
    assert process.stderr.endswith("result.json: can't be read: not one of fastloop's\n")


@pytest.fixture(scope="module")
def report_page(measured_sweep, tmp_path_factory) -> Path:
    """The HTML page of the sweep."""
    folder = tmp_path_factory.mktemp("page")
    results = all_results(sweep_folder(measured_sweep))
    return write_report(results, folder, "raw", ["html"])[0]


def test_first_pictures_come_before_all_tables_and_training_first(report_page):
    text = report_page.read_text()
    headings = [unescape(heading) for heading in re.findall(r"<h[23]>(.*?)</h[23]>", text)]
    assert headings[:3] == [
        "Training: time of a trial",
        "Traversal: time of a trial",
        "Training: ranking",
    ]
    assert text.index("<strong>Training.") < text.index("<strong>Traversal.")


def test_report_page_needs_no_network(report_page, measured_sweep):
    text = report_page.read_text()
    names = picture_names(all_results(sweep_folder(measured_sweep)))
    assert text.count("<figure>") == text.count("<svg") == len(names)
    assert "<script" not in text
    assert "<img" not in text
    assert not re.search(r'(?:src|href)="(?!#)', text.replace("xlink:href", "href"))
    assert not re.search(r"url\((?!#)|@import", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(ids)
    headings = [unescape(heading) for heading in re.findall(r"<h2>(.*?)</h2>", text)]
    assert headings[:2] == ["Training: ranking", "Traversal: ranking"]
    assert headings[2:] == [
        "Notes",
        "Not ranked",
        "Stores",
        "Machine",
        "Settings that all jobs share",
    ]


def test_tables_keep_rank_median_and_ratio_on_a_phone(report_page):
    text = report_page.read_text()
    table = text[text.index("Training: ranking") : text.index("</table>")]
    kept = re.findall(r'<th scope="col">(.*?)</th>', table)
    assert kept[:2] == ["", "rank"]
    assert [re.sub(", m?s$", "", each) for each in kept[2:]] == ["median", "time / raw"]
    assert table.count('class="wide"') == (len(LOADERS) + 1) * len(
        re.findall(r'<th scope="col" class="wide">', table)
    )
    narrow = text[text.index("@media (max-width: 44rem)") :]
    assert ".wide { display: none; }" in narrow[: narrow.index("@page")]


def chromium(*arguments: str, cwd: Path) -> str:
    """Output of headless Chromium with these arguments, without a network."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    if binary is None:
        skip_or_fail("no browser: apt-get install chromium")
    flags = [flag.replace("\t", " ") for flag in FLAGS.split(" ")]
    command = [binary, *flags, f"--user-data-dir={cwd / 'profile'}", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


PROBE = """<!doctype html><body style="margin:0"><iframe id="page" src="{url}"
style="width:{width}px;height:900px;border:0"></iframe><pre id="measured"></pre><script>
document.getElementById("page").onload = function () {{
  const page = this.contentDocument, root = page.documentElement;
  const drawn = [...page.querySelectorAll("svg")].filter(svg => {{
    const box = svg.getBoundingClientRect();
    return box.height > 60 && box.width > 200 && box.right <= root.clientWidth + 1;
  }});
  document.getElementById("measured").textContent = JSON.stringify({{
    inner: root.clientWidth, needed: root.scrollWidth, drawn: drawn.length,
    hints: [...page.querySelectorAll(".scroll")].every(
      table => getComputedStyle(table).backgroundAttachment.includes("local")),
    smallest: Math.min(...[...page.querySelectorAll("svg text")].map(
      text => text.getBoundingClientRect().height)),
  }});
}};</script>"""


@pytest.mark.heavy
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_report_page_fits_phones_and_screens(report_page, measured_sweep, tmp_path, width):
    (tmp_path / "probe.html").write_text(PROBE.format(url=report_page.as_uri(), width=width))
    dom = chromium(
        "--allow-file-access-from-files", "--virtual-time-budget=5000", "--window-size=1400,1000",
        "--dump-dom", (tmp_path / "probe.html").as_uri(), cwd=tmp_path,
    )  # fmt: skip
    match = re.search(r'<pre id="measured">(.+?)</pre>', dom)
    assert match, dom
    sizes = json.loads(unescape(match[1]))
    assert sizes["inner"] == width
    assert sizes["needed"] <= width
    names = picture_names(all_results(sweep_folder(measured_sweep)))
    assert sizes["drawn"] == len(names)
    assert sizes["smallest"] >= 9
    assert sizes["hints"]  # a shadow where a table continues outside of its frame


@pytest.mark.heavy
def test_report_page_can_be_printed(report_page, tmp_path):
    pdf = tmp_path / "report.pdf"
    chromium(f"--print-to-pdf={pdf}", "--no-pdf-header-footer", report_page.as_uri(), cwd=tmp_path)
    assert pdf.read_bytes().startswith(b"%PDF")
    assert pdf.stat().st_size > 20_000
