"""The words of a command line."""


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
