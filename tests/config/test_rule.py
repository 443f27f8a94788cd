import pytest

from framework.config.rule import Rule, check_known, check_values
from framework.errors import ConfigError

COUNT = Rule(int, 1)
SHARE = Rule(float | None, 0, below=1)
WHEN = Rule(str, choices=("off", "always"), number=173)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        *((COUNT, 1), (SHARE, 0), (SHARE, 0.5), (SHARE, None), (WHEN, "off"), (Rule(bool), False)),
        *((Rule(list[str]), []), (Rule(list[int] | None), [2, 3]), (Rule(dict), {})),
    ],
)
def test_a_value_of_the_kind_and_in_the_range_fits(rule, value):
    rule.check("key", value)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        *((COUNT, 0), (COUNT, True), (COUNT, 1.0), (COUNT, None), (SHARE, 1), (SHARE, -0.1)),
        *((SHARE, float("nan")), (Rule(float), float("inf")), (Rule(float, above=0), 0)),
        *((Rule(int, 0, 9), 10), (Rule(bool), 1), (Rule(list[str]), [1]), (Rule(list[str]), "a")),
    ],
)
def test_every_other_value_is_refused(rule, value):
    with pytest.raises(ConfigError, match=rf"C101\]: key = .*: must be {rule.words}; correct it"):
        rule.check("key", value)


def test_an_error_has_the_number_of_the_rule_and_the_nearest_choice():
    with pytest.raises(ConfigError, match=r"C173\]: when = alway: .*\(did you mean 'always'\?\)"):
        WHEN.check("when", "alway")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (COUNT, "a whole number of at least 1"),
        (SHARE, "a number of at least 0 and below 1, or null"),
        (Rule(int, 0, 9), "a whole number from 0 to 9"),
        (Rule(float | None, above=0, means="a time"), "a time above 0, or null"),
        (Rule(str | None, choices=("a", "b", "c")), "a, b or c, or null"),
        (Rule(int | str), "a whole number or a text"),
    ],
)
def test_the_words_say_what_a_value_must_be(rule, words):
    assert rule.words == words


@pytest.mark.parametrize(
    ("rule", "text", "value"),
    [
        *((COUNT, "3", 3), (Rule(float), "1e3", 1000.0), (Rule(bool), "True", True)),
        *((Rule(str | None), "", None), (Rule(str | None), "null", None)),
        *((Rule(str | None), "'a b'", "a b"), (WHEN, "off", "off")),
    ],
)
def test_a_word_of_the_command_line_is_read(rule, text, value):
    assert rule.read("key", text) == value


@pytest.mark.parametrize(
    ("rule", "text"),
    [(COUNT, "2.5"), (COUNT, ""), (Rule(float), "nan"), (Rule(float), "soon"), (Rule(bool), "1")],
)
def test_a_word_that_cannot_be_read_is_refused(rule, text):
    with pytest.raises(ConfigError, match=rf"C101\]: key = {text}: must be {rule.words}"):
        rule.read("key", text)


@pytest.mark.parametrize(
    ("rule", "text"), [(COUNT, "32"), (SHARE, "0.5"), (SHARE, "null"), (Rule(bool), "true")]
)
def test_a_value_in_quotes_is_refused_with_advice_to_leave_them_out(rule, text):
    message = str(rule.error("key", text))
    assert f'key = "{text}": must be {rule.words}, and is a text; leave out' in message
    assert message.endswith("""'key="${oc.decode:${oc.env:NAME}}"'""")


@pytest.mark.parametrize(
    "text", ["0", "soon", "9" * 5000, "[" * 100_000], ids=["low", "word", "long", "deep"]
)
def test_a_text_without_a_value_that_fits_is_shown_as_it_is(text):
    assert "is a text" not in str(COUNT.error("key", text))


def test_every_key_of_a_block_must_be_there():
    check_values({"share": None}, {"share": SHARE}, "checkpoint.")
    with pytest.raises(ConfigError, match=r"C101\]: checkpoint\.share = null: was taken away"):
        check_values({}, {"share": SHARE}, "checkpoint.")


def test_a_key_that_nobody_reads_is_answered_with_the_nearest():
    check_known({"keep": 2}, ("keep",))
    with pytest.raises(ConfigError, match=r"C102\]: kepe = 2: no such key \(did you mean 'keep'"):
        check_known({"kepe": 2}, ("keep",))
    with pytest.raises(ConfigError, match=r"C102\]: a.kepe = 2: .*'a.keep'"):
        check_known({"kepe": 2}, ("keep",), "a")
