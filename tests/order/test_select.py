from itertools import chain

import numpy as np
import pytest

from framework.errors import ConfigError
from framework.order.select import Fold, chosen


class Table:
    """Facts with columns by name."""

    classes = ("cat", "dog", "cow")

    def __init__(self):
        self.columns = {
            "label": np.array([0, 1, 2, 0, 1, 2]),
            "width": np.array([10, 20, 30, 40, 50, 60]),
            "speaker": np.array(["anna", "bob", "anna", "bob", "eve", "eve"], object),
            "score": np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], np.float32),
        }

    @property
    def names(self):
        return list(self.columns)

    def answer(self, name):
        return self.columns.get(name)


def selected(text):
    return chosen(6, Table(), text, None, training=True).tolist()


def folded(fold, facts=None, text=None, training=False):
    facts = facts or Table()
    count = len(facts.columns["label"])
    return chosen(count, facts, text, fold, training=training).tolist()


@pytest.mark.parametrize(
    ("text", "records"),
    [
        *(("label != 1 and width >= 30", [2, 3, 5]), ("label not in (0, 2)", [1, 4])),
        *(("10 < width <= 40", [1, 2, 3]), ("label in ['cat', 2]", [0, 2, 3, 5])),
        *(("speaker in ['bob', 'eve'] and label == 1", [1, 4]), ("score in [0.1, 0.3]", [0, 2])),
        *(("speaker < 'bob'", [0, 2]), ("label > -1 and width in [-10, 10]", [0])),
    ],
)
def test_records_that_fulfil_the_expression_are_chosen(text, records):
    assert selected(text) == records


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["label ==", "((((" * 3000 + "label"], "cannot be read"),
        (["__import__('os').system('x') == 1"], "neither a field nor a value"),
        (["label"], "is no comparison"),
        (["label is 1"], "is no comparison of values"),
        (["1 == 1", "label == 1 and 1 == 1", "0 < 1 < label"], "compares no field"),
        (["score < 1" + "0" * 400], "too large"),
        (["speaker in ['anna', 3]", "speaker == 1"], "compares a text with a number"),
        (["label in [1, 'anna']"], "no class"),
        (["label == 'horse'"], "is no class"),
        (["colour == 1"], "choose from label, width, speaker, score"),
        (["label in width", "label == [1]"], "needs a list after 'in'"),
        (["label == -'a'", "width == None"], "is neither a"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_expression_that_means_nothing_is_refused(texts, words):
    for text in texts:
        with pytest.raises(ConfigError, match=f"C204.*{words}"):
            selected(text)


def test_a_selection_without_records_is_refused():
    with pytest.raises(ConfigError, match=r"C205.*no record of 6"):
        selected("width > 100")


def test_each_record_is_validated_in_exactly_one_fold():
    for text in (None, "label != 0"):
        whole = list(range(6)) if text is None else selected(text)
        parts = [folded(Fold(number, 3), text=text) for number in range(3)]
        assert sorted(chain(*parts)) == whole
        for fold, part in enumerate(parts):
            rest = folded(Fold(fold, 3), text=text, training=True)
            assert sorted(rest + part) == whole


def test_each_fold_has_its_share_of_each_class():
    facts = Table()
    facts.columns = {"label": np.array([0] * 61 + [1] * 20 + [2] * 4)}
    labels = facts.columns["label"]
    for count in (2, 3, 4):
        parts = [folded(Fold(number, count), facts) for number in range(count)]
        of_folds = np.array([np.bincount(labels[part], minlength=3) for part in parts])
        assert (np.ptp(of_folds, axis=0) <= 1).all()
        assert np.ptp(of_folds.sum(1)) <= 1
        assert of_folds.sum() == 85
    first = folded(Fold(0, 4), facts)
    assert first != list(range(0, 85, 4))  # shuffled inside the classes


def test_records_that_belong_together_are_in_one_fold():
    numbers = np.random.default_rng(0)
    patients = np.repeat(np.arange(60), numbers.integers(1, 9, 60))
    count = len(patients)
    facts = Table()
    facts.columns = {
        "label": numbers.choice(3, count, p=[0.7, 0.2, 0.1]),
        "patient": np.array([f"p{patient}" for patient in patients], object),
    }
    parts = [folded(Fold(number, 4, "patient"), facts) for number in range(4)]
    assert sorted(chain(*parts)) == list(range(count))
    owners = [set(patients[part]) for part in parts]
    assert sum(map(len, owners)) == 60
    for values, labels in [(np.zeros(count, int), 1), (facts.columns["label"], 3)]:
        of_folds = np.array([np.bincount(values[part], minlength=labels) for part in parts])
        assert (np.ptp(of_folds, axis=0) <= 0.1 * of_folds.sum(0)).all()


@pytest.mark.parametrize(
    ("fold", "words"),
    [
        (Fold(0, 2, "patient"), "fold_by = patient.*choose from label, width"),
        (Fold(3, 4, "speaker"), "use fewer folds"),
        (Fold(6, 7), "use fewer folds"),
    ],
    ids=["an unknown field", "fewer groups", "fewer records"],
)
def test_folds_that_cannot_be_made_are_refused(fold, words):
    with pytest.raises(ConfigError, match=rf"C205.*{words}"):
        folded(fold)
