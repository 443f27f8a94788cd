import pytest

from framework.commands.tune.candidate import Candidate
from framework.commands.tune.halving import Final
from framework.commands.tune.print_search import print_busy, verdict, won
from framework.measure.statistics import Pairs

DEFAULT, OTHER = Candidate(0, "thread", "plain", 0), Candidate(2, "thread", "prefetch", 2)
FASTER, SLOWER = Pairs((100.0,) * 10, (120.0,) * 10), Pairs((100.0,) * 10, (90.0,) * 10)
FEW = Pairs((100.0,) * 3, (120.0,) * 3)


@pytest.mark.parametrize(
    ("challenger", "pairs", "words"),
    [
        (None, None, "as configured"),
        (OTHER, None, "budget="),
        (OTHER, FEW, "budget="),
        (OTHER, SLOWER, "10.0 % slower"),
        (OTHER, FASTER, "120 records/s"),
    ],
)
def test_the_verdict_says_what_the_pairs_prove(challenger, pairs, words):
    text = verdict(Final(DEFAULT, challenger, pairs))
    assert words in text
    assert "\n" not in text


def test_only_a_proved_gain_is_won():
    assert won(Final(DEFAULT, OTHER, FASTER)) == "20 % faster"
    assert "as configured" in won(Final(DEFAULT, OTHER, FEW))


def test_a_busy_machine_is_noted(monkeypatch, capsys):
    monkeypatch.setattr("os.getloadavg", lambda: (3.0, 0.0, 0.0))
    print_busy(2)
    assert "3.0" in capsys.readouterr().out
    print_busy(64)
    assert capsys.readouterr().out == ""
