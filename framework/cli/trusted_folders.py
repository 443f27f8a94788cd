"""The folders whose packages the user trusts, as ``paceline trust`` remembers them.

They are in a file of the user's own configuration directory. An entry is for one folder at one
place: a folder that was moved or copied, or unpacked where a trusted one was, is another one.
"""

import ctypes
import hmac
import json
import os
import re
import secrets
import struct
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from framework.errors import ConfigError
from framework.system import durable, run_dir

# Modules of a folder whose classes no configuration names.
NO_PARTS = re.compile(r"conftest|setup|tests?|test_\w+|\w+_test")
OTHERS = {*sys.stdlib_module_names, "framework", "paceline"}
HERE = -100  # AT_FDCWD of statx(2)
BORN = 0x800  # STATX_BTIME
STATX_BYTES, BORN_AT = 256, 80  # the size of its answer, and the place of the time in it


def trust_file() -> Path:
    """Return the file that remembers. As the XDG standard says, a relative path does not count."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(home):  # it would name a file of whichever folder this is
        home = os.path.expanduser("~/.config")
    return Path(home, "paceline", "trust.json")


def packages_in(folder: str) -> list[str]:
    """Return the names of the packages and modules that a folder, a real path, has, sorted."""
    names = {name.removesuffix(".py") for name in os.listdir(folder)}
    return [name for name in sorted(names) if _comes_from(folder, name)]


def _comes_from(folder: str, name: str) -> bool:
    """Return whether Python takes a module from a folder, if the folder is last on its path.

    It takes the one of an installed package, or its own, before that. To trust such a name would
    allow all that is in them.
    """
    if not name.isidentifier() or NO_PARTS.fullmatch(name) or name in OTHERS:
        return False
    path = Path(folder, name)
    if not path.with_suffix(".py").is_file() and next(path.glob("*.py"), None) is None:
        return False
    elsewhere = [place for place in sys.path if os.path.realpath(place) != folder]
    spec = PathFinder.find_spec(name, elsewhere)
    return spec is None or spec.origin is None


def trusted_here() -> tuple[str, ...]:
    """Return the packages of the present folder that the user trusts, and that are still there."""
    folder = os.path.realpath(".")
    names = run_dir.words(_entry(folder).get("packages"))
    return tuple(name for name in names if _comes_from(folder, name))


def trust(folder: str, packages: list[str]) -> None:
    """Remember a folder, given by its real path, and its packages.

    ConfigError C211 if the file lies in that folder, or cannot be read. ResourceError R101.
    """
    path = trust_file()
    if _is_inside(path, folder):
        what = "lies in the folder that is to be trusted, whose files must not decide that"
        fix = "set XDG_CONFIG_HOME to a directory elsewhere, or go to the folder of the project"
        raise ConfigError(211, str(path), what, fix)
    known: Any = {}
    if path.exists():
        try:
            known = dict(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            what = f"cannot be read ({error})"
            raise ConfigError(211, str(path), what, "remove it, and trust again") from error
    key = _entry(folder).get("key") or secrets.token_hex(32)
    known[folder] = {**_identity(folder), "packages": packages, "key": key}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    durable.write_json(path, known)
    path.chmod(0o600)


def signature(run: str | os.PathLike[str]) -> str:
    """Return what ``run.json`` says if a run was begun in a trusted folder, else "".

    It is for this very directory, and needs the folder's key, which is in the user's file: who
    makes a directory elsewhere can write any ``run.json``, but not this.
    """
    key = _entry(os.path.realpath(".")).get("key")
    if not isinstance(key, str):
        return ""
    text = json.dumps(_identity(run), sort_keys=True)
    return hmac.new(key.encode(), text.encode(), "sha256").hexdigest()


def was_begun_here(run: str | os.PathLike[str]) -> bool:
    """Return whether a run was begun in the present, trusted folder; also if it has not begun.

    No command uses a directory whose ``run.json`` cannot be read.
    """
    facts = run_dir.read_object(Path(run) / run_dir.FACTS)
    if not facts:
        return True
    known = signature(run)
    given = str(facts.get("trust")).encode(errors="replace")
    return known != "" and hmac.compare_digest(known.encode(), given)


def _entry(folder: str) -> dict[str, Any]:
    """Return what is remembered of a folder; {} if it is not trusted, or is another one now."""
    path = trust_file()
    entry: Any = None
    with suppress(OSError, ValueError, AttributeError):
        entry = json.loads(path.read_bytes()).get(folder)
    # who hands over a folder with its own configuration directory must not trust it for the user
    if not isinstance(entry, dict) or _is_inside(path, folder):
        return {}
    is_same = all(entry.get(name) == value for name, value in _identity(folder).items())
    return entry if is_same else {}


def _is_inside(path: Path, folder: str) -> bool:
    return Path(folder) in Path(os.path.realpath(path)).parents


def _identity(folder: str | os.PathLike[str]) -> dict[str, int | None]:
    """Return what no other folder has: its inode, and when it was made.

    The inode of a removed folder may be used again, but the time is the kernel's, in nanoseconds.
    Hosts of a cluster give a shared disk different device numbers, so that the device counts only
    on a file system that keeps no such time.
    """
    facts = os.stat(folder)
    born_ns = _born_ns(folder)
    device = facts.st_dev if born_ns is None else None
    return {"inode": facts.st_ino, "born_ns": born_ns, "device": device}


def _born_ns(folder: str | os.PathLike[str]) -> int | None:
    """Return when a folder was made, by statx(2), which Python's ``os`` lacks; None if unknown."""
    answer = ctypes.create_string_buffer(STATX_BYTES)
    with suppress(AttributeError, OSError):  # another system than Linux
        failed = ctypes.CDLL(None).statx(HERE, os.fsencode(folder), 0, BORN, answer)
        if not failed and struct.unpack_from("I", answer)[0] & BORN:
            seconds, nanoseconds = struct.unpack_from("qI", answer, BORN_AT)
            return seconds * 10**9 + nanoseconds
    return None
