"""Figures of a GPU stand beside their goals."""

import argparse
import json
from pathlib import Path

import pytest

from tests.simulated_cuda.patch import simulated

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def goals(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_goals

    return gpu_goals


def test_a_figure_meets_its_goal_or_misses_it_or_was_not_measured(goals):
    rows = goals.judged("overhead", {"kernel by kernel": {"us": 15.0}})
    assert [row[1:] for row in rows] == [("<= 15", "15", "yes"), ("<= 3", "not measured", "open")]
    rows = goals.judged("overhead", {"kernel by kernel": {"us": 15.1}, "one graph": {"us": 2}})
    assert [row[3] for row in rows] == ["no", "yes"]


def test_a_share_must_be_reached(goals):
    rows = goals.judged("loading", {"stream/normalize": 0.9, "stream/store": 0.89})
    assert [row[3] for row in rows] == ["yes", "no"]


def test_a_part_without_a_goal_has_no_rows(goals):
    assert goals.judged("facts", {"torch": "2.11"}) == []


def test_goals_are_of_parts_that_exist(goals):
    import gpu

    assert {goal.part for goal in goals.GOALS} <= set(gpu.PARTS)


def test_an_unfinished_part_keeps_its_rows(goals, tmp_path, monkeypatch):
    import gpu

    script = tmp_path / "part.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); from pathlib import Path\n"
        "work = Path(sys.argv[sys.argv.index('--work') + 1])\n"
        "(work / 'result.json').write_text('{\"row\": 1}')\n"
        "import time; time.sleep(60)\n"
    )
    monkeypatch.setattr(gpu, "__file__", str(script))
    monkeypatch.setattr(gpu.sys, "argv", ["gpu.py"])
    result = gpu.in_a_process("facts", 2, tmp_path)
    assert result == {"row": 1, "failed": "was not done in the 2 s that were left"}


def test_an_interrupted_part_keeps_its_rows(goals, tmp_path, monkeypatch):
    import gpu

    def interrupted(name, left_s, work):
        gpu.write_json(work / gpu.RESULT, {"row": 1})
        raise SystemExit(143)

    words = ["gpu.py", "--device", "cpu", "--only", "facts", "--out", str(tmp_path)]
    monkeypatch.setattr(gpu, "in_a_process", interrupted)
    monkeypatch.setattr(gpu.sys, "argv", words)
    with pytest.raises(SystemExit):
        gpu.main()
    kept = json.loads((tmp_path / "gpu.json").read_text())
    assert kept == {"facts": {"row": 1, "failed": "was interrupted"}}


def test_the_page_of_goals_has_every_target(goals):
    page = (BENCHMARKS.parent / "docs" / "gpu.md").read_text()
    table = page.partition("| goal | target | measured |")[2].strip().partition("\n\n")[0]
    rows = table.splitlines()[1:]
    targets = [str(goal.limit).removesuffix(".0") for goal in goals.GOALS]
    assert len(rows) == len(targets) - 1  # the two kinds of step share a row
    assert all(any(target in row for row in rows) for target in targets)


def test_copies_of_every_loader_are_timed_on_a_device(goals, tmp_path, monkeypatch, capsys):
    import gpu

    def as_it_is(timed, batch, epoch):
        return batch

    monkeypatch.setattr(gpu.Timed, "normalize", as_it_is)  # the simulated device cannot
    options = argparse.Namespace(device="cuda", seconds=0.05, small=True, cifar10=None)
    with simulated(0):
        bench = gpu.Bench(options, tmp_path)
        gpu.overlap(bench)
    assert len(bench.result) == 2 * 2 * 4
    assert "timm's scheme" in capsys.readouterr().out
    assert all(row[3] in ("yes", "no") for row in goals.judged("overlap", bench.result))
