from framework.commands.tune.batch_sizes import SpeedCurve, Trial
from framework.commands.tune.print_batch_sizes import print_curve, print_trial

FITS, BETTER = Trial(8, (80.0,) * 4, 0.1, 1 << 20), Trial(16, (160.0,) * 4, 0.1, 2 << 20)
TOO_LARGE = Trial(32, why="out of memory", memory=True)
CONFIG = {"rank_batch_size": None, "batch_size": 8}


def test_a_trial_is_one_line_with_its_rate_or_the_reason(capsys):
    print_trial(BETTER)
    print_trial(TOO_LARGE)
    rate, reason = capsys.readouterr().err.splitlines()
    assert rate.split()[:2] == ["16:", "160"]
    assert reason.split()[0] == "32:"
    assert "out of memory" in reason


def test_the_curve_ends_with_the_command_that_follows_it(capsys):
    plain = print_curve(
        SpeedCurve((FITS, BETTER, TOO_LARGE), "memory"),
        ["--config-dir", "my dir", "batch_size=8", "epochs=3"],
        CONFIG,
        False,
    )
    assert "paceline train --config-dir 'my dir' epochs=3 batch_size=16" in capsys.readouterr().out
    assert (plain["recommended"], plain["largest"], plain["bound"]) == (16, 16, "memory")
    assert [trial["fits"] for trial in plain["curve"]] == [True, True, False]


def test_ranks_of_a_fixed_share_are_recommended_their_share(capsys):
    print_curve(
        SpeedCurve((FITS,), "records"), [], {"rank_batch_size": 8, "batch_size": None}, True
    )
    out = capsys.readouterr().out
    assert "rank_batch_size=8" in out
    assert "GPU memory" in out
