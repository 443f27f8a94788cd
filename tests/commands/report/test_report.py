import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from framework.commands.report.report import sweep_report
from framework.commands.report.write_report import write_report
from framework.system.durable import remove_leftovers
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


def test_a_report_that_cannot_be_written_is_a_line_and_no_error(tmp_path, capfd):
    jobs = [make_run(tmp_path / "sweep" / str(number)) for number in range(2)]
    (tmp_path / "sweep" / "report.html" / "in-the-way").mkdir(parents=True)
    sweep_report(jobs)
    said = capfd.readouterr()
    assert said.out == ""
    assert "no report was written" in said.err
    assert f"try: paceline report {tmp_path / 'sweep'}" in said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["run/", "a folder, = '漢字'"])
def test_a_directory_may_have_any_name(tmp_path, name):
    make_run(tmp_path / name)
    done = paceline("report", name, "png=false")
    assert done.code == 0
    assert (tmp_path / name / "report.html").is_file()
    assert not list((tmp_path / "outputs").iterdir())


def test_a_bench_file_has_its_page_beside_it(tmp_path):
    make_bench(tmp_path / "b.jsonl", [cell(1.0, data="a"), cell(2.0, data="b")])
    done = paceline("report", "b.jsonl")
    assert done.code == 0
    assert "(2 runs, and 2 pictures beside it)" in done.out
    assert {"b.html", "b-times.png", "b-spans.png"} <= {path.name for path in tmp_path.iterdir()}


def test_several_places_make_one_page_below_outputs(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    assert paceline("report", "a", "b", "png=false", "relative=slowest").code == 0
    assert len(list(Path("outputs/report").rglob("report.html"))) == 1


def test_the_page_is_written_to_the_given_path(tmp_path):
    make_run(tmp_path / "a")
    assert paceline("report", "a", "png=false", "page=here/it.html").code == 0
    assert [path.name for path in Path("here").iterdir()] == ["it.html"]


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["absent"], "D175"),
        (["a", "png=maybe"], "C101"),
        (["a", "dirs=3"], "C100"),
        ([], "C103"),
        (["a", "colour=red"], "C102"),
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


@pytest.mark.slow
def test_a_run_that_was_killed_while_it_trained_is_reported(tmp_path):
    words = [
        sys.executable,
        "-m",
        "framework",
        "train",
        "epochs=3000",
        "report_every=1",
        "hydra.run.dir=run",
        "sink=[jsonl]",
    ]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log, end = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 60
    while time.monotonic() < end and not (log.exists() and log.stat().st_size > 2000):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert not os.path.exists("run/exit.json")
    write_report(["run"], Path("run/report.html"), png=False)
    assert "it is running, or was killed" in Path("run/report.html").read_text()
    assert "loss over steps" in Path("run/report.html").read_text()
    remove_leftovers(Path("run/checkpoints"))  # it was perhaps killed while it saved
