"""Try what errors advise, if ``tests/test_advice.py`` asks: run refused commands as advised."""

import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ASKED = "PACELINE_TRY_ADVICE"
LINE = re.compile(r"error\[(\w+)\]: (.*?): (.*?); (.*)")
# A word such as data=hdf5. Capitals, dots and <> stand for what the user fills in.
WORD = re.compile(r"(?<![\w./<{-])([+~]{0,2}[a-z][\w/]*(?:\.\w+)*)=(\{.*?\}|\[.*?\]|[^\s,;)'\"]+)")
QUOTED = re.compile(r"'([+~]{0,2}[a-z][\w./]*=[^']*)'")
LEFT_OUT = re.compile(r"leave out ([a-z][\w.]*)=[^\s,;]+")
FILLED_IN = re.compile(r"[A-Z]{3,}|\.\.\.|<|^[A-Z]$|\bheight\b")
COMMAND = re.compile(r"['`]paceline ([a-z].*?)['`]")
OF_PACK = re.compile(r"(pack|input|output|dataset)\b")
REFUSALS = ("C100", "C102", "C104", "C106")  # of a word that is no key or no choice
ALONE = ("resume", "hydra.run.dir")  # of a run, which a new one must not continue or meet


class Tried(NamedTuple):
    """An advice that was followed: the error, the command, and how that ended."""

    number: str
    place: str
    advice: str
    words: list[str]
    after: str

    @property
    def failed(self) -> bool:
        """Whether the same error came again, or a word was refused."""
        line = LINE.match(self.after)
        if line is None:
            return bool(self.after)
        # an error of the user's code shall come again, to be seen better
        same = (line[1], line[2]) == (self.number, self.place) and not line[1].startswith("U")
        return same or line[1] in REFUSALS


def try_advice(words: tuple[str, ...], line: str, again: Callable[[list[str]], str]) -> None:
    """Run a refused command as its error names; ``again`` returns the line of an error, or ""."""
    error = LINE.match(line)
    if error is None or ASKED not in os.environ:
        return
    path = Path(os.environ.pop(ASKED))  # not for what is tried
    try:
        kept = list(words)
        if error[4].startswith("write "):  # instead of the refused word
            refused = {error[2].split(" = ")[0], *error[2].split()}
            kept = [word for word in kept if not {word, _key(word)} & refused]
        for command in _ways(kept, error[4]):
            tried = Tried(error[1], error[2], error[4], command, again(command))
            with open(path, "a") as file:
                file.write(json.dumps(tried) + "\n")
    finally:
        os.environ[ASKED] = str(path)


def _ways(words: list[str], advice: str) -> Iterator[list[str]]:
    """Yield each command that an advice names for a refused one."""
    for command in COMMAND.findall(advice):
        if not FILLED_IN.search(command) and command != "pack":
            yield shlex.split(command)
    for key in LEFT_OUT.findall(advice):
        yield [word for word in words if _key(word) != key]
    for part in re.split(r"\bor\b|'paceline .*?'", LEFT_OUT.sub("", advice)):
        pairs = [pair for quoted in QUOTED.findall(part) for pair in [quoted.split("=", 1)]]
        pairs += WORD.findall(QUOTED.sub("", part))
        if not pairs or any(key == "key" or FILLED_IN.search(value) for key, value in pairs):
            continue
        if words[0] != "pack" and any(OF_PACK.match(key.lstrip("+~")) for key, _ in pairs):
            continue  # how the data should have been packed
        advised = {key: f"{key}={value.rstrip('.:')}" for key, value in pairs}
        resumes = any(_key(word) == "resume" for word in words)
        dropped = () if resumes and "new run" not in advice else ALONE
        yield _replaced([word for word in words if _key(word) not in dropped], advised)


def _replaced(words: list[str], advised: dict[str, str]) -> list[str]:
    """Return words with the advised ones in their place. Another choice drops the keys of one."""
    kept: list[str] = []
    left = dict(advised)
    for word in words:
        key = _key(word)
        group = key.partition(".")[0]
        if key in left:  # as it was typed: with a +, say
            kept.append(word[: word.index(key)] + left.pop(key))
        elif key not in advised and (group not in advised or group == "data"):
            kept.append(word)
    return [*kept, *left.values()]


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
