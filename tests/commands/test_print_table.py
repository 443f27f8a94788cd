from framework.commands.print_table import print_table


def test_cells_are_text_and_short_rows_are_filled(capsys):
    print_table("[b]title", ["[name]"], ["rate"], [["a [red]", "1"], ["b"]], ["note"])
    out = capsys.readouterr().out
    assert all(text in out for text in ("[b]title", "[name]", "a [red]", "rate", "note"))


def test_a_table_is_wide_without_a_terminal(capsys):
    print_table("title", ["name"], [], [["x" * 100]])
    assert "x" * 100 in capsys.readouterr().out


def test_a_narrow_table_folds_texts_and_cuts_none(capsys):
    print_table("", ["name", "note"], ["rate"], [["n" * 60, "a" * 90, "1" * 60]], ["end"], ["name"])
    out = capsys.readouterr().out
    assert "n" * 60 in out
    assert "1" * 60 in out
    assert (out.count("a"), out.count("…")) == (90 + 2, 0)  # a in name and rate
