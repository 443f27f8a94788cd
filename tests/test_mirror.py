"""``conf/<group>/<name>.yaml`` and ``framework/<group>/<name>.py`` mirror each other."""

import re
from pathlib import Path

import pytest
import yaml

import framework
from framework.config.targets import CONF, ROOT

PACKAGE = Path(framework.__file__).parent
TESTS = Path(__file__).parent
CHOICES = sorted(CONF.glob("*/*.yaml"))
RECIPES = sorted([*(ROOT / "recipes").glob("*.yaml"), *(ROOT / "examples").glob("*/*.yaml")])


def targets(node):
    """Yield every ``_target_`` in a YAML tree."""
    if isinstance(node, dict):
        if node.get("_target_", "???") != "???":  # Hydra's mark for what the user must give
            yield node["_target_"]
        node = list(node.values())
    if isinstance(node, list):
        for value in node:
            yield from targets(value)


def module_of(target):
    """Return the file of a ``_target_`` of ours; None for a class of another library."""
    parts = target.split(".")[:-1]
    if parts[0] == "framework":
        return PACKAGE.joinpath(*parts[1:]).with_suffix(".py")
    return None


@pytest.mark.parametrize("path", CHOICES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_choice_has_a_module_of_its_name_or_says_which(path):
    named = [module_of(target) for target in targets(yaml.safe_load(path.read_text()))]
    modules = [module for module in named if module is not None]
    assert all(module.is_file() for module in modules)
    assert not modules or any(path.stem in module.stem for module in modules)


@pytest.mark.parametrize("path", CHOICES + RECIPES, ids=lambda path: path.stem)
def test_a_choice_says_what_it_is_in_one_line(path):
    lines = path.read_text().splitlines()
    first = next(line for line in lines if not line.startswith("# @package"))
    assert re.match(r"# \S", first)


def test_no_two_modules_share_a_stem_except_the_choices_of_groups():
    stems: dict[str, list[Path]] = {}
    for path in PACKAGE.rglob("[!_]*.py"):
        stems.setdefault(path.stem, []).append(path)
    choices = {(path.parent.name, path.stem) for path in CHOICES}
    for stem, paths in stems.items():
        others = [path for path in paths if (path.parent.name, stem) not in choices]
        assert len(paths) == 1 or not others, paths


def test_no_class_name_occurs_twice():
    text = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    names = re.findall(r"^class ([A-Z]\w*)", text, re.MULTILINE)
    assert sorted(names) == sorted(set(names))


def test_recipes_are_short():
    assert all(len(path.read_text().splitlines()) <= 25 for path in RECIPES)
