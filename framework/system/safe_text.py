"""Text from elsewhere that a terminal and a spreadsheet show, and do not obey."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from framework.errors import escaped, printable

# The last four are the wide forms of East Asian keyboards.
FORMULA = "=+-@\t\r\uff1d\uff0b\uff0d\uff20"
QUOTE = "'"


@final
class SafeConsole(Console):
    """A console that shows every text as it is: no markup, and control characters are escaped."""

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


def csv_cell(value: Any) -> Any:
    """Return a cell for ``csv.writer``. A text that a spreadsheet would compute gets a quote.

    Numbers stay numbers, also those that are texts. Control characters are escaped.
    """
    if not isinstance(value, str):
        return value
    if value.lstrip(QUOTE)[:1] in FORMULA and value.strip(QUOTE):
        with suppress(ValueError):
            float(value)
            return value
        value = QUOTE + value
    return escaped(value)
