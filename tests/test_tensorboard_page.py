"""TensorBoard shows a real run in a real browser.

The browser is Debian's chromium. chromedriver controls it through its debugging protocol.
"""

import base64
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.cli.command import paceline

FLAGS = [
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--window-size=1400,5000",
    ),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def call(url: str, body: dict | None = None, method: str | None = None):
    """Send a request of the WebDriver protocol, or get a plain page, and return the parsed JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def wait_for(ask, limit_s: float = 60):
    """Ask until an answer is true or ``limit_s`` has passed, and return the last answer."""
    end = time.monotonic() + limit_s
    while True:
        try:
            answer = ask()
        except OSError:
            answer = None
        if answer or time.monotonic() > end:
            return answer
        time.sleep(0.3)


@pytest.fixture
def started():
    """Yield a function that starts programs, and stop them after the test."""
    processes: list[subprocess.Popen] = []

    def start(*words: object) -> None:
        processes.append(
            subprocess.Popen(
                [str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )

    yield start
    for process in reversed(processes):
        process.terminate()
        process.wait(20)


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("chromedriver"), reason="needs Debian's packages chromium and chromium-driver"
)
def test_a_run_is_seen_in_the_browser(started, tmp_path):
    assert paceline("train", "epochs=2", "report_every=2", "hydra.run.dir=run").code == 0
    board, driver = (
        f"http://127.0.0.1:{(port := free_port())}",
        f"http://127.0.0.1:{(driver_port := free_port())}",
    )
    started(
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        "run",
        "--host",
        "127.0.0.1",
        "--port",
        port,
        "--load_fast=false",
    )
    started(shutil.which("chromedriver"), f"--port={driver_port}")
    assert wait_for(lambda: call(f"{board}/data/runs"))
    assert wait_for(lambda: call(f"{driver}/status")["value"]["ready"])
    options = {
        "args": [*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"],
        "binary": shutil.which("chromium"),
    }
    session = call(
        f"{driver}/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
    )["value"]["sessionId"]
    page = f"{driver}/session/{session}"
    call(f"{page}/url", {"url": f"{board}/#timeseries"})
    script = {"script": "return document.body.innerText.replace(/\\s/g, '')", "args": []}
    text = wait_for(
        lambda: next(
            (t for t in [call(f"{page}/execute/sync", script)["value"]] if "loss/train" in t), ""
        )
    )
    shot = base64.b64decode(call(f"{page}/screenshot")["value"])
    call(page, method="DELETE")
    assert text, "the loss is not on the page"
    assert all(
        tag in text
        for tag in (
            "accuracy/train",
            "accuracy/val",
            "loss/val",
            "records_per_s",
            "sample",
            "span",
            "lr",
        )
    )
    assert shot.startswith(b"\x89PNG")
    assert len(shot) > 20_000  # a page with curves, not a blank one
