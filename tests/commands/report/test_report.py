import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import is_one_error_line, paceline
from tests.commands.report.runs import cell, make_bench, make_run

SHORT = ("epochs=1", "max_steps=3", "report_every=1", "sink=[jsonl]")


def test_a_sweep_ends_with_its_report_also_of_jobs_that_failed(tmp_path):
    done = paceline(
        "train",
        "-m",
        "optim.weight_decay=-1,0.1",
        "loader=plain,prefetch",
        *SHORT,
        "hydra.sweep.dir=sweep",
    )
    assert done.code == 2
    path = Path(re.search(r"^report: (\S+)", done.out, re.MULTILINE)[1])
    assert path == tmp_path / "sweep" / "report.html"
    text = path.read_text()
    assert "<h1>Sweep sweep</h1>" in text
    assert "all 2 runs have the same training losses, to the last bit" in text
    assert "failed: error[C113]" in text
    assert {f"report-{name}.png" for name in ("times", "spans", "loss-over-steps")} <= {
        entry.name for entry in path.parent.iterdir()
    }


@pytest.mark.parametrize("name", ["run/", "a folder, = '漢字'"])
def test_a_directory_may_have_any_name(tmp_path, name):
    make_run(tmp_path / name)
    done = paceline("report", name, "png=false")
    assert done.code == 0
    assert (tmp_path / name / "report.html").is_file()
    assert not (tmp_path / "outputs").exists()


def test_a_bench_file_has_its_page_beside_it(tmp_path):
    make_bench(tmp_path / "b.jsonl", [cell(1.0, data="a"), cell(2.0, data="b")])
    done = paceline("report", "b.jsonl")
    assert done.code == 0
    assert "(2 runs, and 2 pictures beside it)" in done.out
    assert {"b.html", "b-times.png", "b-spans.png"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["absent"], "D175"),
        (["a", "png=maybe"], "C101"),
        (["a", "dirs=[b]"], "C100"),
        ([], "C103"),
        (["a", "colour=red"], "C102"),
        (["a", "relative=fastest"], "C175"),
        (["--fast", "a"], "C124"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, words, number):
    make_run(tmp_path / "a")
    done = paceline("report", *words)
    assert is_one_error_line(done, number)
    assert not list(tmp_path.rglob("*.html"))


def test_torch_is_never_imported(tmp_path):
    make_run(tmp_path / "a")
    code = (
        "import sys; from framework.main import run; c = run(['report', 'a']); "
        "print(c, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"
