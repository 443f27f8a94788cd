"""A terminal that obeys no text from elsewhere."""

from collections.abc import Iterable
from typing import Any, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from framework.errors import printable


@final
class SafeConsole(Console):
    """A console that shows every text as it is: no markup, and control characters are escaped.

    Names of classes, files and metrics come from somebody's data or run directory.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=printable(segment.text, keep="\n"))
