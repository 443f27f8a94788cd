"""The README is short, begins with two commands, and its links lead somewhere.

``test_docs.py`` runs its code.
"""

import re

from framework.config.targets import ROOT

README = (ROOT / "README.md").read_text()
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


def test_it_is_short():
    assert len(README.split()) <= 900


def test_what_it_names_exists():
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert not [name for name in LINKS + pictures if not (ROOT / name).exists()]
