"""The page of ``--help``: groups, choices with their first comment, and keys."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from framework.cli.paths import CONF, ROOT
from framework.config.targets import did_you_mean
from framework.errors import printable

# A choice's comment is among these first characters of its file.
FIRST_CHARACTERS = 4096
HEADER = """usage: paceline {command} [group=choice] [key=value] ...

  -m                a sweep: every combination of comma-separated values (key=a,b)
  --help            this page; with group=choice also the keys of that choice
  --cfg job         print the configuration and stop
  --cfg job --resolve     the same with every reference filled in
  --explain KEY     print which file or word sets KEY, or each key below it
  --config-dir DIR  your own folder: DIR/recipes/NAME.yaml, DIR/model/NAME.yaml, ...
"""


def help_text(command: str, config_dir: Path | None, arguments: Sequence[str] = ()) -> str:
    """Return the whole page, with the keys of every choice in ``arguments``."""
    primary = CONF / f"{command}.yaml"
    parts = [HEADER.format(command=command)]
    chosen: list[str] = []
    for group in groups_of(primary):
        files: dict[str, Path] = {}
        for folder in (ROOT, CONF, config_dir):
            if folder is not None:
                files |= {path.stem: path for path in sorted((folder / group).glob("*.yaml"))}
        if not files:
            continue
        width = max(map(len, files))
        lines = [f"  {name:{width}}  {_first_comment(path)}" for name, path in files.items()]
        parts.append("\n".join([group, *lines, ""]))
        chosen += [_choice_keys(group, name, files) for name in _chosen(group, arguments)]
    return "\n".join([*parts, "keys", _keys(primary), *chosen])


def _chosen(group: str, arguments: Sequence[str]) -> list[str]:
    """Return the typed choices of a group, each once: ``sink=[console,jsonl]`` names two."""
    names: list[str] = []
    for word in arguments:
        key, _, value = word.lstrip("+").partition("=")
        if key == group:
            names += [name.strip(" '\"") for name in value.strip("[]").split(",")]
    return [name for name in dict.fromkeys(names) if name not in ("", "null")]


def _choice_keys(group: str, name: str, files: Mapping[str, Path]) -> str:
    """Return a choice's keys with their comments, below the word that chooses it."""
    title = f"\n{group}={printable(name)}"
    if name not in files:
        return f"{title}: no such choice{did_you_mean(name, list(files))}"
    lines = _first_lines(files[name])
    keys = [line for line in lines if line.strip() and not line.startswith(("#", "_target_:"))]
    if not keys:
        return f"{title}: has no keys"
    shown = [printable(line) for line in keys]
    if "# @package _global_" not in lines:  # a recipe stands at the top, a choice below its group
        shown = [f"{group}:", *(f"  {line}" for line in shown)]
    comment = f"{title}: {_first_comment(files[name])}"
    return "\n".join([comment, *(f"  {line}" for line in shown)])


def _first_lines(path: Path) -> list[str]:
    if not path.is_file():  # reading a pipe would wait
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(FIRST_CHARACTERS).splitlines()


def _first_comment(path: Path) -> str:
    comments = (printable(line[1:].strip()) for line in _first_lines(path) if line.startswith("#"))
    return next((text for text in comments if not text.startswith("@package")), "")


def groups_of(primary: Path) -> list[str]:
    """Return the groups of the defaults list, in its order."""
    lines = primary.read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line.startswith("  - ") and ":" in line]
    return [line[4:].split(":")[0].strip() for line in entries if "override" not in line]


def _keys(primary: Path) -> str:
    """Return the lines of the keys as the file has them, with their comments."""
    text = primary.read_text(encoding="utf-8")
    block = text.split("\n# keys\n", 1)[1].split("\nhydra:", 1)[0]
    return "\n".join(f"  {line}" for line in block.splitlines() if line.strip())
