"""The one way a file is published: temporary name, flush, fsync, replace, fsync of the directory.

A reader sees the old file or the new one, never a part; after a crash or a full disk the old one is intact.
"""

import json
import os
import secrets
import socket
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from framework.errors import ResourceError


def temporary_name(path: Path) -> Path:
    """A name beside ``path`` that no other process of any host takes."""
    return path.with_name(f"{path.name}.tmp.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}")


@contextmanager
def publish(path: Path) -> Generator[Path, None, None]:
    """Yield a temporary name to write to; on a clean exit it becomes ``path``, on an error it is removed.

    For writers that open the file themselves (h5py, lmdb, torch). Raises ResourceError R101 where the disk says no.
    """
    temporary = temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        if not error.errno or isinstance(error, FileNotFoundError):  # not the disk's: a library's own OSError
            raise
        raise ResourceError(101, str(path), f"cannot write: {error.strerror}", "free space or choose another place") from error
    finally:
        with suppress(FileNotFoundError, NotADirectoryError):
            temporary.unlink()


def abandon(publishing: AbstractContextManager[Path]) -> None:
    """End a ``publish`` that was entered by hand without publishing: the temporary file is removed."""
    stop = GeneratorExit()
    publishing.__exit__(type(stop), stop, None)


@contextmanager
def open_durable(path: Path) -> Generator[IO[bytes], None, None]:
    """Open ``path`` for writing bytes; what is written is published when the block ends without an error."""
    with publish(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            yield file


def write_text(path: Path, text: str) -> None:
    """Publish ``text`` as UTF-8."""
    with open_durable(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Publish ``value`` as indented JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sync(path: Path) -> None:
    """Have the disk hold ``path``: a file's content, a directory's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
