"""Messages of packing with the keys under which ``train`` has the options of ``pack``."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, final

from framework.config.signature import static_signature
from framework.config.targets import MARK_KEYS
from framework.errors import PacelineError
from framework.pack.engine.packing import Packing
from framework.pack.images import Preparation

PACK_KEYS = [option.name for kind in (Preparation, Packing) for option in fields(kind)]


@final
class PrepareWords:
    """Replaces ``input.KEY`` by ``prepare.SPLIT.input.KEY``, and ``pack.KEY`` likewise.

    ``KEY=value`` becomes a word that can be typed whether the recipe has the key or not.

    Args:
        split: The split that is packed.
        source: The keys of its input.
    """

    def __init__(self, split: str, source: Mapping[str, Any]) -> None:
        signature = static_signature(str(source.get("_target_")))
        names = {*MARK_KEYS, *map(str, source)}
        if signature is not None:
            names.update(signature.names)
        # Only the names of keys: pack.h5 is a file.
        keys = [f"input.{name}" for name in names] + [f"pack.{name}" for name in PACK_KEYS]
        self._keys = re.compile(rf"(?<![\w./])({'|'.join(map(re.escape, keys))})\b(=?)")
        self._prefix = f"prepare.{split}."

    def __call__(self, text: str) -> str:
        if "paceline pack" in text:  # the text has a whole command
            return text
        text = text.replace("output.path", "dataset").replace("output=", "data=")
        return self._keys.sub(self._of_training, text)

    def _of_training(self, match: re.Match[str]) -> str:
        key, equals = match.groups()
        sign = "++" if equals else ""
        return f"{sign}{self._prefix}{key}{equals}"

    @contextmanager
    def in_errors(self) -> Generator[None]:
        """Replace the keys in an error of the block."""
        try:
            yield
        except PacelineError as error:
            number, *parts = error.args
            error.args = (number, *map(self, parts))
            raise
