"""The compiled part of the package, with a compiler and without one."""

import ctypes
import importlib.util
import shutil

import pytest

from framework.config.targets import ROOT
from framework.system.native import SIGNATURES

SOURCES = sorted((ROOT / "framework" / "system" / "native").glob("*.c"))


@pytest.fixture
def hook():
    path = ROOT / "hatch_build.py"
    if not path.exists():
        pytest.skip("the tests run from an installed package, not from a checkout")
    spec = importlib.util.spec_from_file_location("hatch_build", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_c_files_become_one_library(hook, tmp_path):
    (tmp_path / "twice.c").write_text("int twice(int x) { return 2 * x; }")
    library = tmp_path / "x.so"
    assert hook._compile_with([tmp_path / "twice.c"], library, []) == ""
    assert ctypes.CDLL(str(library)).twice(3) == 6


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
@pytest.mark.parametrize("openmp", [["-fopenmp"], []])
def test_ours_are_compiled_with_threads_and_without(hook, tmp_path, openmp):
    library = tmp_path / "x.so"
    assert hook._compile_with(SOURCES, library, openmp) == ""
    assert [path.name for path in tmp_path.iterdir()] == ["x.so"]
    if not openmp:
        assert all(hasattr(ctypes.CDLL(str(library)), name) for name in SIGNATURES)


def test_without_a_compiler_nothing_is_left_and_nothing_fails(hook, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    said = hook._compile_with(SOURCES, tmp_path / "x.so", [])
    assert "no-such-compiler" in said
    assert list(tmp_path.iterdir()) == []
