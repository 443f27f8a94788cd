"""conf/<group>/<name>.yaml, framework/<group>/<name>.py and tests/<group>/test_<name>.py mirror each other."""

import re
from pathlib import Path

import pytest

import framework
from framework.cli.paths import CONF, ROOT

PACKAGE = Path(framework.__file__).parent
TESTS = Path(__file__).parent
HOME = {"input": "pack", "output": "data"}  # a store's writer stands beside its reader
NO_MODULE = {"optim", "debug", "order"}  # torch's own classes; presets
COMPONENTS = [path for path in sorted(CONF.glob("*/*.yaml")) if path.parent.name not in NO_MODULE]
NO_YAML = {
    "curve",
    "labels",
    "label_map",
    "marked",
    "fused",
    "source",
    "store",
    "btree",
    "classes",
    "foreign",
    "tree",
    "gather",
    "checksum",
    "identity",
    "jpeg",
    "packed",
    "resident",
    "scale",
    "shards",
    "page_cache",
    "stage",
    "stages",
    "statistics",
    "window",
    "reader",
    "workers",
    "decode",
    "prepare",
    "image",
    "manifest",
    "queue",
    "batch_norm",
    "group",
    "settle",
    "whole",
    "ranks",
    "hosts",
    "launch",
    "srun",
    "clip",
    "clock",
    "host",
    "measured",
    "profile",
    "run",
    "value",
    "label",
    "files",
    "waves",
    "chips",
    "blur",
    "advise",
    "crew",
    "finish",
    "jobs",
    "journal",
    "lock",
    "oversee",
    "packing",
    "space",
    "verify",
}


@pytest.mark.parametrize("path", COMPONENTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_choice_has_a_module_and_the_module_a_test(path):
    group = HOME.get(path.parent.name, path.parent.name)
    assert f"framework.{group}.{path.stem}." in path.read_text()
    assert (PACKAGE / group / f"{path.stem}.py").is_file()
    assert (TESTS / group / f"test_{path.stem}.py").is_file()


@pytest.mark.parametrize("path", sorted(CONF.glob("*/*.yaml")) + sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda p: p.stem)
def test_a_choice_says_what_it_is_in_one_line(path):
    first = next(line for line in path.read_text().splitlines() if not line.startswith("# @package"))
    assert re.match(r"# \S", first)


def test_every_module_has_a_test():
    modules = [path for path in PACKAGE.rglob("*.py") if not path.name.startswith("__") and path.parent.name != "cli"]
    wanted = {TESTS / path.parent.relative_to(PACKAGE) / f"test_{path.name}" for path in modules}
    wanted.remove(TESTS / "test_contracts.py")  # tests/contract/ holds every implementation to it
    assert not [str(path) for path in wanted if not path.is_file()]


def test_every_component_has_a_choice():
    groups = {path.parent.name for path in COMPONENTS}
    modules = {(p.parent.name, p.stem) for p in PACKAGE.glob("*/*.py") if p.stem not in {"__init__", *NO_YAML}}
    named = {(HOME.get(path.parent.name, path.parent.name), path.stem) for path in COMPONENTS}
    assert {(group, name) for group, name in modules if group in groups | {"pack"}} <= named


def test_recipes_are_short():
    assert all(len(path.read_text().splitlines()) <= 25 for path in (ROOT / "recipes").glob("*.yaml"))


def test_every_error_number_is_documented_and_every_documented_one_is_used():
    code = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    letters = {
        "Config": "C",
        "Data": "D",
        "Checkpoint": "K",
        "Resource": "R",
        "Numeric": "N",
        "Distributed": "P",
        "UserCode": "U",
    }
    found = re.findall(rf"\b({'|'.join(letters)})Error\(\s*(\d{{3}})", code)
    used = {f"{letters[kind]}{number}" for kind, number in found} | {"U100"}  # made of the class that is asked for
    assert used == set(re.findall(r"^\| ([A-Z]\d{3}) \|", (PACKAGE.parent / "docs" / "errors.md").read_text(), re.MULTILINE))
