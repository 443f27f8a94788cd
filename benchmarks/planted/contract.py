"""What a planted set-up is."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

MakeWords = Callable[[Path], list[str]]
# Yields words to put before a command, which then runs under limits or beside other programs.
Around = Callable[[Path], AbstractContextManager[list[str]]]


def anywhere() -> str:
    return ""


def needs_gpu() -> str:
    return "" if torch.cuda.is_available() else "needs a GPU"


def unlimited(folder: Path) -> AbstractContextManager[list[str]]:
    return nullcontext([])


@dataclass(frozen=True)
class Remedy:
    """The set-up after a user has followed advice that no override can follow.

    Attributes:
        words: Makes the data, and returns the words of the command.
        environment: Variables that take the place of those of the set-up.
        around: Takes the place of the limits of the set-up; None: they hold.
    """

    words: MakeWords
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    around: Around | None = None


@dataclass(frozen=True)
class Planted:
    """A deliberately slow set-up whose cause is known.

    Attributes:
        name: A word for ``--only``.
        cause: The rule that must name it.
        about: What was planted, in words.
        words: Makes the data in a folder, and returns the words of ``paceline diagnose``.
        remedy: Measured in place of ``apply=true``, for advice without an override.
        environment: Variables of the command.
        around: The limits of the command, and what runs beside it.
        obstacle: Returns why it cannot run on this machine; "" if it can.
    """

    name: str
    cause: str
    about: str
    words: MakeWords
    remedy: Remedy | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    around: Around = unlimited
    obstacle: Callable[[], str] = anywhere
