import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from framework.contracts.training import MakesMetrics
from framework.errors import ConfigError
from framework.objective.recognize import Recognize, edit_distance


class Given(nn.Module):
    """Gives the logits of a batch as they are."""

    def forward(self, logits, steps):
        return logits, steps


def spelled(*lines, sure=20.0):
    """Return logits whose best symbols spell the lines over ``_abc``, and their step counts."""
    width = max(map(len, lines))
    symbols = torch.tensor(
        [["_abc".index(char) for char in line.ljust(width, "a")] for line in lines]
    )
    return sure * nn.functional.one_hot(symbols, 4).float(), torch.tensor(list(map(len, lines)))


def recognize(*lines, texts, training=False, **more):
    logits, steps = spelled(*lines, **more)
    model = Given().train(training)
    objective = Recognize(["logits", "steps"], "text", "abc")
    return objective(model, {"logits": logits, "steps": steps, "text": texts})


def test_a_text_that_every_step_spells_costs_nothing():
    outcome = recognize("_aa_b", "cc_c", texts=["ab", "cc"])
    assert (outcome.loss.item(), outcome.count) == (pytest.approx(0, abs=1e-6), 2)


def test_the_loss_is_that_of_all_ways_to_spell_a_text_per_character():
    # Of the four symbols, alike at both steps: a_, _a and aa spell "a", and ab spells "ab".
    outcome = recognize("aa", "aa", texts=["a", "ab"], sure=0.0)
    expected = (math.log(16 / 3) + math.log(16) / 2) / 2
    assert outcome.loss.item() == pytest.approx(expected)


def test_a_line_with_too_few_steps_has_an_infinite_loss():
    assert recognize("aa", texts=["aa"]).loss.item() == math.inf


def test_repeats_and_blanks_are_left_out_and_padding_is_not_read():
    objective = Recognize(["logits", "steps"], "text", "abc")
    assert objective.read(*spelled("aab", "_a_a", "_")) == ["ab", "aa", ""]


def test_the_error_rate_is_over_all_characters_and_not_over_lines():
    objective = Recognize("logits", "text", "abc")
    assert isinstance(objective, MakesMetrics)
    totals = recognize("abcabcabc", "b", texts=["abcabcabc", "a"]).totals
    assert {name: value.item() for name, value in totals.items()} == {"errors": 1, "characters": 10}
    assert objective.metrics({name: value.double() for name, value in totals.items()}) == {
        "cer": 0.1
    }


def test_no_text_at_all_has_no_errors():
    totals = {"errors": torch.zeros(()), "characters": torch.zeros(())}
    assert Recognize("x", "text", "a").metrics(totals) == {"cer": 0.0}


def test_texts_are_compared_in_validation_only():
    assert recognize("a", texts=["a"], training=True).totals == {}


@pytest.mark.parametrize(
    ("new", "old", "better"),
    [
        ((0.1, 2.0), (0.2, 1.0), True),
        ((0.2, 1.0), (0.1, 2.0), False),
        ((0.1, 1.0), (0.1, 2.0), True),
        ((0.1, 1.0), (0.1, 1.0), False),
    ],
)
def test_better_is_a_lower_error_rate_and_then_a_lower_loss(new, old, better):
    new, old = ({"cer": cer, "loss": loss} for cer, loss in (new, old))
    assert Recognize("x", "text", "a").better(new, old) is better


@pytest.mark.parametrize("alphabet", ["", "aba"])
def test_an_alphabet_has_different_characters(alphabet):
    with pytest.raises(ConfigError, match=r"C275.*different characters"):
        Recognize("x", "text", alphabet)


def test_a_character_that_the_alphabet_lacks_is_named():
    with pytest.raises(ConfigError, match=r"C276.*lacks 'ä' of the text 'bäc'"):
        recognize("abc", texts=["bäc"])


def test_a_model_with_another_number_of_symbols_is_refused():
    objective = Recognize(["logits", "steps"], "text", "ab")
    logits, steps = spelled("a")
    with pytest.raises(ValueError, match="gives 4 symbols, the alphabet has 2"):
        objective(Given(), {"logits": logits, "steps": steps, "text": ["a"]})


@pytest.mark.parametrize(
    ("text", "other", "distance"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("kitten", "sitting", 3),
        ("abcd", "bcda", 2),
        ("ab", "ba", 2),
    ],
)
def test_the_edit_distance_of_known_texts(text, other, distance):
    assert edit_distance(text, other) == distance


def slow_distance(text, other):
    """Return the edit distance by its definition, without a table."""
    if not text or not other:
        return len(text) + len(other)
    replaced = slow_distance(text[1:], other[1:]) + (text[0] != other[0])
    shorter = slow_distance(text[1:], other), slow_distance(text, other[1:])
    return min(replaced, 1 + min(shorter))


@given(st.text("ab", max_size=5), st.text("ab", max_size=5))
def test_the_edit_distance_is_its_definition(text, other):
    assert edit_distance(text, other) == slow_distance(text, other)
