"""Show on a terminal how far a replay is."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def replay_bar() -> Generator[Callable[[int, int], None]]:
    """Yield a function that takes the present step and the last. It draws on a terminal only."""
    console = Console(stderr=True, highlight=False)
    bar = Progress(
        TextColumn("replaying step"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=None)
        yield lambda step, last: bar.update(task, completed=step, total=last)
