"""``import framework`` costs nothing, and every name of the Python API is there."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import framework


def test_importing_it_imports_nothing_heavy():
    code = "import sys, framework; print(sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert not loaded & {"torch", "hydra", "h5py", "numpy", "lmdb", "cv2", "yaml"}


@pytest.mark.parametrize("name", framework._homes())
def test_a_name_is_what_its_module_defines(name):
    value = getattr(framework, name)
    assert value is not None
    assert name in dir(framework)
    if hasattr(value, "__module__") and value.__module__.startswith("framework."):
        assert value.__module__ == framework._homes()[name][0]


def test_type_checkers_see_the_same_names():
    stub = ast.parse(Path(framework.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    exported = {part.asname for node in imports for part in node.names if part.asname}
    assert {*exported, "pack_store"} == set(framework._homes())
