import pytest

from framework.commands.tune.candidate import Candidate
from framework.commands.tune.halving import Final
from framework.commands.tune.paired_test import Pairs
from framework.commands.tune.print_search import busy_note, verdict, won

DEFAULT, OTHER = Candidate(0, "thread", "plain", 0), Candidate(2, "thread", "prefetch", 2)
FASTER, SLOWER = ((100.0, 120.0),) * 10, ((100.0, 90.0),) * 10


@pytest.mark.parametrize(
    ("challenger", "pairs", "words"),
    [
        (None, None, "as configured"),
        (OTHER, None, "budget="),
        (OTHER, Pairs(FASTER[:3]), "budget="),
        (OTHER, Pairs(SLOWER), "10.0 % slower"),
        (OTHER, Pairs(FASTER), "120 records/s"),
    ],
)
def test_the_verdict_says_what_the_pairs_prove(challenger, pairs, words):
    text = verdict(Final(DEFAULT, challenger, pairs))
    assert words in text
    assert "\n" not in text


def test_only_a_proved_gain_is_won():
    assert won(Final(DEFAULT, OTHER, Pairs(FASTER))) == "20 % faster"
    assert "as configured" in won(Final(DEFAULT, OTHER, Pairs(FASTER[:3])))


def test_a_busy_machine_is_noted(monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (3.0, 0.0, 0.0))
    assert "3.0" in busy_note(2)
    assert busy_note(64) == ""
