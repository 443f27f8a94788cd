"""Read which arguments a ``_target_`` takes from its source, without importing it.

So a typo is answered before torch is loaded, and nothing is executed.
"""

import ast
import importlib.util
import os
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from framework.system.user_code import raise_if_user_error


class Signature(NamedTuple):
    """The names of the parameters, and whether any other keyword is taken, too (``open``)."""

    names: tuple[str, ...]
    open: bool


def static_signature(target: str) -> Signature | None:
    """Return the signature of a class or function; None if its source does not tell."""
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        path = _module_path(tuple(parts[:cut]), os.getcwd())
        if path is not None:
            return _find(path, parts[-1]) if cut == len(parts) - 1 else None
    return None


def classes_of(module: str) -> frozenset[str]:
    """Return the names of classes in a module's ``__all__``, none if it is not installed."""
    path = _module_path(tuple(module.split(".")), os.getcwd())
    if path is None:
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Assign | ast.AugAssign) and isinstance(node.value, ast.List):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == "__all__":
                names.update(ast.unparse(name).strip("'") for name in node.value.elts)
    return frozenset(name for name in names if name[0].isupper())


@cache
def _module_path(parts: tuple[str, ...], folder: str) -> Path | None:
    """Return the file of a module. The import system looks up only the top package, unrun.

    It looks in ``folder`` last, which is on the path only once the user allows packages there.
    """
    try:
        spec = importlib.util.find_spec(parts[0]) or PathFinder.find_spec(parts[0], [folder])
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    here = Path(spec.origin)
    if len(parts) == 1:
        return here if here.suffix == ".py" else None
    if not spec.submodule_search_locations:
        return None
    base = here.parent.joinpath(*parts[1:])
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


@cache
def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    except SyntaxError as error:
        raise_if_user_error(error)
        raise


def _find(path: Path, name: str) -> Signature | None:
    for node in _tree(path).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return _of_arguments(node.args)
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _of_class(path, node)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:  # look where it is defined
                    return static_signature(f"{node.module}.{alias.name}")
    return None


def _of_class(path: Path, node: ast.ClassDef) -> Signature | None:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            names, is_open = _of_arguments(item.args)
            return Signature(names[1:], is_open)
    decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    if any(isinstance(d, ast.Name) and d.id == "dataclass" for d in decorators):
        fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
        names = tuple(field.id for field in fields if isinstance(field, ast.Name))
        return Signature(names, open=False)
    if not node.bases:
        return Signature((), open=False)
    if len(node.bases) == 1 and isinstance(node.bases[0], ast.Name):
        return _find(path, node.bases[0].id)
    return None


def _of_arguments(arguments: ast.arguments) -> Signature:
    names = tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    return Signature(names, arguments.kwarg is not None)
