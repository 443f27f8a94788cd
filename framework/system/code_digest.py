"""Digests of the user's code and its state, which tell whether it gives the same values again."""

import ast
import hashlib
import os
import pickle
import sys
from collections.abc import Collection, Iterable, Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, final

import numpy as np
import torch

from framework.errors import words_of
from framework.system.user_code import is_users

PROTOCOL = 5  # the pickle protocol


class CodeDigest(NamedTuple):
    """What decides the values that an object of the user's gives.

    Attributes:
        files: The SHA-256 of the user's source files.
        state: The SHA-256 of the object's state; "" if it has none, None if it cannot be pickled.
        fault: Why it cannot be pickled, or "".
    """

    files: str = ""
    state: str | None = ""
    fault: str = ""


def digest_of(thing: Any, packages: Collection[str] = ()) -> CodeDigest:
    """Return the digest of an object or function, and of the user's modules that it comes from.

    Args:
        thing: Anything. Take the digest before its first use, which may change its state.
        packages: Names of packages that are the user's even if they are installed.
    """
    pickler = _DigestPickler()
    try:
        pickler.dump(thing)
    except Exception as error:  # noqa: BLE001  # pickling calls the user's code
        fault = f"{type(error).__name__}: {words_of(error)}"
        return CodeDigest(files_digest(pickler.modules, packages), None, fault)
    files = files_digest(pickler.modules, packages)
    if "__main__" in pickler.modules and _file_of("__main__") is None:
        return CodeDigest(files, None, "its code is in no file")
    return CodeDigest(files, pickler.digest.hexdigest())


def files_digest(modules: Iterable[str], packages: Collection[str] = ()) -> str:
    """Return the SHA-256 of the source files of modules, as ``user_sources`` returns them."""
    digest = hashlib.sha256()
    for name, source in sorted(user_sources(modules, packages).items()):
        digest.update(f"{name} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()


def user_sources(modules: Iterable[str], packages: Collection[str] = ()) -> dict[str, bytes]:
    """Return the user's files of ``modules``, and of all modules that they import, by module name.

    Imports inside functions count. Modules that are imported by a computed name are not seen.
    """
    sources: dict[str, bytes] = {}
    seen: set[str] = set()
    waiting = [name for module in modules for name in _with_parents(module)]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        top = name.partition(".")[0]
        if top not in packages and not is_users(_file_of(top) or ""):
            continue
        file = _file_of(name)
        if file is not None and (top in packages or is_users(file)):
            sources[name] = Path(file).read_bytes()
            is_package = Path(file).stem == "__init__"
            waiting += _imported(sources[name], name if is_package else name.rpartition(".")[0])
    return sources


@final
class _DigestPickler(pickle.Pickler):
    """A pickler that keeps a digest of the pickle, and the names of the modules it refers to."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.modules: set[str] = set()
        super().__init__(self, PROTOCOL)  # it is its own file, see ``write``

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return len(data)

    def persistent_id(self, obj: Any) -> Any:
        """Return what stands for an object whose pickle differs from process to process."""
        if isinstance(obj, type | FunctionType):
            self.modules.add(obj.__module__)
        elif isinstance(obj, set | frozenset):
            return "set", sorted(obj, key=repr)
        elif isinstance(obj, np.memmap) and obj.filename is not None:
            status = os.stat(obj.filename)
            stamp = str(obj.filename), status.st_size, status.st_mtime_ns
            return "memmap", stamp, obj.dtype.str, obj.shape, obj.strides
        elif isinstance(obj, torch.Tensor):
            # The pickle of a tensor holds its address.
            data = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            return "tensor", str(obj.dtype), tuple(obj.shape), data
        return None


def _with_parents(name: str) -> Iterator[str]:
    """Yield a, a.b and a.b.c for ``a.b.c``."""
    return accumulate(name.split("."), "{}.{}".format)


def _file_of(name: str) -> str | None:
    """Return the file of a module, which is not imported; None if it has no file."""
    file: str | None = None
    if name in sys.modules:
        file = vars(sys.modules[name]).get("__file__")
    elif (spec := _spec_of(name)) is not None and spec.has_location:
        file = spec.origin
    return file if file is not None and os.path.isfile(file) else None


def _spec_of(name: str) -> Any:
    """Return how a module would be imported, without importing its parents; None if not found."""
    parent = name.rpartition(".")[0]
    try:
        if not parent:
            return find_spec(name)
        spec = _spec_of(parent)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(name, spec.submodule_search_locations)


def _imported(source: bytes, package: str) -> set[str]:
    """Return the names of all modules that a source file imports, and other names.

    ``package`` is the package from which relative imports start.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # such as a compiled module
        return set()
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = [node.module] if node.module else []
            if node.level and package:
                parts = package.split(".")[: 1 - node.level or None] + parts
            names += [".".join([*parts, alias.name]) for alias in node.names]
    return {part for name in names for part in _with_parents(name)}
