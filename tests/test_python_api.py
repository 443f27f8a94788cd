"""``import paceline`` costs nothing, and every name of the Python API is there, as in framework."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import framework
import paceline


@pytest.mark.parametrize("word", ["framework", "paceline; dir(paceline); paceline.__version__"])
def test_importing_it_imports_nothing_heavy(word):
    code = f"import sys, {word}; print(sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert not loaded & {"torch", "hydra", "h5py", "numpy", "lmdb", "cv2", "yaml"}


@pytest.mark.parametrize("name", framework._homes())
def test_a_name_is_what_its_module_defines(name):
    value = getattr(framework, name)
    assert value is not None
    assert name in dir(framework)
    assert getattr(paceline, name) is value
    if hasattr(value, "__module__") and value.__module__.startswith("framework."):
        assert value.__module__ == framework._homes()[name][0]


def test_type_checkers_see_the_same_names():
    stub = ast.parse(Path(framework.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    exported = {part.asname for node in imports for part in node.names if part.asname}
    assert {*exported, "pack_store"} == set(framework._homes())


def test_paceline_has_the_names_of_framework_and_no_modules():
    assert set(dir(paceline)) == {*framework._homes(), "__version__"}
    assert paceline.__version__ == framework.__version__
    folder = Path(paceline.__file__).parent
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {
        "__init__.py",
        "__init__.pyi",
        "py.typed",
    }
    for name in ("pack", "store", "no_such_name", "_homes"):
        with pytest.raises(AttributeError, match=f"module 'paceline' has no attribute '{name}'"):
            getattr(paceline, name)


@pytest.mark.slow
def test_a_type_checker_sees_the_objects_behind_the_names(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import paceline\n\nreveal_type(paceline.open_store)\npaceline.no_such_name\n"
    )
    words = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, script]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert '"paceline.open_store" is "(path' in done.stdout
    assert '"no_such_name" is not a known attribute of module "paceline"' in done.stdout
