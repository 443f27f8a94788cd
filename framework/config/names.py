"""The names that a configuration may call, each in its place, decided before anything is imported.

A name is a choice of ``conf/``, a class in the ``__all__`` of a package of torch or torchmetrics, a
model of another library (``foreign_models``), or anything in a package that the user allowed.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from framework.config.foreign_models import is_foreign
from framework.config.paths import CONF, ROOT
from framework.config.signature import classes_of
from framework.errors import ConfigError, did_you_mean

LAYERS = {"torch.nn": "torch.nn.modules"}
METRICS = ("classification", "detection", "regression", "segmentation")
# Packages whose classes a place takes, by the module that lists them.
LISTED: dict[str, Mapping[str, str]] = {
    "layers": LAYERS,
    "model": LAYERS,
    "optim": {"torch.optim": "torch.optim"},
    "schedule": {"torch.optim.lr_scheduler": "torch.optim.lr_scheduler"},
    "metrics": {f"torchmetrics.{name}": f"torchmetrics.{name}" for name in METRICS},
}
OWN_LAYERS = ("framework.model.airbench.Whitening",)  # which docs/model.md recommends
TARGET = re.compile(r"^[^#\n]*\b_target_: *([\w.]+)", re.MULTILINE)
EXAMPLE = re.compile(r"\bpaceline_examples\.\w+\.\w+")
BY_NAME = ("metrics", "sink", "watchers")  # places of several blocks by name
# Parts of ``data`` that are places of another kind. Objects of the user's have no list.
IN_DATA = {"source": "data", "writer": "output", "val_transform": "transform"}


def check_name(where: str, target: Any, allowed: Sequence[str]) -> None:
    """Check that the block at ``where`` may call ``target``, a dotted name. ConfigError C105.

    ``allowed`` are the prefixes of the user's packages.
    """
    place, inside = _place(where)
    lists = [place]
    if inside:
        lists.append("model" if place == "objective" else "layers")  # a teacher is a model
    known = frozenset[str]().union(*map(_names, lists))
    if isinstance(target, str):
        module = LISTED.get(place, {}).get(target.rpartition(".")[0])
        if module is not None and not classes_of(module):
            return  # it is not installed, which importing it will say
        is_model = is_foreign(target) and "model" in lists
        if is_model or target in known or target.startswith(tuple(allowed)):
            return
    package = str(target).partition(".")[0]
    if not package.isidentifier():
        package = "its package"
    hint = did_you_mean(str(target), sorted(known), cutoff=0.85)
    what = f"not on the list of what {place} may call{hint}"
    fix = f"if you trust it, add 'allow_targets=[{package}]' on the command line"
    raise ConfigError(105, f"{where}._target_ = {target}", what, fix)


def _place(where: str) -> tuple[str, bool]:
    """Return the kind of the block at a dotted key, and whether it lies inside such a block."""
    parts = where.split(".")
    if parts[0] == "prepare" and "input" in parts:
        parts = parts[parts.index("input") :]
    if parts[0] == "data" and len(parts) > 1:
        parts = [IN_DATA.get(parts[1], "data.train"), *parts[2:]]
    return parts[0], len(parts) > (2 if parts[0] in BY_NAME else 1)


@cache
def _names(place: str) -> frozenset[str]:
    """Return what a kind of block may call, of ours and of installed libraries."""
    texts = [path.read_text(encoding="utf-8") for path in (CONF / place).glob("*.yaml")]
    names = {name for text in texts for name in TARGET.findall(text)}
    if place != "output":
        names -= _names("output")  # writers, of data that is packed on the way
    if place == "input":  # functions that make the records of our recipes
        recipes = [path.read_text(encoding="utf-8") for path in (ROOT / "recipes").glob("*.yaml")]
        names.update(EXAMPLE.findall("\n".join(recipes)))
    for package, module in LISTED.get(place, {}).items():
        names.update(f"{package}.{name}" for name in classes_of(module))
        if place == "metrics":  # most have their name in the package, too
            names.update(f"torchmetrics.{name}" for name in classes_of(module))
        if module == LAYERS["torch.nn"]:
            names.update(OWN_LAYERS)
    return frozenset(names)
