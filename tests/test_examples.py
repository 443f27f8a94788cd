"""Own work in at most 30 lines: both examples run, and are as short as they claim."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from framework.config.targets import ROOT
from tests.cli.command import is_one_error_line, paceline

OWN = ROOT / "examples" / "own_model_and_data"


def code_lines(path: Path) -> int:
    """Count the lines of statements, without imports, docstrings, comments and blank lines."""
    tree = ast.parse(path.read_text())
    skip: set[int] = set()
    for node in ast.walk(tree):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or isinstance(node, ast.Import | ast.ImportFrom):
            skip |= set(range(node.lineno, node.end_lineno + 1))
    lines = [line.strip() for line in path.read_text().splitlines()]
    code = [n for n, line in enumerate(lines, 1) if line and not line.startswith("#")]
    return len(set(code) - skip)


@pytest.mark.slow
def test_a_model_an_objective_and_arrays_of_ones_own():
    shutil.copytree(OWN, "own")
    subprocess.run([sys.executable, "-m", "sines"], cwd="own", check=True, timeout=60)
    words = ["train", "--config-dir", ".", "recipes=sines", "epochs=10", "hydra.run.dir=run"]
    refused = paceline(*words, cwd=Path("own"))
    assert refused.code == 2
    assert is_one_error_line(refused, "C105")
    assert paceline(*words, "allow_targets=[sines]", cwd=Path("own")).code == 0
    assert json.loads(Path("own/run/summary.json").read_text())["val"]["within_10_percent"] > 0.5
    ranks = [*words[:-1], "hydra.run.dir=two", "parallel=ddp"]
    assert paceline(*ranks, cwd=Path("own"), PACELINE_ALLOW_TARGETS="sines").code == 0


@pytest.mark.slow
def test_the_same_parts_from_python():
    command = [sys.executable, ROOT / "examples" / "from_python.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    last = next(line for line in reversed(done.stdout.splitlines()) if "accuracy" in line)
    assert ast.literal_eval(last)["accuracy"] > 0.9


def test_own_work_is_at_most_30_lines():
    assert code_lines(OWN / "sines" / "__init__.py") < 30
    assert code_lines(ROOT / "examples" / "from_python.py") <= 30
    assert len((OWN / "recipes" / "sines.yaml").read_text().splitlines()) < 30
