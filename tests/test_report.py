"""The report as a person gets it: real results, known answers, and the page in a real browser."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
from commands import fastloop, typed

from fastloop.report import write_report
from fastloop.reporting.document import compose
from fastloop.reporting.summary import summarize
from fastloop.result import load

pytestmark = pytest.mark.slow
LOADERS = ("raw", "preload", "np_memmap")
KINDS = ("seconds", "rounds", "waits", "memory", "limit")
BENCHMARKS = ("traversal", "training")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars "
    "--host-resolver-rules=MAP\t*\t~NOTFOUND"
)


def sweep_folder(cwd: Path) -> Path:
    (folder,) = cwd.glob("outputs/20*/*")
    return folder


@pytest.fixture
def known(measured, tmp_path) -> Path:
    """A copy of the sweep in which raw takes 4 s, np_memmap 2 s and preload 1 s a trial, nearly."""
    without = shutil.ignore_patterns("report")
    shutil.copytree(sweep_folder(measured), tmp_path / "known", ignore=without)
    set_seconds(tmp_path / "known", {"raw": 4.0, "np_memmap": 2.0, "preload": 1.0})
    return tmp_path / "known"


def set_seconds(folder: Path, seconds: dict[str, float], jitter: float = 0.01) -> None:
    """Rewrite every trial's window; trial k of each job is a little longer than trial k - 1."""
    for path in folder.rglob("result.json"):
        content = json.loads(path.read_text())
        for trial in content["trials"]:
            for one in trial["benchmarks"].values():
                length = seconds[content["loader"]] * (1 + jitter * trial["number"])
                one["stop_ns"] = one["start_ns"] + round(1e9 * length)
        path.write_text(json.dumps(content))


def report(*arguments: str, cwd: Path, **environment: str):
    return fastloop(*arguments, cwd=cwd, module="fastloop.report", **environment)


def all_results(folder: Path) -> list:
    return [load(path.parent) for path in sorted(folder.rglob("result.json"))]


def test_the_newest_sweep_is_reported_as_page_markdown_pictures_and_rows(measured):
    done = typed(cwd=measured, module="fastloop.report")
    assert done.returncode == 0, done.stderr
    folder = sweep_folder(measured) / "report"
    expected = {f"{b}-{kind}.png" for b in BENCHMARKS for kind in KINDS}
    expected |= {"report.html", "report.md", "report.csv"}
    assert {path.name for path in folder.iterdir()} == expected
    assert done.stdout.split() == [str(folder / Path(one).name) for one in done.stdout.split()]
    assert len(done.stdout.split()) == len(expected)
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_known_answer_is_told_in_words_and_figures(known):
    done = report(f"folder={known}", "baseline=raw", "format=md", cwd=known)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (known / "report").iterdir()] == ["report.md"]
    text = (known / "report" / "report.md").read_text()
    assert text.count("preload is fastest, with 1.02 s a trial") == 2
    assert text.count("Beside the baseline raw it is 4 times as fast") == 2
    for row in (
        r"\| preload \| 1 \| 1\.025 \| 1\.025 \(0\.019\) \| .* \| 0\.250 \| 0\.250.0\.250 \|",
        r"\| np_memmap \| 2 \| 2\.050 \| .* \| 0\.500 \|",
        r"\| raw \| 3 \| 4\.100 \| .* \| 1 \| — \|",
    ):
        assert len(re.findall(row, text)) == 2, row


def test_the_seeds_table_has_loaders_as_rows_and_mean_and_std_in_cells(known):
    document = compose(all_results(known))
    assert [sheet.heading.split(":")[0] for sheet in document.overview] == ["Traversal", "Training"]
    for sheet in document.overview:
        assert sheet.head == ("mean (std) of a trial", "mydataset, s")
        assert dict(sheet.rows)["raw"] == "4.100 (0.075)"


