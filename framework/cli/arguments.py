"""The words of a command line."""

import os


def option(arguments: list[str], *names: str) -> str | None:
    """The value of ``--name value`` or ``--name=value``."""
    for number, word in enumerate(arguments):
        for name in names:
            if word == name and number + 1 < len(arguments):
                return arguments[number + 1]
            if word.startswith(f"{name}="):
                return word.split("=", 1)[1]
    return None


def quoted(value: str) -> str:
    """A value as Hydra's override grammar takes it literally."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


TAKES_VALUE = (
    "--cfg",
    "-c",
    "--config-dir",
    "-cd",
    "--package",
    "-p",
    "--config-path",
    "-cp",
    "--config-name",
    "-cn",
    "--info",
    "-i",
)


def plain_words(arguments: list[str]) -> list[str]:
    """Those that are neither options, nor options' values, nor overrides: what a command is about, such as a store's path. The name of a
    file that is there is no override, whatever is in it.
    """
    pairs = zip(["", *arguments], arguments, strict=False)
    return [
        w for before, w in pairs if not w.startswith("-") and before not in TAKES_VALUE and ("=" not in w or os.path.exists(w))
    ]
