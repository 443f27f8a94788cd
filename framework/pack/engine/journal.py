"""What is done: the folder ``OUTPUT.parts`` with a file and a note for every finished job. The same command goes on from it."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from framework.errors import ResourceError
from framework.system.durable import temporary_name, write_text


class Bad(NamedTuple):
    """An item that was left out."""

    item: int
    name: str
    error: str
    reason: str


@dataclass(frozen=True)
class Done:
    """What a finished job gave. ``stamp``: of its items' names, sizes and times; ``crcs``: a CRC32 per record, 8 hexadecimal digits each.

    ``num_bytes``: of the records; ``size_bytes`` and ``sha256``: of the file, which is not there where there are no records.
    """

    number: int
    num_records: int
    num_bytes: int
    size_bytes: int
    sha256: str
    stamp: str
    class_counts: list[int]
    crcs: str
    bad: list[Bad]


@final
class Journal:
    """The folder of finished jobs. Picklable. ``suffix``: of the jobs' files."""

    def __init__(self, path: str, suffix: str) -> None:
        self.folder = Path(f"{path}.parts")
        self.files = self.folder / "files"
        self.suffix = suffix

    def file(self, number: int) -> Path:
        """Where job ``number``'s records are."""
        return self.files / f"{number:06d}{self.suffix}"

    def begun(self) -> dict[str, Any] | None:
        """What ``begin`` noted; None where nothing was begun, {} where that cannot be read."""
        try:
            return json.loads((self.folder / "job.json").read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return {}

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Note whose it is; ``facts`` are what decides the bytes of every job."""
        write_text(self.folder / "job.json", json.dumps(facts))

    def foreign(self) -> ResourceError:
        """It was begun by another command, which may be at work."""
        what = "was begun by another command (other items, options or output)"
        return ResourceError(
            154,
            str(self.folder),
            what,
            "finish that one, or remove the folder when nobody needs it",
        )

    def noted(self, number: int) -> Done | None:
        """What job ``number`` gave, if it was finished at some time."""
        try:
            found: dict[str, Any] = json.loads(self._note(number).read_bytes())
            bad: Any = [Bad(*words) for words in found.pop("bad")]
            return Done(**found, bad=bad)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def done(self, number: int) -> Done | None:
        """The same, if its file is there too, in the noted size."""
        done, file = self.noted(number), self.file(number)
        if done is None or done.num_records == 0:
            return done
        return done if file.is_file() and os.path.getsize(file) == done.size_bytes else None

    def note(self, done: Done) -> None:
        """Job ``done`` is finished: its file is on the disk already."""
        write_text(
            self._note(done.number), json.dumps(asdict(done))
        )  # as ASCII: names may hold any bytes

    def forget(self, number: int) -> None:
        """Have job ``number`` done again."""
        self._note(number).unlink(missing_ok=True)

    def _note(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"

    def remove(self) -> None:
        """Everything, by one rename first: what is half removed must not look half done."""
        if self.folder.exists():
            doomed = temporary_name(self.folder)
            os.rename(self.folder, doomed)
            shutil.rmtree(doomed, ignore_errors=True)
