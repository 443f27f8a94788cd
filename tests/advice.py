"""Try what errors advise: each command that the tests refuse runs again with the advised words.

``tests/test_advice.py`` asks for it by the environment variable ``PACELINE_TRY_ADVICE``, the file
in which the results are collected.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ASKED = "PACELINE_TRY_ADVICE"
LINE = re.compile(r"error\[(\w+)\]: (.*?): (.*?); (.*)")
# A word such as data=hdf5. What stands between <> or in capitals is the user's to fill in.
WORD = re.compile(r"(?<![\w./<{-])([+~]{0,2}[a-z][\w/]*(?:\.\w+)*)=(\{.*?\}|\[.*?\]|[^\s,;)'\"]+)")
FILLED_IN = re.compile(r"[A-Z]{3,}|\.\.\.|<|^[A-Z]$")
OF_PACK = re.compile(r"(pack|input|output|dataset)\b")
REFUSALS = ("C100", "C102", "C104", "C106")  # of a word that is no key or no choice


class Tried(NamedTuple):
    """An advice that was followed: the error, the command, and how that ended."""

    number: str
    place: str
    advice: str
    words: list[str]
    after: str

    @property
    def failed(self) -> bool:
        """Whether the same error came again, or the advised word itself was refused."""
        line = LINE.match(self.after)
        if line is None:
            return False
        same = (line[1], line[2]) == (self.number, self.place)
        return same or line[1] in REFUSALS


def try_advice(words: tuple[str, ...], line: str, again: Callable[[list[str]], str]) -> None:
    """Run a refused command with each alternative that the line of its error names.

    ``again`` runs a command, and returns the line of its error, or "".
    """
    error = LINE.match(line)
    if error is None or ASKED not in os.environ:
        return
    path = Path(os.environ.pop(ASKED))  # not for what is tried
    try:
        for advised in _alternatives(error[4], words[0]):
            keys = {_key(word) for word in advised}
            if "new run" in error[4]:
                keys |= {"resume", "hydra.run.dir"}
            kept = [word for word in words if _key(word) not in keys]
            after = again([*kept, *advised])
            tried = Tried(error[1], error[2], error[4], [*kept, *advised], after)
            with open(path, "a") as file:
                file.write(json.dumps(tried) + "\n")
    finally:
        os.environ[ASKED] = str(path)


def _alternatives(advice: str, command: str) -> Iterator[list[str]]:
    """Yield the words of each way out that an advice for ``command`` names."""
    for part in re.split(r"\bor\b|'paceline .*?'", advice):
        pairs = WORD.findall(part)
        if not pairs or any(key == "key" or FILLED_IN.search(value) for key, value in pairs):
            continue
        words = [f"{key}={value.rstrip('.:')}" for key, value in pairs]
        if command != "pack" and any(OF_PACK.match(word.lstrip("+~")) for word in words):
            continue  # how the data should have been packed
        yield words


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~") if "=" in word else word


class Copy:
    """A copy of a folder, in which a command changes nothing of the test's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._temporary = tempfile.TemporaryDirectory(prefix="paceline-advice-")
        self.path = Path(self._temporary.name) / "copy"
        shutil.copytree(folder, self.path, symlinks=True, ignore_dangling_symlinks=True)

    def words(self, words: list[str]) -> list[str]:
        """Return words whose paths lie in the copy."""
        return [word.replace(str(self.folder), str(self.path)) for word in words]

    def remove(self) -> None:
        self._temporary.cleanup()
