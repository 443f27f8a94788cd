"""A bar on a terminal for work that is counted."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from framework.errors import printable
from framework.system.safe_text import SafeConsole


@contextmanager
def counted_bar(words: str, total: int | None = None) -> Generator[Callable[..., None]]:
    """Yield a function that takes ``completed``, ``advance`` or ``total``; drawn on terminals."""
    console = SafeConsole(stderr=True)
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        yield partial(bar.update, bar.add_task(printable(words), total=total))
