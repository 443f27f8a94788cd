"""Limits of a YAML file: small, shallow, no tags, and few values even with its aliases followed."""

from typing import Any, NamedTuple

import yaml
from yaml.reader import ReaderError

from framework.errors import ConfigError

# Hydra reads a file of this size, twice, in less than a second.
MOST_BYTES = 64 << 10
MOST_NODES = 10_000
DEEPEST = 40
TAGS = tuple(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")
)
MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
# libyaml is 20 times as fast, but not every installation has it.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(path: str) -> str:
    """Read a file of at most 64 KiB. ConfigError C114 for a larger one, C115 for other
    encodings.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise too_much(path, f"has more than {MOST_BYTES:,} bytes")
        if data.startswith(MARKS):
            what = "begins with a byte-order mark"
            raise ConfigError(115, path, what, "save it as UTF-8 without one")
        return data.decode()
    except UnicodeDecodeError as error:
        raise _not_text(path, "it is not UTF-8") from error
    except OSError as error:
        raise _not_text(path, error.strerror or str(error)) from error


def count_nodes(path: str, text: str) -> int:
    """Return the number of values in ``text``, aliases followed, without making any of them.

    Raises:
        ConfigError: C114 for too many values or levels, C115 for what is not plain YAML.
    """
    counter = _Counter(path)
    try:
        for event in yaml.parse(text, Loader=LOADER):
            counter.take(event)
    except yaml.YAMLError as error:
        raise unreadable(path, error) from error
    return counter.total


def unreadable(path: str, error: Exception) -> ConfigError:
    """Return the ConfigError C115 for an error of the YAML reader, in one line."""
    where = path
    problem: object = error
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        where = f"{path}, line {error.problem_mark.line + 1}"
        problem = error.problem or error
    elif isinstance(error, ReaderError):
        problem = error.reason
    words = " ".join(str(problem).split())[:200] or type(error).__name__
    return ConfigError(115, where, f"not YAML that can be read ({words})", "correct the file")


def too_much(path: str, what: str) -> ConfigError:
    """Return the ConfigError C114 for a file that nobody writes by hand."""
    fix = "no configuration needs that: keep data in files of their own"
    return ConfigError(114, path, what, fix)


def _not_text(path: str, what: str) -> ConfigError:
    fix = "give a text file that may be read"
    return ConfigError(115, path, f"cannot be read ({what})", fix)


class _Size(NamedTuple):
    """Size of a node with all nodes inside it, aliases followed."""

    nodes: int
    height: int


class _Open(NamedTuple):
    """A list or a block whose end has not come yet."""

    anchor: str | None
    size: _Size


class _Counter:
    """Counts the values of a file from its YAML events."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.total = 0
        self._open: list[_Open] = []
        self._known: dict[str, _Size] = {}

    def take(self, event: Any) -> None:
        has_tag = isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if has_tag and event.tag not in (None, "!", *TAGS):
            raise self._wrong(event, f"a tag, {event.tag}")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._known:
                what = f"*{event.anchor} stands for nothing, or for what it is a part of"
                raise self._wrong(event, what)
            self._add(self._known[event.anchor])
        elif isinstance(event, yaml.ScalarEvent):
            self._close(event.anchor, _Size(1, 1))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open.append(_Open(event.anchor, _Size(1, 1)))
            self._check(_Size(0, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close(*self._open.pop())

    def _close(self, anchor: str | None, size: _Size) -> None:
        if anchor is not None:
            self._known[anchor] = size
        self._add(size)

    def _add(self, size: _Size) -> None:
        """Add a finished node to the node around it."""
        self._check(size)
        if not self._open:
            self.total += size.nodes
            return
        anchor, around = self._open[-1]
        whole = _Size(around.nodes + size.nodes, max(around.height, size.height + 1))
        self._open[-1] = _Open(anchor, whole)

    def _check(self, size: _Size) -> None:
        if sum(part.size.nodes for part in self._open) + size.nodes > MOST_NODES:
            raise too_much(self.path, f"has more than {MOST_NODES:,} values, aliases followed")
        if len(self._open) + size.height > DEEPEST:
            raise too_much(self.path, f"is nested more than {DEEPEST} deep")

    def _wrong(self, event: Any, what: str) -> ConfigError:
        where = f"{self.path}, line {event.start_mark.line + 1}"
        return ConfigError(115, where, what, "write the values out, without it")
