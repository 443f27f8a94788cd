"""The progress of a replay."""

from framework.commands.replay.replay_bar import replay_bar


def test_nothing_is_drawn_without_a_terminal(capsys):
    with replay_bar() as told:
        told(3, 10)
    assert capsys.readouterr().err == ""
