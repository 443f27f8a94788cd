"""Code that is not ours: errors and digests of the user's, and the packages of extras."""

import ast
import hashlib
import os
import pickle
import sys
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module, metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from types import FunctionType
from typing import Any, NamedTuple, final

from framework import errors
from framework.errors import ConfigError, PacelineError, ResourceError, UserCodeError, words_of

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OURS = os.path.join(_PACKAGE, "")
THIRD_PARTY = ("site-packages", "dist-packages")
GENERATED = "torchinductor_"  # the folders into which torch compiles
LIBRARIES = tuple(
    os.path.join(os.path.abspath(sysconfig.get_path(name)), "")
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
PROTOCOL = 5  # the pickle protocol

Step = Mapping[str, Any]  # one step of another library's pipeline: name and params


class Place(NamedTuple):
    """A line of source code. ``function`` is a qualified name, or "" after a syntax error."""

    file: str
    line: int
    function: str


def user_error(
    error: BaseException,
    packages: Sequence[str] = (),
    about: str = "",
    fix: str = "correct it",
    kind: type[UserCodeError] = UserCodeError,
) -> UserCodeError | ResourceError | None:
    """Return error U100, of the class ``kind``, if the user's code, or what it called, raised one.

    A lack of memory is R104, whoever raised it. ``packages`` are prefixes of module names that are
    the user's even if they are installed, as in ``allow_targets``. ``about`` is what the code was
    working on, such as the name of a record.
    """
    if isinstance(error, PacelineError):
        return None
    if errors.lacks_memory(error):
        return errors.memory_error(error)
    source_and_place = _source_of(error, packages)
    if source_and_place is None:
        return None
    source, place = source_and_place
    what = f"{type(source).__name__}: {words_of(source)}"
    if place.function:
        what = f"in {place.function}: {what}"
    if about:
        what += f" ({about})"
    return kind(100, f"{short_path(place.file)}:{place.line}", what, fix)


def raise_if_user_error(
    error: BaseException, packages: Sequence[str] = (), about: str = "", fix: str = "correct it"
) -> None:
    """Raise what ``user_error`` returns, if anything, from ``error``."""
    if (fault := user_error(error, packages, about, fix)) is not None:
        raise fault from error


def _source_of(error: BaseException, packages: Sequence[str]) -> tuple[BaseException, Place] | None:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, SyntaxError) and os.path.isfile(str(cause.filename)):
            file = str(cause.filename)
            if is_users(file):
                return cause, Place(file, cause.lineno or 1, "")
        for frame, line in reversed(list(traceback.walk_tb(cause.__traceback__))):
            code = frame.f_code
            if _is_ours(code.co_filename):
                break
            name = f"{frame.f_globals.get('__name__')}."
            if name.startswith(tuple(packages)) or not _is_library(code.co_filename):
                return cause, Place(code.co_filename, line, code.co_qualname)
        cause = cause.__cause__
    return None


def nearest_line(frames: Iterable[Place]) -> str:
    """Return the first place outside libraries as ``file:line (function)``, "" for none."""
    places = list(frames)
    own = [place for place in places if _is_ours(place.file) or not _is_library(place.file)]
    if not places:
        return ""
    file, line, function = (own or places)[0]
    short = short_path(file)
    if _is_ours(file):
        short = os.path.relpath(file, os.path.dirname(_PACKAGE))
    return f"{short}:{line} ({function})"


def is_users(file: str) -> bool:
    """Return whether a file is the user's, and not a library's or ours."""
    return not _is_ours(file) and not _is_library(file)


def _is_ours(file: str) -> bool:
    return os.path.abspath(file).startswith(OURS)


def _is_library(file: str) -> bool:
    """Return whether a file belongs to Python or an installed package, or is generated."""
    path = os.path.abspath(file)
    parts = path.split(os.sep)
    is_foreign = any(part in THIRD_PARTY or part.startswith(GENERATED) for part in parts)
    return is_foreign or file.startswith("<") or path.startswith(LIBRARIES)


def short_path(file: str) -> str:
    """Return the relative path of a file below the working directory; else the absolute one."""
    relative = os.path.relpath(file)
    return os.path.abspath(file) if relative.startswith(os.pardir) else relative


class CodeDigest(NamedTuple):
    """What decides the values that an object of the user's gives."""

    files: str = ""  # the SHA-256 of the user's source files
    state: str | None = ""  # that of the object's state, "" without one; None: not to be pickled
    fault: str = ""  # why it cannot be pickled


def digest_of(thing: Any, packages: Collection[str] = ()) -> CodeDigest:
    """Return the digest of an object or function, and of the user's modules that it comes from.

    Take it before the first use, which may change the state. ``packages`` are names of packages
    that are the user's even if they are installed.
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
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        parent = name.rpartition(".")[0]
        waiting.append(parent)
        top = name.partition(".")[0]
        if top not in packages and not is_users(_file_of(top) or ""):
            continue
        file = _file_of(name)
        if file is None or (top not in packages and not is_users(file)):
            continue
        sources[name] = Path(file).read_bytes()
        try:
            tree = ast.parse(sources[name])
        except (SyntaxError, ValueError, RecursionError):  # such as a compiled module
            continue
        # where relative imports start
        package = name if Path(file).stem == "__init__" else parent
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                parts = [node.module] if node.module else []
                if node.level and package:
                    parts = package.split(".")[: 1 - node.level or None] + parts
                # modules, and other names
                waiting += [".".join([*parts, alias.name]) for alias in node.names]
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
        """Return a replacement for an object whose pickle differs from process to process."""
        # Commands start without torch, and load this module.
        import numpy as np  # noqa: PLC0415
        import torch  # noqa: PLC0415

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


def _file_of(name: str) -> str | None:
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


def needed(module: str, extra: str) -> None:
    """Raise ResourceError R112, which names the packages, unless ``module`` can be imported."""
    try:
        import_module(module)
    except ImportError as error:
        what = f"is not installed ({error})"
        raise ResourceError(112, module, what, pip_install(extra)) from error


def pip_install(extra: str) -> str:
    """Return the command that installs the packages of an extra, as the registry knows them."""
    words = ["pip install"]
    for line in metadata.requires("paceline") or []:
        package, _, condition = line.partition(";")
        if f"extra == '{extra}'" in condition.replace('"', "'"):
            words.append(quote(package.strip()))
    return " ".join(words)


def make_step(
    library: str,
    kinds: Mapping[str, Any],
    step: Step,
    where: str,
    keys: Sequence[str] = ("name", "params"),
    **inner: Any,
) -> Any:
    """Return an object of the class in ``kinds``, those of ``library``, that a step names.

    ``where`` is the step's place in the configuration, ``keys`` are what it may have, and ``inner``
    are further arguments of the class. ConfigError C130 for the name, C131 for others.
    """
    if unknown := sorted(step.keys() - set(keys)):
        fix = f"a step has {', '.join(keys)}"
        raise ConfigError(131, f"{where}.{unknown[0]}", "not a key of a step", fix)
    name = str(step.get("name"))
    if name not in kinds:
        fix = f"name a class of {library}"
        if close := get_close_matches(name, kinds, n=1):
            fix = f"did you mean {close[0]}?"
        raise ConfigError(130, f"{where}.name = {name}", f"{library} has no such class", fix)
    try:
        return kinds[name](**(step.get("params") or {}), **inner)
    except (TypeError, ValueError, RuntimeError, AssertionError, UserWarning) as error:
        what = " ".join(str(error).split())[:300]
        raise ConfigError(131, f"{where} = {name}", what, "correct its params") from error
