"""What a ``_target_`` accepts, read from its source without importing it: a typo is answered before
torch is even loaded.
"""

import ast
import importlib.util
from functools import cache
from pathlib import Path
from typing import NamedTuple

from framework.system.user_code import raise_if_user_error


class Signature(NamedTuple):
    """Names of the parameters; ``open`` where any keyword is taken."""

    names: tuple[str, ...]
    open: bool


def static_signature(target: str) -> Signature | None:
    """The signature of a class or function named by its dotted path; None where the source does not
    say (nothing is executed).
    """
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        path = _module_path(tuple(parts[:cut]))
        if path is not None:
            return _find(path, parts[cut:]) if len(parts) - cut == 1 else None
    return None


@cache
def _module_path(parts: tuple[str, ...]) -> Path | None:
    """The file of a module.

    Only the top package is looked up by the import system, which does not run it.
    """
    try:
        spec = importlib.util.find_spec(parts[0])
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


def _find(path: Path, names: list[str]) -> Signature | None:
    for node in _tree(path).body:
        if isinstance(node, ast.FunctionDef) and node.name == names[0]:
            return _of_arguments(node.args)
        if isinstance(node, ast.ClassDef) and node.name == names[0]:
            return _of_class(node)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == names[
                    0
                ]:  # re-exported: look where it comes from
                    return static_signature(f"{node.module}.{alias.name}")
    return None


def _of_class(node: ast.ClassDef) -> Signature | None:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            names, is_open = _of_arguments(item.args)
            return Signature(names[1:], is_open)
    decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    if any(isinstance(d, ast.Name) and d.id == "dataclass" for d in decorators):
        return Signature(
            tuple(
                i.target.id
                for i in node.body
                if isinstance(i, ast.AnnAssign) and isinstance(i.target, ast.Name)
            ),
            False,
        )
    return None if node.bases else Signature((), False)


def _of_arguments(arguments: ast.arguments) -> Signature:
    names = tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    return Signature(names, arguments.kwarg is not None)
