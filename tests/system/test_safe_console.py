import io

from rich.table import Table
from rich.text import Text

from framework.system.safe_console import SafeConsole

EVIL = "\x1b]0;title[red]cat[/red]\x9b2J"
SAFE = r"\x1b]0;title[red]cat[/red]\x9b2J"


def shown(*renderables, **options):
    file = io.StringIO()
    SafeConsole(file=file, width=60, **options).print(*renderables)
    return file.getvalue()


def test_names_from_elsewhere_do_not_reach_the_terminal_as_commands():
    assert shown(EVIL) == SAFE + "\n"
    table = Table(EVIL, title=Text(EVIL))
    table.add_row(EVIL)
    assert shown(table).count(r"\x1b]0;title[red]") == 3
    assert "\x1b" not in shown(table)


def test_colors_of_ours_stay():
    assert "\x1b[31mred" in shown(Text("red", style="red"), force_terminal=True)