def test_a_row_a_trial(known):
    assert report(f"folder={known}", "format=csv", cwd=known).returncode == 0
    written = (known / "report" / "report.csv").read_text()
    rows = list(csv.DictReader(written.splitlines()))
    assert len(rows) == len(LOADERS) * len(BENCHMARKS) * 6
    first = next(r for r in rows if r["loader"] == "raw" and r["round"] == "1")
    assert float(first["seconds"]) == pytest.approx(4)
    result = next(one for one in all_results(known) if one.name == first["job"])
    one = result.trials[0].benchmarks["traversal"]
    assert float(first["samples_per_s"]) == pytest.approx(one.samples / 4)
    assert float(first["limit_fraction"]) == pytest.approx(
        one.samples / 4 / one.limit_samples_per_s
    )


def test_unfinished_jobs_are_rows_with_their_reason_and_have_no_rank(known):
    groups = summarize(all_results(known))
    ranked = {row.result.name for g in groups for one in g.comparisons for row in one.rows}
    assert ranked == {f"{loader} mydataset device=cpu" for loader in LOADERS}
    (sheet,) = [s for s in compose(all_results(known)).appendix if s.heading == "Not ranked"]
    assert len(sheet.rows) == len(LOADERS)
    for name, status, reason, trials in sheet.rows:
        assert name.endswith("99")
        assert status == "FAILED"
        assert reason.startswith("unsupported: device=cuda:99")
        assert trials == "0"


@pytest.mark.parametrize(
    ("setting", "value"), [("epochs", 7), ("drop_last", True), ("fingerprint", "other")]
)
def test_other_data_or_amounts_are_not_ranked_together(known, setting, value):
    path = next(p for p in known.rglob("result.json") if load(p.parent).loader == "raw")
    content = json.loads(path.read_text())
    (content if setting in content else content["params"])[setting] = value
    content["status"] = "FINISHED"
    path.write_text(json.dumps(content))
    groups = summarize([one for one in all_results(known) if one.trials], "raw")
    assert sorted(len(group.results) for group in groups) == [1, 2]
    assert compose(all_results(known), "raw")


def test_two_trials_prove_nothing(known):
    for path in known.rglob("result.json"):
        content = json.loads(path.read_text())
        content["trials"] = content["trials"][:2]
        path.write_text(json.dumps(content))
    verdicts = [said for _, said in compose(all_results(known)).verdicts]
    assert len(verdicts) == 2
    assert all("fastest" not in said for said in verdicts)


