from framework.system.json_values import LONGEST, shown


def test_what_is_shown_is_one_line_of_letters_and_not_endless():
    assert shown("a\n\tb\x1b[31m\x00\udcff") == "a b\\x1b[31m\\x00\\udcff"
    assert shown({"a": [1]}) == '{"a": [1]}'
    assert len(shown("x" * 10_000)) == LONGEST
