"""A real browser for tests: Debian's chromium.

chromedriver controls it through its debugging protocol.
"""

import json
import socket
import subprocess
import time
import urllib.request

import pytest

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--window-size=1400,5000", "--disable-background-networking", "--disable-sync"),
    *("--disable-component-update", "--disable-dev-shm-usage"),
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
