"""The dispatcher: which command a line names, and what it prints without one."""

import subprocess
import sys

from framework.main import COMMANDS, run


def test_a_reader_that_has_gone_is_no_error_of_the_help():
    words = f"set -o pipefail; {sys.executable} -m framework train --help | true"
    done = subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (141, "")


def test_a_misspelled_command_is_one_line_with_the_nearest(capsys):
    assert run(["trian"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error[C120]: trian")
    assert "'train'" in line


def test_a_place_that_cannot_be_written_is_one_line(monkeypatch, capsys):
    def refuse(_):
        raise PermissionError(13, "Permission denied", "/there")

    monkeypatch.setattr("framework.commands.inspect.inspect.main", refuse)
    assert run(["inspect"]) == 5
    assert capsys.readouterr().err.startswith("error[R101]: /there")


def test_an_interruption_by_other_code_ends_with_130(monkeypatch, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("framework.commands.inspect.inspect.main", interrupt)
    assert run(["inspect"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_commands_are_completed(monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", "paceline tr")
    assert run(["-sc", "query=bash"]) == 0
    assert capsys.readouterr().out.split() == list(COMMANDS)