def test_a_sweep_that_is_only_in_mlflow_is_reported(measured, tmp_path):
    outputs = measured / "outputs"
    sweep = "/".join(sweep_folder(measured).parts[-2:])
    elsewhere = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{outputs / 'mlflow.db'}",
        "FASTLOOP_OUTPUTS": str(tmp_path / "outputs"),
    }
    done = report(f"sweep={sweep}", "format=csv,md", cwd=tmp_path, **elsewhere)
    assert done.returncode == 0, done.stderr
    theirs = tmp_path / "outputs" / sweep / "report"
    assert report(f"sweep={sweep}", "format=csv,md", cwd=measured).returncode == 0
    ours = sweep_folder(measured) / "report"
    rows = [(folder / "report.csv").read_text().splitlines() for folder in (ours, theirs)]
    assert sorted(rows[0]) == sorted(rows[1])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bananas=3"], "bananas=3: no such setting; allowed: sweep=…, folder=…, baseline=…"),
        (["format=md,pdf"], "format=md,pdf: no such format 'pdf'; allowed: md,html,png,csv"),
        (["folder=nowhere"], "folder=nowhere: no such folder"),
        (["baseline=nobody"], "baseline=nobody: no such job or loader; allowed: "),
        (["sweep=2000-01-01/00"], "neither in"),
        (["sweep=a", "folder=b"], "name one of them"),
    ],
)
def test_a_wrong_argument_gives_one_line_and_writes_nothing(measured, tmp_path, arguments, said):
    outputs = tmp_path / "outputs"
    shutil.copytree(sweep_folder(measured).parent, outputs / sweep_folder(measured).parent.name,
                    ignore=shutil.ignore_patterns("report"))  # fmt: skip
    before = sorted(outputs.rglob("*"))
    done = report(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(outputs.rglob("*")) == before


def test_a_foreign_result_file_is_named(tmp_path):
    (tmp_path / "result.json").write_text('{"a": 1}')
    done = report("folder=.", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["folder=result.json: can't be read: not one of fastloop's"]
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.fixture(scope="module")
def built(measured, tmp_path_factory) -> Path:
    """The page of the sweep."""
    folder = tmp_path_factory.mktemp("page")
    results = all_results(sweep_folder(measured))
    return write_report(results, folder, "raw", ["html"])[0]


def test_the_page_is_whole_and_asks_nothing_of_the_network(built):
    text = built.read_text()
    assert text.count("<figure>") == text.count("<svg") == len(KINDS) * len(BENCHMARKS)
    assert "<script" not in text
    assert "<img" not in text
    assert not re.search(r'(?:src|href)="(?!#)', text.replace("xlink:href", "href"))
    assert not re.search(r"url\((?!#)|@import", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(ids)
    headings = [unescape(one) for one in re.findall(r"<h2>(.*?)</h2>", text)]
    assert [one.split(":")[-1].strip() for one in headings[2:4]] == ["ranking", "ranking"]
    assert headings[4:] == ["Notes", "Not ranked", "Machine", "Settings that all jobs share"]


def chromium(*arguments: str, cwd: Path) -> str:
    """What headless Chromium says to these arguments, without a network."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    if binary is None:
        pytest.skip("no chromium on the path: the page was not opened in a browser")
    flags = [flag.replace("\t", " ") for flag in FLAGS.split(" ")]
    command = [binary, *flags, f"--user-data-dir={cwd / 'profile'}", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


PROBE = """<!doctype html><body style="margin:0"><iframe id="page" src="{url}"
style="width:{width}px;height:900px;border:0"></iframe><pre id="said"></pre><script>
document.getElementById("page").onload = function () {{
  const page = this.contentDocument, root = page.documentElement;
  const drawn = [...page.querySelectorAll("svg")].filter(one => {{
    const box = one.getBoundingClientRect();
    return box.height > 60 && box.width > 200 && box.right <= root.clientWidth + 1;
  }});
  document.getElementById("said").textContent = JSON.stringify({{
    inner: root.clientWidth, needed: root.scrollWidth, drawn: drawn.length,
    smallest: Math.min(...[...page.querySelectorAll("svg text")].map(
      one => one.getBoundingClientRect().height)),
  }});
}};</script>"""


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_page_fits_a_phone_and_a_screen(built, tmp_path, width):
    (tmp_path / "probe.html").write_text(PROBE.format(url=built.as_uri(), width=width))
    dom = chromium(
        "--allow-file-access-from-files", "--virtual-time-budget=5000", "--window-size=1400,1000",
        "--dump-dom", (tmp_path / "probe.html").as_uri(), cwd=tmp_path,
    )  # fmt: skip
    found = re.search(r'<pre id="said">(.+?)</pre>', dom)
    assert found, dom
    said = json.loads(unescape(found[1]))
    assert said["inner"] == width
    assert said["needed"] <= width
    assert said["drawn"] == len(KINDS) * len(BENCHMARKS)
    assert said["smallest"] >= 9


def test_the_page_prints(built, tmp_path):
    pdf = tmp_path / "report.pdf"
    chromium(f"--print-to-pdf={pdf}", "--no-pdf-header-footer", built.as_uri(), cwd=tmp_path)
    assert pdf.read_bytes().startswith(b"%PDF")
    assert pdf.stat().st_size > 20_000
