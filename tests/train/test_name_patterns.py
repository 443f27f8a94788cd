import pytest

from framework.train.name_patterns import MOST_SHOWN, is_match, matching, what_model_has

NAMES = ["stem.weight", "layers.0.norm1.bias", "layers.1.norm1.bias", "head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        ("head", 2),
        ("head.bias", 1),
        ("layers", 2),
        ("layers.1", 1),
        ("*.norm?", 2),
        ("*.bias", 3),
        ("*", 5),
        (["stem", "head"], 3),
        ("hea", 0),
        ("bias", 0),
        ([], 0),
    ],
)
def test_a_pattern_matches_a_parameter_or_a_module_around_it(pattern, number):
    assert len(matching(pattern, NAMES)) == number


def test_a_module_s_own_name_matches():
    assert is_match("layers.0", "layers")
    assert not is_match("layers", "layers.0")


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("stme", "the model has stem, layers, head"),
        ("layers.7", "the model has layers.0, layers.1"),
        ("head.scale.x", "the model has head.weight, head.bias"),
    ],
)
def test_a_message_names_what_is_near(pattern, words):
    assert what_model_has(pattern, NAMES) == words


def test_a_message_stays_short():
    words = what_model_has("x", [f"layer{number}.weight" for number in range(100)])
    assert words.endswith(", ...")
    assert words.count("layer") == MOST_SHOWN
