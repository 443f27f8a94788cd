"""The advice of the errors that the tests raise works when it is typed as printed."""

import json
import os
import subprocess
import sys

import pytest

from framework.config.targets import ROOT
from tests.advice import ASKED, Tried

FOLDERS = ("cli", "commands", "data", "faults", "input")
MOST_S = 1500


@pytest.mark.slow
@pytest.mark.timeout(MOST_S + 60)
def test_the_advice_of_the_errors_of_other_tests_works(tmp_path):
    path = tmp_path / "tried.jsonl"
    path.touch()
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not cluster"]
    words = [sys.executable, "-m", "pytest", *words, *(f"tests/{name}" for name in FOLDERS)]
    options = {"cwd": ROOT, "env": {**os.environ, ASKED: str(path)}, "timeout": MOST_S}
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    assert done.returncode in (0, 1), done.stdout[-3000:]  # their failures are their own
    tried = [Tried(*json.loads(line)) for line in path.read_text().splitlines()]
    assert len(tried) > 20
    wrong = [own for own in tried if own.failed]
    assert not wrong, "\n\n".join("\n  ".join(map(str, own)) for own in wrong)
