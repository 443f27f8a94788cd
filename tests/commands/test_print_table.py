from framework.commands.print_table import print_table


def test_cells_are_text_and_short_rows_are_filled(capsys):
    print_table("[b]title", ["[name]"], ["rate"], [["a [red]", "1"], ["b"]], ["note"])
    out = capsys.readouterr().out
    assert all(text in out for text in ("[b]title", "[name]", "a [red]", "rate", "note"))


def test_a_table_is_wide_without_a_terminal(capsys):
    print_table("title", ["name"], [], [["x" * 100]])
    assert "x" * 100 in capsys.readouterr().out
