"""The README's two commands come first, and its examples run as they stand."""

import os
import re
import subprocess
import sys

import pytest

from framework.cli.paths import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)


def test_the_two_commands_come_first():
    commands = re.findall(r"^    (make \w+)", README, re.MULTILINE)
    assert commands[:2] == ["make train", "make test"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"train", "test", "setup", "check", "help"} <= set(targets)


def test_there_are_five_examples():
    assert len(BLOCKS) == 5


@pytest.mark.parametrize(
    "block", BLOCKS, ids=lambda block: block.split()[1] + "-" + block.split()[2]
)
def test_an_example_runs_as_it_stands(block, tmp_path):
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "paceline").write_text(f'#!/bin/sh\nexec {sys.executable} -m framework "$@"\n')
    (bin_dir / "paceline").chmod(0o755)
    env = {**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-ec", block], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_document_the_readme_names_exists():
    names = re.findall(
        r"`((?:docs|examples|benchmarks|framework|recipes)/[\w./-]*|[A-Z]+\.md)`", README
    )
    assert len(names) > 5
    assert not [name for name in names if not (ROOT / name).exists()]
