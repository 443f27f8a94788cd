"""``--help``: every group and choice with the line that its file begins with, and the keys."""

from pathlib import Path

from framework.cli.paths import CONF, ROOT
from framework.errors import printable

FIRST_CHARACTERS = 4096  # of a choice's file: its comment is among them
HEADER = """usage: paceline {command} [group=choice] [key=value] ...

  -m                a sweep: every combination of comma-separated values (key=a,b)
  --cfg job         print the configuration and stop;  --cfg job --resolve: with every reference filled in
  --explain KEY     print which file or word sets KEY, or each key below it
  --config-dir DIR  your own folder: DIR/recipes/NAME.yaml, DIR/model/NAME.yaml, ...
"""


def help_text(command: str, config_dir: Path | None) -> str:
    """The whole page. Only the groups that the command's primary configuration uses are listed."""
    primary = CONF / f"{command}.yaml"
    parts = [HEADER.format(command=command)]
    for group in groups_of(primary):
        folders = [folder / group for folder in (config_dir, CONF, ROOT) if folder is not None]
        choices = {path.stem: _first_comment(path) for folder in reversed(folders) for path in sorted(folder.glob("*.yaml"))}
        if choices:
            width = max(map(len, choices))
            parts.append(f"{group}\n" + "\n".join(f"  {name:{width}}  {text}" for name, text in choices.items()) + "\n")
    return "\n".join([*parts, "keys", _keys(primary)])


def _first_comment(path: Path) -> str:
    if not path.is_file():  # a pipe would be waited for
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read(FIRST_CHARACTERS).splitlines()
    comments = (printable(line[1:].strip()) for line in lines if line.startswith("#"))
    return next((text for text in comments if not text.startswith("@package")), "")


def groups_of(primary: Path) -> list[str]:
    """The groups of the defaults list, in its order."""
    lines = primary.read_text(encoding="utf-8").splitlines()
    entries = (line.strip().removeprefix("- ") for line in lines if line.startswith("  - "))
    return [entry.split(":")[0].strip() for entry in entries if ":" in entry and "override" not in entry]


def _keys(primary: Path) -> str:
    """The keys as the file has them, comments and all."""
    lines = primary.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line == "# keys") + 1
    stop = next((number for number, line in enumerate(lines) if line.startswith("hydra:")), len(lines))
    return "\n".join(f"  {line}" for line in lines[start:stop] if line.strip())
