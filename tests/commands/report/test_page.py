import hashlib
import re
from base64 import b64encode
from html.parser import HTMLParser

import pytest

from framework.commands.report.compare_runs import labels, relative
from framework.commands.report.page import page, remarks
from framework.commands.report.read_run import read_run
from framework.commands.report.write_report import charts
from tests.commands.report.runs import MACHINE, make_run

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}'


def html_of(paths):
    runs = [read_run(path) for path in paths]
    names, compared = labels(runs), relative(runs, "first")
    return page(runs, names, compared, charts(runs, names, compared, png=False), "a title", "now")


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
    paths = [
        make_run(folder / str(n), (f"data={HOSTILE}{n}", "seed=1"), notes=(HOSTILE,))
        for n in range(2)
    ]
    paths.append(
        make_run(
            folder / "2",
            ("data=z",),
            code=6,
            reason=HOSTILE,
            machine={**MACHINE, "processor": HOSTILE},
        )
    )
    return Seen(html_of(paths))


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
    html = html_of(
        [
            make_run(
                tmp_path / str(n),
                (f"data={n}",),
                config={"model": {"width": 8}, "optim": {"lr": n}},
            )
            for n in range(2)
        ]
    )
    assert "<code>optim.lr</code>" in html
    assert "model.width" not in html


def test_different_machines_are_warned_of(tmp_path):
    paths = [
        make_run(tmp_path / "a"),
        make_run(tmp_path / "b", machine={**MACHINE, "processor": "another"}),
    ]
    notes = remarks([read_run(path) for path in paths])
    assert "2 different machines" in notes[0].text
    assert notes[0].numbers == [0, 1]
