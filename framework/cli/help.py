"""``--help``: every group and choice with the line that its file begins with, the keys, and those of the choices that were typed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from framework.cli.paths import CONF, ROOT
from framework.config.targets import did_you_mean
from framework.errors import printable

FIRST_CHARACTERS = 4096  # of a choice's file: its comment is among them
HEADER = """usage: paceline {command} [group=choice] [key=value] ...

  -m                a sweep: every combination of comma-separated values (key=a,b)
  --help            this page; with group=choice also the keys of that choice
  --cfg job         print the configuration and stop;  --cfg job --resolve: with every reference filled in
  --explain KEY     print which file or word sets KEY, or each key below it
  --config-dir DIR  your own folder: DIR/recipes/NAME.yaml, DIR/model/NAME.yaml, ...
"""


def help_text(command: str, config_dir: Path | None, arguments: Sequence[str] = ()) -> str:
    """Return the whole page: groups and choices of the command, its keys, and the keys of every choice in ``arguments``."""
    primary = CONF / f"{command}.yaml"
    parts, chosen = [HEADER.format(command=command)], list[str]()
    for group in groups_of(primary):
        folders = [folder / group for folder in (config_dir, CONF, ROOT) if folder is not None]
        files = {
            path.stem: path
            for folder in reversed(folders)
            for path in sorted(folder.glob("*.yaml"))
        }
        if not files:
            continue
        width = max(map(len, files))
        parts.append(
            f"{group}\n"
            + "\n".join(f"  {name:{width}}  {_first_comment(path)}" for name, path in files.items())
            + "\n"
        )
        chosen += [_choice_keys(group, name, files) for name in _chosen(group, arguments)]
    return "\n".join([*parts, "keys", _keys(primary), *chosen])


def _chosen(group: str, arguments: Sequence[str]) -> list[str]:
    """Return the choices of a group that were typed: ``sink=[console,jsonl]`` are two, and so are those of a sweep."""
    values = [
        word.lstrip("+").removeprefix(f"{group}=")
        for word in arguments
        if word.lstrip("+").startswith(f"{group}=")
    ]
    names = [name.strip(" '\"") for value in values for name in value.strip("[]").split(",")]
    return [name for name in dict.fromkeys(names) if name not in ("", "null")]


def _choice_keys(group: str, name: str, files: Mapping[str, Path]) -> str:
    """Return the keys of a choice as its file has them, with their comments, below the word that chooses it."""
    title = f"\n{group}={printable(name)}"
    if name not in files:
        return f"{title}: no such choice{did_you_mean(name, list(files))}"
    # a recipe is a piece of the whole configuration; other choices are a block under their group's name
    is_block = "# @package _global_" not in (lines := _first_lines(files[name]))
    keys = [line for line in lines if line.strip() and not line.startswith(("#", "_target_:"))]
    if not keys:
        return f"{title}: has no keys"
    shown = [
        f"{group}:" if is_block else "",
        *(f"  {printable(line)}" if is_block else printable(line) for line in keys),
    ]
    return "\n".join(
        [f"{title}: {_first_comment(files[name])}", *(f"  {line}" for line in shown if line)]
    )


def _first_lines(path: Path) -> list[str]:
    if not path.is_file():  # a pipe would be waited for
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(FIRST_CHARACTERS).splitlines()


def _first_comment(path: Path) -> str:
    comments = (printable(line[1:].strip()) for line in _first_lines(path) if line.startswith("#"))
    return next((text for text in comments if not text.startswith("@package")), "")


def groups_of(primary: Path) -> list[str]:
    """The groups of the defaults list, in its order."""
    lines = primary.read_text(encoding="utf-8").splitlines()
    entries = (line.strip().removeprefix("- ") for line in lines if line.startswith("  - "))
    return [
        entry.split(":")[0].strip() for entry in entries if ":" in entry and "override" not in entry
    ]


def _keys(primary: Path) -> str:
    """The keys as the file has them, comments and all."""
    lines = primary.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line == "# keys") + 1
    stop = next(
        (number for number, line in enumerate(lines) if line.startswith("hydra:")), len(lines)
    )
    return "\n".join(f"  {line}" for line in lines[start:stop] if line.strip())
