import pytest

from framework.commands.diagnose.host_python import measure_python
from tests.commands.diagnose.sleepy import sleepy_probe


def measured(tmp_path, monkeypatch, words=(), **seconds):
    with sleepy_probe(tmp_path, monkeypatch, words, **seconds) as probe:
        return measure_python(probe, 2.0, lambda _: None)


@pytest.mark.parametrize("part", ["model", "objective", "augment"])
def test_python_is_attributed_to_the_part_and_the_line(tmp_path, monkeypatch, part):
    python = measured(tmp_path, monkeypatch, **{part: 0.05})
    assert max(python.step, key=python.step.get) == part
    assert python.step[part] > 0.5
    line = python.lines[0]
    assert (line.part, line.file) == (part, str(tmp_path / "sleepy.py"))
    assert f"# in the {part}" in line.text
    assert python.transform == 0.0


def test_layers_and_the_backward_pass_leave_the_share_of_python_as_it_is(tmp_path, monkeypatch):
    """They take several times as long as the sleep, and are no Python to begin with."""
    words = ["+model.width=1300"]
    python = measured(tmp_path, monkeypatch, model=0.02, words=words)
    assert (
        python.step["model"] > 0.01
    )  # beside other programs, layers take longer and sleep does not
