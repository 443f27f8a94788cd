"""Mark the time in which a rank exchanges something with the others, and so waits for the last."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, final

import torch

from framework.contracts.span import EXCHANGE, OWN
from framework.parallel.launch.hang import WAITS, WORKS


def _ignore(name: str) -> None:
    """Measure nothing, because nobody asked for it."""


@final
class Exchange:
    """A context around an exchange. Marking takes 0.4 us.

    Args:
        state: Its first byte says whether this rank waits for the others.
    """

    def __init__(self, state: Any = None) -> None:
        self._state = bytearray(1) if state is None else state
        self.mark: Callable[[str], None] = _ignore
        self._is_open = False

    def begin(self) -> None:
        if not torch.compiler.is_compiling():  # what is compiled cannot look at the time
            self._is_open = True
            self.mark(OWN)
            self._state[0] = WAITS

    def end(self) -> None:
        """End the exchange, if one has begun."""
        if self._is_open and not torch.compiler.is_compiling():
            self._is_open = False
            self._state[0] = WORKS
            self.mark(EXCHANGE)

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Note that this rank waits for the others outside a step, where nothing is timed."""
        self._state[0] = WAITS
        yield
        self._state[0] = WORKS  # not after an error, when the rank still is about to give up

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *error: object) -> None:
        self.end()

    def __deepcopy__(self, memo: Any) -> "Exchange":
        """Return this object, since a copied model still belongs to the same rank."""
        return self


@final
class ExchangeEnds:
    """A context in which an exchange may begin, and at whose end it has ended."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._exchange.end()
