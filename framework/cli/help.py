"""The page that ``--help`` prints.

It lists every group, which is a folder of YAML files, and every choice, which is a file of a group,
with the first comment of the file. Then come the keys of the command.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from framework.config.paths import CONF, ROOT
from framework.errors import did_you_mean, printable

HEADER = """usage: paceline {command} [group=choice] [key=value] ...

  -m                a sweep: every combination of comma-separated values (key=a,b)
  --help            this page; with group=choice also the keys of that choice
  --cfg job         print the configuration and stop
  --cfg job --resolve     print the configuration with every ${{...}} resolved
  --explain KEY     print what sets KEY, or each key below it: a file or a word of the command line
  --config-dir DIR  also offer your own choices: DIR/recipes/NAME.yaml, DIR/model/NAME.yaml, ...
"""


def help_text(command: str, config_dir: Path | None, arguments: Sequence[str] = ()) -> str:
    """Return the page, followed by the keys of every choice that ``arguments`` name."""
    command_file = CONF / f"{command}.yaml"
    parts = [HEADER.format(command=command)]
    keys_of_choices: list[str] = []
    for group, defaults in groups_of(command_file).items():
        files: dict[str, Path] = {}
        for folder in (ROOT, CONF, config_dir):
            if folder is not None:
                paths = sorted(filter(Path.is_file, (folder / group).glob("*.yaml")))
                files |= {path.stem: path for path in paths}
        if not files:
            continue
        width = max(map(len, files))
        lines = [
            f"  {name:{width}}  {_first_comment(_lines(path))}{' (default)' * (name in defaults)}"
            for name, path in files.items()
        ]
        parts.append("\n".join([group, *lines, ""]))
        named: dict[str, None] = {}  # by the words: two for ``sink=[console,jsonl]``
        for word in arguments:
            key, _, value = word.lstrip("+").partition("=")
            if key == group:
                named |= dict.fromkeys(each.strip(" '\"") for each in value.strip("[]").split(","))
        names = [name for name in named if name not in ("", "null")]
        keys_of_choices += [_choice_keys(group, name, files) for name in names]
    # the block between ``# keys`` and ``hydra:``
    text = command_file.read_text(encoding="utf-8").split("\n# keys\n", 1)[1]
    keys = [f"  {line}" for line in text.split("\nhydra:", 1)[0].splitlines() if line.strip()]
    return "\n".join([*parts, "keys", *keys, *keys_of_choices])


def _choice_keys(group: str, name: str, files: Mapping[str, Path]) -> str:
    """Return the keys of a choice with their comments, below a title such as ``optim=adam``."""
    title = f"\n{group}={printable(name)}"
    if name not in files:
        return f"{title}: no such choice{did_you_mean(name, list(files))}"
    lines = _lines(files[name])
    keys = [line for line in lines if line.strip() and not line.startswith(("#", "_target_:"))]
    if not keys:
        return f"{title}: has no keys"
    shown = [printable(line) for line in keys]
    # The keys of a recipe are top-level. The keys of any other choice belong to its group.
    if "# @package _global_" not in lines:
        shown = [f"{group}:", *(f"  {line}" for line in shown)]
    return "\n".join([f"{title}: {_first_comment(lines)}", *(f"  {line}" for line in shown)])


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _first_comment(lines: Sequence[str]) -> str:
    comments = (printable(line[1:].strip()) for line in lines if line.startswith("#"))
    return next((text for text in comments if not text.startswith("@package")), "")


def groups_of(command_file: Path) -> dict[str, list[str]]:
    """Return the groups in the order of the defaults list, each with its default choices."""
    lines = command_file.read_text(encoding="utf-8").splitlines()
    entries = [line[4:] for line in lines if line.startswith("  - ") and ":" in line]
    pairs = [entry.split(":") for entry in entries if "override" not in entry]
    return {group.strip(): re.findall(r"\w+", choices) for group, choices in pairs}
