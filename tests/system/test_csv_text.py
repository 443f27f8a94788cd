import pytest

from framework.system.csv_text import csv_cell

CELLS = {
    "=cmd|' C'!A0": "'=cmd|' C'!A0",
    "+1+cmd": "'+1+cmd",
    "-x": "'-x",
    "@SUM(A1)": "'@SUM(A1)",
    "\t=1": "'\t=1",
    "\r=1": "'\\u000d=1",
    "\uff1d1+1": "'\uff1d1+1",
    "'=1": "''=1",
    "\x1b[31mred": "\\u001b[31mred",
    "\udc9b2J": "\\udc9b2J",
    "-1.5e-3": "-1.5e-3",
    "-inf": "-inf",
    "cat = dog": "cat = dog",
    "two\nlines": "two\nlines",
    "": "",
    -1: -1,
    -0.5: -0.5,
}


@pytest.mark.parametrize(("value", "cell"), CELLS.items())
def test_a_cell_is_neither_a_formula_nor_a_command_for_the_terminal(value, cell):
    assert csv_cell(value) == cell
