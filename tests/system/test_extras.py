"""Every place that needs a package of an extra says in one line what to install."""

import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from framework.cli.paths import ROOT
from framework.errors import ResourceError
from framework.measure.statistics import claim, u_test
from framework.system.extras import needed
from tests.cli.command import Done, is_one_error_line
from tests.commands.report.runs import make_run
from tests.faults import forked

EXTRAS = {"matplotlib": "report", "jinja2": "report", "scikit-learn": "digits", "scipy": "stats"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def paceline(*words: str, without: str) -> Done:
    """Run a command that cannot import ``without``."""

    def hide() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == without]:
            del sys.modules[name]
        sys.modules[without] = None  # ty: ignore

    return forked.paceline(*words, before=hide)


def names_extra(done: Done, extra: str) -> bool:
    return is_one_error_line(done, "R112") and f"pip install 'paceline[{extra}]'" in done.err


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ResourceError, match=r"R112\]: jinja2: .*pip install 'paceline\[report\]'"):
        needed("jinja2", "report")


def test_a_package_that_is_installed_raises_nothing():
    needed("jinja2", "report")


@pytest.mark.parametrize("package", EXTRAS)
def test_a_package_of_an_extra_is_no_dependency(package):
    names = {Requirement(word).name for word in PROJECT["dependencies"]}
    extra = {Requirement(word).name for word in PROJECT["optional-dependencies"][EXTRAS[package]]}
    assert package in extra - names


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_report_names_the_extra(tmp_path, package):
    make_run(tmp_path / "a")
    done = paceline("report", "a", without=package)
    assert done.code == 5
    assert names_extra(done, "report")


def test_the_digits_name_the_extra():
    done = paceline("pack", "input=digits", "output.path=d.h5", without="sklearn")
    assert done.code == 5
    assert names_extra(done, "digits")


def test_a_comparison_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ResourceError, match=r"R112.*pip install 'paceline\[stats\]'"):
        u_test([1.0], [2.0])


def test_a_search_names_the_extra_before_it_measures():
    done = paceline("tune", "data=synthetic", "budget=600", without="scipy")
    assert done.code == 5
    assert names_extra(done, "stats")


def test_without_the_extra_no_choice_is_called_the_fastest(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    verdict = claim([[1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.1, 2.2, 2.3, 2.4]])
    assert (verdict.highest, verdict.proved) == (1, False)
    assert "pip install 'paceline[stats]'" in verdict.words


def test_no_command_imports_them_before_it_needs_them():
    code = (
        "import sys, framework.main; from importlib import import_module\n"
        "for name in framework.main.COMMANDS: import_module(f'framework.commands.{name}.{name}')\n"
        "print({'matplotlib', 'jinja2', 'sklearn', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
