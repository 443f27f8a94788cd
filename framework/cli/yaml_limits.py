"""What a YAML file may be, looked at before anything is made of it: small, shallow, without tags, and not larger inside than outside."""

from typing import Any, NamedTuple

import yaml

from framework.errors import ConfigError

MOST_BYTES = 64 << 10  # Hydra reads a file of this size, twice, in less than a second
MOST_NODES = 10_000
DEEPEST = 40
TAGS = tuple(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")
)
MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
LOADER: Any = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)  # libyaml, where there is one, is 20 times as fast


class _Size(NamedTuple):
    """Of a node with all that is in it, aliases followed."""

    nodes: int
    height: int


def check_yaml(path: str) -> int:
    """How many nodes a file holds, aliases followed; none of them is made. ConfigError C114 for more than there may be, C115 for what is no
    YAML, or not plain YAML.
    """
    counting = _Counting(path)
    try:
        for event in yaml.parse(_text(path), Loader=LOADER):
            counting.take(event)
    except yaml.YAMLError as error:
        raise unreadable(path, error) from error
    return counting.total


def unreadable(path: str, error: Exception) -> ConfigError:
    """What YAML's own reader says, in one line."""
    mark = getattr(error, "problem_mark", None)
    what = (
        getattr(error, "problem", None)
        or getattr(error, "reason", None)
        or str(error)
        or type(error).__name__
    )
    where = path if mark is None else f"{path}, line {mark.line + 1}"
    return ConfigError(
        115,
        where,
        f"not YAML that can be read ({' '.join(str(what).split())[:200]})",
        "correct the file",
    )


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise too_much(path, f"has more than {MOST_BYTES:,} bytes")
        if data.startswith(MARKS):
            raise ConfigError(
                115, path, "begins with a byte-order mark", "save it as UTF-8 without one"
            )
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        what = f"cannot be read ({getattr(error, 'strerror', None) or 'it is not UTF-8'})"
        raise ConfigError(115, path, what, "give a text file that may be read") from error


def too_much(path: str, what: str) -> ConfigError:
    """A file that nobody writes by hand."""
    return ConfigError(
        114, path, what, "no configuration needs that: keep data in files of their own"
    )


class _Counting:
    """Takes a file's events one by one, and counts."""

    def __init__(self, path: str) -> None:
        self.path, self.total = path, 0
        self._open: list[
            tuple[str | None, int, int]
        ] = []  # of those around the present one: anchor, nodes, height
        self._known: dict[str, _Size] = {}

    def take(self, event: Any) -> None:
        """One more event. ConfigError C114, C115."""
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in ("!", *TAGS):
            raise self._wrong(event, f"a tag, {tag}")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._known:
                raise self._wrong(
                    event, f"*{event.anchor} stands for nothing, or for what it is a part of"
                )
            self._add(self._known[event.anchor])
        elif isinstance(event, yaml.ScalarEvent):
            self._close(event.anchor, _Size(1, 1))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, 1, 1))
            self._check(0, 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, nodes, height = self._open.pop()
            self._close(anchor, _Size(nodes, height))

    def _close(self, anchor: str | None, size: _Size) -> None:
        if anchor is not None:
            self._known[anchor] = size
        self._add(size)

    def _add(self, size: _Size) -> None:
        """To what the node is in."""
        self._check(size.nodes, size.height)
        if not self._open:
            self.total += size.nodes
            return
        anchor, nodes, height = self._open[-1]
        self._open[-1] = anchor, nodes + size.nodes, max(height, size.height + 1)

    def _check(self, nodes: int, height: int) -> None:
        if sum(inside for _, inside, _ in self._open) + nodes > MOST_NODES:
            raise too_much(self.path, f"has more than {MOST_NODES:,} values, aliases followed")
        if len(self._open) + height > DEEPEST:
            raise too_much(self.path, f"is nested more than {DEEPEST} deep")

    def _wrong(self, event: Any, what: str) -> ConfigError:
        return ConfigError(
            115,
            f"{self.path}, line {event.start_mark.line + 1}",
            what,
            "write the values out, without it",
        )
