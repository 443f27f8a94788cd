import hashlib
import re
from base64 import b64encode
from html.parser import HTMLParser
from pathlib import Path

import pytest

from framework.commands.report.report import write_report
from framework.errors import ConfigError
from tests.commands.report.runs import MACHINE, cell, make_bench, make_run

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}'


class Seen(HTMLParser):
    """Every tag with its attributes; tags left open; the text outside of scripts and styles."""

    VOID = ("meta", "br", "path", "use", "rect")

    def __init__(self, html):
        super().__init__()
        self.found, self.open, self.wrong, self.text, self.scripts = [], [], [], "", []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.VOID and (not self.open or self.open.pop() != tag):
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.open[-1:] != ["style"]:
            self.text += data


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    for number in range(2):
        words = (f"data={HOSTILE}{number}", "seed=1")
        make_run(folder / str(number), words, notes=(HOSTILE,))
    machine = {**MACHINE, "processor": HOSTILE}
    make_run(folder / "2", ("data=z",), code=6, reason=HOSTILE, machine=machine)
    write_report([str(folder)], folder / "x.html", png=False)
    return Seen((folder / "x.html").read_text())


def test_what_others_wrote_is_text_and_no_markup(seen):
    assert "<script>alert(1)</script>" in seen.text
    assert "{{ 7*7 }}" in seen.text
    assert len(seen.scripts) == 1
    assert not [
        tag
        for tag, _ in seen.found
        if tag in {"img", "iframe", "object", "link", "base", "form", "foreignobject"}
    ]
    assert not [
        name for _, attributes in seen.found for name in attributes if name.startswith("on")
    ]


def test_nothing_is_fetched(seen):
    places = [
        value
        for _, attributes in seen.found
        for name, value in attributes.items()
        if name in {"href", "src", "action", "xlink:href"}
    ]
    assert places
    assert all(value.startswith("#") for value in places)
    values = " ".join(value or "" for _, attributes in seen.found for value in attributes.values())
    assert not re.search(r"https?:|//|@import|url\((?!#)", values)


def test_only_our_script_may_run(seen):
    policy = next(
        attributes["content"]
        for _, attributes in seen.found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    digest = b64encode(hashlib.sha256(seen.scripts[0].encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}'" in policy


def test_only_keys_that_differ_are_among_the_differences(tmp_path):
    for number in range(2):
        config = {"model": {"width": 8}, "optim": {"lr": number}}
        make_run(tmp_path / str(number), (f"data={number}",), config=config)
    write_report([str(tmp_path)], tmp_path / "x.html", png=False)
    html = (tmp_path / "x.html").read_text()
    assert "<code>optim.lr</code>" in html
    assert "model.width" not in html


def test_a_page_is_written_with_its_pictures_beside_it(tmp_path, capsys):
    for number in range(2):
        make_run(tmp_path / "sweep" / str(number), (f"seed={number}",))
    write_report(["sweep"], Path("sweep/report.html"))
    assert "(2 runs, and 6 pictures beside it)" in capsys.readouterr().out
    assert len(list(Path("sweep").glob("report-*.png"))) == 6
    assert len(list(Path("sweep").iterdir())) == 9
    assert "<h1>Sweep sweep</h1>" in Path("sweep/report.html").read_text()


@pytest.mark.parametrize(("relative", "base"), [("first", "fast"), ("slowest", "slow")])
def test_whose_time_is_one_is_said(tmp_path, relative, base):
    make_bench(tmp_path / "b.jsonl", [cell(2.0, data="fast"), cell(1.0, data="slow")])
    write_report(["b.jsonl"], Path("b.html"), relative, png=False)
    assert f"as a multiple of {base}" in Path("b.html").read_text()


def test_a_page_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match="C176"):
        write_report(["b.jsonl"], Path("b.pdf"))
