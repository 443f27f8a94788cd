"""The README is short, begins with a loop and two commands, and its links lead somewhere."""

import ast
import re
import subprocess
import sys

import pytest

from framework.config.targets import ROOT
from tests.test_docs import blocks_of

README = (ROOT / "README.md").read_text()
LOOP = ROOT / "examples" / "loop"
LINKS = re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", README)


def test_the_two_commands_come_first():
    commands = re.findall(r"^(make \w+)", README, re.MULTILINE)
    assert commands == ["make train", "make test"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"train", "test", "setup", "check", "help", "docs"} <= set(targets)


def test_there_are_five_examples_and_one_of_your_own():
    blocks = re.findall(r"^```bash\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    assert len(blocks[-1].splitlines()) <= 15


@pytest.mark.parametrize(("name", "most"), [("plain.py", 25), ("trainer.py", 12)])
def test_the_loops_are_those_of_the_example_and_as_short_as_told(name, most):
    (code,) = [block.code for block in blocks_of(ROOT / "README.md") if block.title == name]
    assert code == (LOOP / name).read_text()
    assert len([line for line in code.splitlines() if line]) <= most


def test_the_short_loop_has_exactly_the_losses_of_the_plain_one():
    pipes = {"capture_output": True, "text": True, "timeout": 120}
    plain, said = (
        subprocess.run([sys.executable, name], cwd=LOOP, check=True, **pipes).stdout.splitlines()
        for name in ("plain.py", "trainer.py")
    )
    short = [line for line in said if not line.startswith("note: ")]
    assert len(plain) == 3
    assert short[:-1] == plain
    assert {"forward", "backward", "optimizer"} <= set(ast.literal_eval(short[-1]))


def test_it_is_short():
    assert len(README.split()) <= 900


def test_what_it_names_exists():
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert not [name for name in LINKS + pictures if not (ROOT / name).exists()]
