"""The page in Debian's chromium, driven by chromedriver over its debugging protocol."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from framework.commands.report.report import write_report
from tests.commands.report.runs import cell, make_bench, make_run

REASON = "needs Debian's packages chromium and chromium-driver"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("chromedriver"), reason=REASON)]
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
HOSTILE = "<script>document.title='hacked'</script>"
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
    """Send a request of the WebDriver protocol, and return the parsed answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


class Browser:
    """One window on one page."""

    def __init__(self, driver: str, profile: Path) -> None:
        arguments = [*FLAGS, f"--user-data-dir={profile}"]
        options = {"args": arguments, "binary": shutil.which("chromium")}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = call(f"{driver}/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"{driver}/session/{answer['value']['sessionId']}"

    def open(self, path: Path) -> None:
        call(f"{self.session}/url", {"url": path.absolute().as_uri()})

    def run(self, script: str):
        body = {"script": script, "args": []}
        return call(f"{self.session}/execute/sync", body)["value"]

    def devtools(self, command: str, **parameters):
        body = {"cmd": command, "params": parameters}
        return call(f"{self.session}/goog/cdp/execute", body)["value"]

    def press(self, keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        body = {"actions": [{"type": "key", "id": "keys", "actions": actions}]}
        call(f"{self.session}/actions", body)

    def messages(self) -> list:
        return call(f"{self.session}/se/log", {"type": "browser"})["value"]

    def close(self) -> None:
        call(self.session, method="DELETE")


@pytest.fixture
def browser(tmp_path):
    port = free_port()
    driver = f"http://127.0.0.1:{port}"
    words = [shutil.which("chromedriver"), f"--port={port}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, **quiet) as process:
        try:
            wait_until_ready(driver)
            opened = Browser(driver, tmp_path / "profile")
            yield opened
            opened.close()
        finally:
            process.terminate()


def wait_until_ready(driver: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(OSError):
            if call(f"{driver}/status")["value"]["ready"]:
                return
        time.sleep(0.1)
    raise AssertionError("chromedriver did not start")


TABLE = "document.querySelector('#runs').parentElement"


def column(browser, number: int) -> list[str]:
    text = f"row.cells[{number}].innerText.split('\\n')[0].trim()"
    return browser.run(f"return [...{TABLE}.querySelectorAll('tbody tr')].map((row) => {text})")


def heads(browser) -> list[str]:
    text = "th.innerText.split('\\n')[0].trim()"
    return browser.run(f"return [...{TABLE}.querySelectorAll('thead th')].map((th) => {text})")


def focus(browser, number: int) -> None:
    browser.run(f"{TABLE}.querySelectorAll('thead button')[{number}].focus()")


def test_the_page_works_on_a_screen_a_phone_and_paper(browser, tmp_path):
    for number, slow in enumerate((2.0, 1.0, 12.0)):
        words = (f"data={'a' * 90 if number else HOSTILE}", f"seed={number}")
        make_run(tmp_path / "sweep" / str(number), words, slow=slow)
    reason = f"error[N101]: {HOSTILE}" + "x" * 200
    make_run(tmp_path / "sweep" / "3", ("data=z",), code=6, reason=reason, lines=[])
    write_report(["sweep"], Path("sweep/report.html"), png=False)
    browser.open(Path("sweep/report.html"))

    # and not what a run's name wants
    assert browser.run("return document.title") == "Sweep sweep \N{EN DASH} Paceline"
    assert HOSTILE in browser.run("return document.body.innerText")
    assert browser.run("return document.querySelectorAll('figure svg').length") == 6

    focus(browser, heads(browser).index("records/s"))
    browser.press("\ue007")  # Enter
    assert column(browser, 0) == ["1", "0", "2", "3"]  # the fastest first, no rate last
    browser.press(" ")
    assert column(browser, 0) == ["2", "0", "1", "3"]
    order = "return document.activeElement.parentElement.getAttribute('aria-sort')"
    assert browser.run(order) == "ascending"
    focus(browser, 0)
    browser.press("\ue007")
    assert column(browser, 0) == ["0", "1", "2", "3"]

    browser.devtools("Emulation.setDeviceMetricsOverride", **PHONE)
    assert browser.run("return window.innerWidth") == 390
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    edges = (
        "[...document.querySelectorAll('figure svg')].map((s) => s.getBoundingClientRect().right)"
    )
    assert max(browser.run(f"return {edges}")) <= 390
    letter = "document.querySelector('figure svg text').getBoundingClientRect().height"
    assert browser.run(f"return {letter}") >= 9  # pixels: small, but to be read

    color = "return getComputedStyle(document.documentElement).backgroundColor"
    line = "return getComputedStyle(document.querySelector('#chart-spans text')).fill"
    light = browser.run(color), browser.run(line)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.devtools("Emulation.setEmulatedMedia", features=features)
    dark = browser.run(color), browser.run(line)
    assert light == ("rgb(255, 255, 255)", "rgb(89, 98, 109)")
    assert dark == ("rgb(20, 23, 27)", "rgb(166, 174, 184)")

    browser.devtools("Emulation.clearDeviceMetricsOverride")
    assert base64.b64decode(browser.devtools("Page.printToPDF")["data"]).startswith(b"%PDF")
    browser.devtools("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.run(color) == "rgb(255, 255, 255)"  # paper is light
    assert browser.messages() == []


def test_the_policy_stops_what_would_be_fetched_or_run(browser, tmp_path):
    make_bench(tmp_path / "b.jsonl", [cell(1.0, data="a"), cell(2.0, data="b")])
    path = Path("b.html")
    write_report(["b.jsonl"], path, png=False)
    inside = "<img src='https://example.invalid/x.png'><script>document.title = 'hacked'</script>"
    path.write_text(path.read_text().replace("<main>", f"<main>{inside}"))
    browser.open(path)
    assert browser.run("return document.title") == "Bench b.jsonl \N{EN DASH} Paceline"
    texts = [entry["message"] for entry in browser.messages()]
    assert sum("Content Security Policy" in text for text in texts) == 2
