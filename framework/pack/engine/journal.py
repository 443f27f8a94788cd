"""The journal of a packing: the folder ``OUTPUT.parts`` with a file and a note per finished job.

The same command resumes from it.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from framework.errors import ResourceError
from framework.system.durable import temporary_name, write_bytes, write_text

CRC = np.dtype("<u4")


class BadItem(NamedTuple):
    """An item that was left out, and why."""

    item: int
    name: str
    error: str
    reason: str


@dataclass(frozen=True)
class JobResult:
    """The outcome of a finished job. A job without records has no file."""

    number: int
    num_records: int
    num_bytes: int  # of the records
    size_bytes: int  # of the file
    sha256: str  # of the file
    stamp: str  # a hash over the names, sizes and times of the job's items
    class_counts: list[int]
    digest: str  # the SHA-256 over the CRC32s of the records
    first_key: int | None  # of records whose keys are consecutive numbers
    bad: list[BadItem]


@final
class Journal:
    """The folder of finished jobs of the output ``path``. Picklable."""

    def __init__(self, path: str, suffix: str) -> None:
        self.folder = Path(f"{path}.parts")
        self.files = self.folder / "files"
        self.suffix = suffix

    def file(self, number: int) -> Path:
        """Return the path of the records of job ``number``."""
        return self.files / f"{number:06d}{self.suffix}"

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Write down ``facts``, which decide the bytes of every job."""
        write_text(self.folder / "job.json", json.dumps(facts))

    def begun(self) -> dict[str, Any] | None:
        """Return the facts of ``begin``: None if there are none, {} if they cannot be read."""
        try:
            return json.loads((self.folder / "job.json").read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return {}

    def foreign(self) -> ResourceError:
        """Return the error for a journal of another command, which may still be running."""
        what = "was begun by another command (other items, options, output or code)"
        fix = "finish that one, or remove the folder when nobody needs it"
        return ResourceError(154, str(self.folder), what, fix)

    def note(self, result: JobResult, crcs: np.ndarray) -> None:
        """Write down a finished job, whose file is on the disk already.

        ``crcs`` are the checksums of its records: uint32 [num_records].
        """
        # ASCII, since names may hold any bytes
        line = json.dumps(asdict(result)).encode("ascii") + b"\n"
        write_bytes(self._note(result.number), line + crcs.astype(CRC).tobytes())

    def noted(self, number: int) -> JobResult | None:
        """Return what ``note`` wrote down for a job, even if its file has been moved since."""
        try:
            with open(self._note(number), "rb") as file:
                note: dict[str, Any] = json.loads(file.readline())
            bad: Any = [BadItem(*words) for words in note.pop("bad")]
            return JobResult(**note, bad=bad)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def crcs(self, number: int) -> np.ndarray:
        """Return the checksums of a job's records: uint32 [num_records]."""
        with open(self._note(number), "rb") as file:
            file.readline()
            return np.frombuffer(file.read(), CRC)

    def done(self, number: int) -> JobResult | None:
        """Return the result of a job whose file is there in the noted size."""
        result = self.noted(number)
        if result is None or result.num_records == 0:
            return result
        file = self.file(number)
        if not file.is_file() or os.path.getsize(file) != result.size_bytes:
            return None
        return result

    def forget(self, number: int) -> None:
        """Remove a job's note, so that the job is done again."""
        self._note(number).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder. It is renamed first, so that a half removed one is never resumed."""
        if self.folder.exists():
            doomed = temporary_name(self.folder)
            os.rename(self.folder, doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def _note(self, number: int) -> Path:
        return self.folder / f"{number:06d}.job"
