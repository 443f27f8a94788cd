"""``import framework`` costs nothing, and every name of the Python API is there."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import framework

TREE = ast.parse(Path(framework.__file__).read_text())


def test_importing_it_imports_nothing_heavy():
    code = "import sys, framework; print(sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert not loaded & {"torch", "hydra", "h5py", "numpy", "lmdb", "cv2", "yaml"}


@pytest.mark.parametrize("name", framework._HOMES)
def test_a_name_is_what_its_module_defines(name):
    value = getattr(framework, name)
    assert value is not None
    assert name in dir(framework)
    if hasattr(value, "__module__") and value.__module__.startswith("framework."):
        assert value.__module__ == framework._HOMES[name]


def test_type_checkers_see_the_same_names():
    block = next(node for node in TREE.body if isinstance(node, ast.If))
    imported = {
        (alias.asname or alias.name, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {(framework._NAMES.get(name, name), home) for name, home in framework._HOMES.items()}
    assert imported == homes


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        _ = framework.Trainr


def test_it_is_typed():
    assert Path(framework.__file__).with_name("py.typed").exists()
    assert import_module("framework.errors").PacelineError is framework.PacelineError
