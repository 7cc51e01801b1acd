"""Runs the commands of docs/tutorial.md, and writes their outputs and pictures into the pages.

`python docs/redraw.py` takes some minutes, on a machine that should be quiet. It needs selenium,
chromium and its driver for the picture of MLflow; all others are drawn by fastloop itself.
README.md gets the output of `fastloop attach`. Check afterwards that the sentences and alt texts
still say what they show.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DOCS = Path(__file__).resolve().parent
TUTORIAL, README, PICTURES = DOCS / "tutorial.md", DOCS.parent / "README.md", DOCS / "pictures"
BIN = Path(sys.executable).parent
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.M | re.S)
RUN_AND_OUTPUT = re.compile(r"^```(?:bash|sh)\n([^`]*?)^```\n\n```\n([^`]*?)^```$", re.M | re.S)
MOST_BYTES = 100_000
WINDOW = (1200, 950)
CLOSED = (
    '[data-component-id="mlflow.assistant.chat_panel.close"]',
    '[aria-label="Hide banner"]',
)
"""Buttons that close what MLflow shows beside the charts."""


def main() -> None:
    """Run all commands of the tutorial in a new folder."""
    with tempfile.TemporaryDirectory(prefix="redraw-") as name:
        folder = Path(name).resolve()
        page = TUTORIAL.read_text()
        for file, text in FILE.findall(page):
            (folder / file).write_text(f"# {file}\n{text}")
        outputs = {command: run(command, folder) for command, _ in RUN_AND_OUTPUT.findall(page)}
        draw(folder, outputs)
    for path in (TUTORIAL, README):
        text = RUN_AND_OUTPUT.sub(lambda found: replaced(found, outputs), path.read_text())
        path.write_text(text)


def run(commands: str, folder: Path) -> str:
    """The output of the commands, with paths that begin at the folder."""
    print(commands, end="", flush=True)
    environment = os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "FASTLOOP_OUTPUTS": "outputs",
        "COLUMNS": "80",
    }
    process = subprocess.run(
        ["bash", "-ec", commands],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if process.returncode:
        raise SystemExit(process.stdout)
    lines = process.stdout.replace(f"{folder}/", "").splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines).strip("\n") + "\n"


def replaced(found: re.Match[str], outputs: dict[str, str]) -> str:
    """The command's block and its new output; a command that was not run stays as it is."""
    command = found[1]
    output = outputs.get(command, found[2])
    language = found[0].partition("\n")[0]
    return f"{language}\n{command}```\n\n```\n{output}```"


def draw(folder: Path, outputs: dict[str, str]) -> None:
    """Write all pictures that the page shows."""
    PICTURES.mkdir(exist_ok=True)
    for number, name in ((1, "before"), (2, "workers")):
        page = (folder / f"outputs/attach/train-{number}/attach.html").read_text()
        (svg,) = re.findall(r"<svg .*?</svg>", page, re.S)[:1]
        (PICTURES / f"attach-{name}.svg").write_text(f"{svg}\n")
    before, after = sorted(folder.glob("outputs/*/*/timeline.svg"))
    shutil.copy(before, PICTURES / "explain-before.svg")
    shutil.copy(after, PICTURES / "explain-after.svg")
    (report,) = folder.glob("outputs/*/*/report")
    shutil.copy(report / "training-seconds.png", PICTURES / "report-seconds.png")
    (link,) = re.findall(r"^charts: http://[^/]+(\S+)$", "\n".join(outputs.values()), re.M)
    draw_mlflow(folder, link)
    for picture in PICTURES.iterdir():
        assert picture.stat().st_size < MOST_BYTES, picture


def draw_mlflow(folder: Path, link: str) -> None:
    """A picture of MLflow's page, by chromium."""
    from PIL import Image
    from selenium import webdriver

    settings = webdriver.ChromeOptions()
    settings.binary_location = shutil.which("chromium") or ""
    width, height = WINDOW
    flags = ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage")
    for flag in (*flags, f"window-size={width},{height}", f"user-data-dir={folder / 'chromium'}"):
        settings.add_argument(f"--{flag}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ui = subprocess.Popen(
        [BIN / "python", "-m", "fastloop", "ui", f"port={port}"],
        cwd=folder,
        env=os.environ | {"FASTLOOP_OUTPUTS": str(folder / "outputs")},
        start_new_session=True,
    )
    try:
        chrome = webdriver.Chrome(
            settings, webdriver.ChromeService(shutil.which("chromedriver") or "")
        )
        wait_for_server(port)
        chrome.get(f"http://127.0.0.1:{port}{link}")
        bars = "return document.querySelectorAll('.bars .point path').length"
        deadline = time.monotonic() + 120
        while chrome.execute_script(bars) < 2:
            assert time.monotonic() < deadline, "MLflow drew no bars"
            time.sleep(1)
        for button in CLOSED:
            chrome.execute_script(f"document.querySelector('{button}')?.click()")
        time.sleep(2)  # the other charts follow, in the wider page
        picture = Image.open(io.BytesIO(chrome.get_screenshot_as_png())).convert("RGB")
        picture.quantize(64).save(PICTURES / "mlflow.png", optimize=True)
        chrome.quit()
    finally:
        os.killpg(ui.pid, 15)
        ui.wait()


def wait_for_server(port: int) -> None:
    """Return when something listens on the port."""
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise SystemExit("MLflow's server did not start")


if __name__ == "__main__":
    main()
