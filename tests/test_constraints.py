"""The packages of pyproject.toml and the Makefile go together in the versions of constraints."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
OURS, PEERS = "constraints.txt", "benchmarks/constraints.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ALONE = {"bench", "timm", "slurm", "optuna", "ray"}
# extras that are installed together, and with which constraints: as the Makefile does
TOGETHER = {"setup": (sorted(set(EXTRAS) - ALONE), [OURS]), "bench": (["bench"], [OURS, PEERS])}
TOGETHER |= {"timm": (["timm"], [OURS]), "slurm": (["slurm"], []), "optuna": (["optuna"], [])}
TOGETHER |= {"ray": (["ray"], [])}


def pinned(file: str) -> dict[str, str]:
    """Return the version of each package by its canonical name."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    requirements = [Requirement(line) for line in lines if line]
    assert all([clause.operator for clause in own.specifier] == ["=="] for own in requirements)
    return {canonicalize_name(own.name): str(own.specifier) for own in requirements}


def resolve(requirements: list[str], constraints: list[str]) -> subprocess.CompletedProcess[str]:
    """Let pip find versions without installing or isolating, which would bring another torch."""
    words = [word for file in constraints for word in ("-c", str(ROOT / file))]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "-q", "--no-build-isolation"]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_DEFAULT_TIMEOUT": "15"}
    pipes = {"capture_output": True, "text": True, "timeout": 280}
    command += [*words, *requirements]
    return subprocess.run(command, env=environment, check=False, **pipes)


def test_the_two_constraints_files_pin_the_same_versions():
    ours, peers = pinned(OURS), pinned(PEERS)
    both = ours.keys() & peers.keys()
    assert {name: ours[name] for name in both} == {name: peers[name] for name in both}


@pytest.mark.parametrize("file", [OURS, PEERS])
def test_no_package_is_pinned_twice(file):
    lines = [line for line in (ROOT / file).read_text().splitlines() if "==" in line]
    assert len(pinned(file)) == len(lines)


@pytest.mark.parametrize("extra", [*EXTRAS, "dependencies"])
def test_a_pinned_version_is_one_that_pyproject_allows(extra):
    versions = pinned(OURS) | pinned(PEERS)
    wanted = [Requirement(word) for word in EXTRAS.get(extra, PROJECT["dependencies"])]
    for requirement in wanted:
        version = versions.get(canonicalize_name(requirement.name))
        if version is not None:
            number = version.removeprefix("==")
            assert requirement.specifier.contains(number, prereleases=True), requirement


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_what_is_installed_together_can_be(name):
    extras, constraints = TOGETHER[name]
    requirements = [*PROJECT["dependencies"], *(word for extra in extras for word in EXTRAS[extra])]
    done = resolve(requirements, constraints)
    disagree = "ResolutionImpossible" in done.stderr or "conflict" in done.stderr
    if done.returncode and not disagree:
        last_line = done.stderr.strip().splitlines()[-1:]
        pytest.skip(f"no package index that has them can be reached: {last_line}")
    assert done.returncode == 0, done.stderr
