import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from framework.config.signature import Signature, static_signature
from framework.loader.plain import PlainLoader

SOURCE = """
from dataclasses import dataclass

raise SystemExit("this module was executed")

def function(a, /, b, *, c=1): ...
def anything(a, **others): ...

class Plain:
    def __init__(self, x, y=2): ...

class Empty: ...

class Child(Plain): ...

@dataclass(frozen=True)
class Record:
    one: int
    two: str = ""
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a package that must not be run, and return its name."""
    name = f"unrun_{tmp_path.name.replace('-', '_')}"
    Path(name).mkdir()
    Path(name, "__init__.py").write_text(f"from {name}.inner import Plain as Other\n")
    Path(name, "inner.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("function", Signature(("a", "b", "c"), False)),
        ("anything", Signature(("a",), True)),
        ("Plain", Signature(("x", "y"), False)),
        ("Empty", Signature((), False)),
        ("Record", Signature(("one", "two"), False)),
        ("Child", Signature(("x", "y"), False)),
        ("Missing", None),
    ],
)
def test_a_signature_is_read_without_running_the_module(package, name, expected):
    assert static_signature(f"{package}.inner.{name}") == expected
    assert f"{package}.inner" not in sys.modules


def test_a_name_that_a_package_passes_on_is_found_where_it_lives(package):
    assert static_signature(f"{package}.Other") == Signature(("x", "y"), False)


@pytest.mark.parametrize(
    "target",
    ["no_such_package.Thing", "framework.no_such_module.Thing", "framework", "math.sqrt", ""],
)
def test_what_has_no_source_has_no_signature(target):
    assert static_signature(target) is None


def test_it_says_what_python_says():
    signature = static_signature("framework.loader.plain.PlainLoader")
    assert signature is not None
    assert list(signature.names) == list(inspect.signature(PlainLoader).parameters)


def test_torchs_optimizers_are_read():
    signature = static_signature("torch.optim.AdamW")
    assert signature is not None
    assert {"params", "lr", "weight_decay"} <= set(signature.names)


def test_torch_is_not_loaded_for_it():
    script = (
        "import sys; from framework.config.signature import static_signature as s; "
        "assert s('torch.optim.SGD')"
    )
    root = str(Path(inspect.getfile(static_signature)).parents[2])
    subprocess.run(
        [sys.executable, "-c", f"{script}; assert 'torch' not in sys.modules"], check=True, cwd=root
    )


def test_a_module_of_the_present_directory_is_read_though_no_path_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", ".")])
    before = list(sys.path)
    for number, argument in enumerate(("drop", "width")):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        Path("unrun_here.py").write_text(
            f"raise SystemExit\nclass Net:\n  def __init__(self, {argument}): ...\n"
        )
        assert static_signature("unrun_here.Net") == Signature((argument,), False)
    assert sys.path == before
    assert "unrun_here" not in sys.modules
