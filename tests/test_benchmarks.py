"""Benchmarks are run by hand, and seldom: what they take of the framework must still be there."""

import ast
import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_benchmark_takes_of_the_framework_is_there(path):
    nodes = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
    ]
    taken = [
        (node.module, one.name)
        for node in nodes
        if (node.module or "").startswith("framework")
        for one in node.names
    ]
    gone = [
        f"{module}.{name}"
        for module, name in taken
        if not hasattr(importlib.import_module(module), name)
    ]
    assert not gone
