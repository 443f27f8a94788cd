"""Every place that needs a package of an extra says in one line what to install."""

import shlex
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement

from framework.config.paths import ROOT
from framework.errors import ResourceError
from framework.measure.statistics import claim
from framework.system.extras import needed, pip_install
from tests.cli.command import is_one_error_line, paceline
from tests.commands.report.runs import make_run

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPORT = "pip install jinja2 'matplotlib>=3.9'"


def test_a_missing_package_is_named_as_the_registry_knows_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ResourceError, match=r"R112\]: jinja2: is not installed") as raised:
        needed("jinja2", "report")
    assert str(raised.value).endswith(f"; {REPORT}")
    needed("matplotlib", "report")  # which is installed


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_every_extra_can_be_named(extra):
    names = [Requirement(word).name for word in shlex.split(pip_install(extra))[2:]]
    wanted = PROJECT["optional-dependencies"][extra]
    assert set(names) == {Requirement(word).name for word in wanted}


def test_a_report_names_what_it_needs(tmp_path, monkeypatch):
    make_run(tmp_path / "a")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = paceline("report", "a")
    assert is_one_error_line(done, "R112")
    assert done.last_line.endswith(REPORT)


def test_a_search_names_what_it_needs_before_it_measures(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    done = paceline("tune", "data=synthetic", "budget=600")
    assert is_one_error_line(done, "R112")
    assert done.last_line.endswith("pip install scipy")


def test_without_the_extra_no_choice_is_called_the_fastest(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    zeros = [[0.0] * 5] * 2
    verdict = claim([[1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.1, 2.2, 2.3, 2.4]], zeros, zeros)
    assert (verdict.highest, verdict.proved) == (1, False)
    assert "pip install scipy" in verdict.words


def test_no_command_imports_them_before_it_needs_them():
    code = (
        "import sys, framework.main; from importlib import import_module\n"
        "for name in framework.main.COMMANDS:\n"
        "    module = import_module(f'framework.commands.{name}')\n"
        "    hasattr(module, 'main') or import_module(f'framework.commands.{name}.{name}')\n"
        "print({'matplotlib', 'jinja2', 'sklearn', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
