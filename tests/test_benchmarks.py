"""Benchmarks are run by hand, and seldom: what they use of the framework must still exist."""

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted([*FOLDER.glob("*.py"), *FOLDER.glob("planted/*.py")])


def exists(module, name):
    """Return whether a module has that attribute or submodule."""
    imported = importlib.import_module(module)
    if hasattr(imported, name):
        return True
    return hasattr(imported, "__path__") and find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_benchmark_takes_of_the_framework_is_there(path):
    nodes = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
    ]
    ours = [node for node in nodes if (node.module or "").startswith("framework")]
    taken = [(node.module, alias.name) for node in ours for alias in node.names]
    gone = [f"{module}.{name}" for module, name in taken if not exists(module, name)]
    assert not gone
