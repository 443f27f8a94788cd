import io

import pytest
from rich.table import Table
from rich.text import Text

from framework.system.safe_text import SafeConsole, csv_cell

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


CELLS = {"=cmd|' C'!A0": "'=cmd|' C'!A0", "+1+cmd": "'+1+cmd", "-x": "'-x"}
CELLS |= {"@SUM(A1)": "'@SUM(A1)", "\t=1": "'\t=1", "\r=1": "'\\u000d=1"}
CELLS |= {"\uff1d1+1": "'\uff1d1+1", "'=1": "''=1", "\x1b[31mred": "\\u001b[31mred"}
CELLS |= {"\udc9b2J": "\\udc9b2J", "-1.5e-3": "-1.5e-3", "-inf": "-inf", "cat = dog": "cat = dog"}
CELLS |= {"two\nlines": "two\nlines", "": "", -1: -1, -0.5: -0.5}


@pytest.mark.parametrize(("value", "cell"), CELLS.items())
def test_a_cell_is_neither_a_formula_nor_a_command_for_the_terminal(value, cell):
    assert csv_cell(value) == cell
