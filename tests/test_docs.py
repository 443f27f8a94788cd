"""The documentation is correct: its code runs, its links lead somewhere, its pictures are current.

The blocks of a page run in turn, in a new directory with ``photos``, ``scenes`` and ``masks``:

- ``bash`` and ``python`` blocks run
- blocks with a ``title`` become files of that name
- ``sh`` blocks need what a test does not have (hosts, a GPU, photographs) and do not run
"""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
import yaml

from framework import main
from framework.config.targets import ROOT
from tests.forks import forked

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"bash", "python", "sh", "yaml", "text", "json", "c"}
STEPS = 4  # of each training: enough to go through every part


class Block(NamedTuple):
    """A fenced block of code."""

    language: str
    title: str
    code: str


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, with the files that they include."""
    blocks = [Block(*match) for match in BLOCK.findall(page.read_text())]
    return [block._replace(code=included(block.code)) for block in blocks]


def included(code: str) -> str:
    """Return ``code`` with the lines of the file that it names."""
    match = re.fullmatch(r'--8<-- "([^":]+):?(\d*)"\n', code)
    if match is None:
        return code
    lines = (ROOT / match[1]).read_text().splitlines(keepends=True)
    return "".join(lines[int(match[2] or 1) - 1 :])


def runs(block: Block) -> bool:
    return block.language in ("bash", "python") and not block.title


def statements(code: str) -> list[str]:
    """Return the lines that call ``paceline`` one by one, and what lies between them as it is."""
    parts: list[str] = []
    for line in code.replace("\\\n", " ").splitlines():
        if line.startswith("paceline ") or not parts or parts[-1].startswith("paceline "):
            parts.append(line)
        else:
            parts[-1] += f"\n{line}"
    return parts


def shortened(words: list[str]) -> list[str]:
    """Return the words of a command that trains only a few steps."""
    trains = words[0] == "train" and not any("max_steps=" in word for word in words)
    looks = {"--help", "--cfg", "--explain"} & set(words)
    return [*words, f"max_steps={STEPS}"] if trains and not looks else words


def command(words: list[str], folder: Path) -> None:
    """Run ``paceline`` in a forked process, which has imported everything already."""
    os.chdir(folder)
    with (folder / "output.txt").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    code = main.run(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def paceline(line: str, folder: Path) -> None:
    """Run one line that calls ``paceline``, and fail as it does."""
    process = forked(command, shortened(shlex.split(line)[1:]), folder)
    process.join()
    assert process.exitcode == 0, f"{line}\n{(folder / 'output.txt').read_text()}"


def shell(words: list[str], folder: Path) -> None:
    """Run another program, and fail as it does."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, f"{words[-1]}\n{done.stdout}{done.stderr}"


def run_block(block: Block, folder: Path) -> None:
    if block.language == "python":
        shell([sys.executable, "-c", block.code], folder)
        return
    for statement in statements(block.code):
        if statement.startswith("paceline "):
            paceline(statement, folder)
        else:
            shell(["bash", "-ec", statement], folder)


def write_image(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), pixels)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write photos of different sizes in two classes, and scenes with masks. Return the folder."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rng = np.random.default_rng(0)
    for number in range(24):
        size = (72 + number, 96, 3)
        name = f"photos/{('cat', 'dog')[number % 2]}/{number}.jpg"
        write_image(tmp_path / name, rng.integers(0, 256, size, np.uint8))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for number in range(4):
        write_image(tmp_path / f"scenes/{number}.png", rng.integers(0, 256, (32, 32, 3), np.uint8))
        mask = rng.integers(0, 2, (32, 32), np.uint8)
        mask[0] = 255
        write_image(tmp_path / f"masks/{number}.png", mask)
    return tmp_path


def runnable_pages() -> list[Any]:
    """Return the pages whose code runs; those that start many processes are marked slow."""
    slow = {"several-gpus.md", "diagnose.md"}
    return [
        pytest.param(page, marks=pytest.mark.slow if page.name in slow else (), id=page.stem)
        for page in PAGES
        if any(map(runs, blocks_of(page)))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", runnable_pages())
def test_the_code_of_a_page_runs(page, folder):
    for block in blocks_of(page):
        if block.title:
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.code)
        elif runs(block):
            run_block(block, folder)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_code_says_its_language(page):
    fences = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)
    assert {fence.partition(" ")[0] for fence in fences[::2]} <= LANGUAGES
    assert len(fences) == 2 * len(blocks_of(page))


CODE = ("framework", "tests", "benchmarks", "examples", "docs")
FILE = re.compile(r"`([\w-]+(?:/[\w.-]+)+\.(?:py|c))(?:[:.]\w+)?`")


def test_the_code_that_a_page_names_exists():
    there = {f"/{path.relative_to(ROOT)}" for folder in CODE for path in (ROOT / folder).rglob("*")}
    pages = [*PAGES, ROOT / "benchmarks" / "README.md"]
    named = {(page.name, name) for page in pages for name in FILE.findall(page.read_text())}
    assert len(named) > 50
    missing = [place for place in named if not any(path.endswith(f"/{place[1]}") for path in there)]
    assert not missing


OWN = [ROOT / f"tests/faults/test_{name}.py" for name in ("packing", "reading", "training")]


def without_test(cell: str) -> list[str]:
    """Return the tests that a cell names by file and first words, and that do not exist."""
    missing, files = [], OWN
    for part in re.split("[,;] ", cell):
        match = re.fullmatch(r"(?:`([\w/]+\.py)`)? ?(\w*)", part)
        assert match, part
        files = [ROOT / "tests" / match[1]] if match[1] else files
        name = rf"^def (test_)?{match[2]}(_|\()" if match[2] else ""
        if not any(re.search(name, file.read_text(), re.MULTILINE) for file in files):
            missing.append(part)
    return missing


def test_the_tests_that_the_page_of_faults_names_exist():
    rows = re.findall(r"^\|.*\| (.*) \|$", (DOCS / "faults.md").read_text(), re.MULTILINE)
    cells = [cell for cell in rows if cell not in ("test", "---")]
    assert len(cells) > 80
    assert [part for cell in cells for part in without_test(cell)] == []


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    named = re.findall(r"[\w/-]+\.md$", text, re.MULTILINE)
    pages = {str(page.relative_to(DOCS)) for page in PAGES[1:]}
    assert {page for page in pages if not page.startswith("design/")} <= set(named)
    assert isinstance(yaml.safe_load(text), dict)


@pytest.mark.slow
def test_the_site_builds_without_a_broken_link(tmp_path):
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    words = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", str(tmp_path / "s")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    built = {path.parent.name for path in (tmp_path / "s" / "design").glob("*/index.html")}
    assert built == {path.stem for path in (DOCS / "design").glob("*.md")}


def test_the_pictures_are_what_draw_makes(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["draw.py", str(tmp_path)])
    runpy.run_path(str(DOCS / "draw.py"), run_name="__main__")
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name: path.read_text() for path in (DOCS / "pictures").glob("*.svg")}
    assert len(drawn) >= 10
