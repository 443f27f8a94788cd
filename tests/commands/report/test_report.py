import hashlib
import re
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from framework.cli.run_records import chosen, varying
from framework.commands.report import recorded_runs, report
from framework.commands.report.recorded_runs import RecordedRun, read_run, relative_times
from framework.contracts.span import LateRank, RankReport, RankSpan
from framework.errors import ConfigError
from framework.system.run_dir import read_object
from tests.cli.command import is_one_error_line, paceline
from tests.commands.report.runs import MACHINE, Seen, cell, make_bench, make_run
from tests.saved_runs import change

SHORT = ("epochs=1", "max_steps=3", "report_every=1", "sink=[jsonl]")


def test_a_sweep_ends_with_its_report_also_of_jobs_that_failed(tmp_path):
    grid = ("optim.weight_decay=-1,0.1", "loader=plain,prefetch")
    done = paceline("train", "-m", *grid, *SHORT, "hydra.sweep.dir=sweep")
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


def test_the_page_of_a_bench_file_is_in_its_folder(tmp_path):
    make_bench(tmp_path / "b.jsonl", [cell(1.0, data="a"), cell(2.0, data="b")])
    done = paceline("report", "b.jsonl")
    assert done.code == 0
    assert "(2 runs, and 2 pictures beside it)" in done.out
    assert {"b.html", "b-times.png", "b-spans.png"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("words", "number"),
    [
        *((["absent"], "D175"), (["a", "png=maybe"], "C101"), (["a", "dirs=[b]"], "C100")),
        *(([], "C103"), (["a", "colour=red"], "C102"), (["a", "relative=fastest"], "C175")),
        (["--fast", "a"], "C124"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(tmp_path, words, number):
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


HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}'


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    for number in range(2):
        words = (f"data={HOSTILE}{number}", "seed=1")
        make_run(folder / str(number), words, notes=(HOSTILE,))
    machine = {**MACHINE, "processor": HOSTILE}
    make_run(folder / "2", ("data=z",), code=6, reason=HOSTILE, machine=machine)
    report.write_report([str(folder)], folder / "x.html", png=False)
    return Seen((folder / "x.html").read_text())


def test_what_others_wrote_is_text_and_no_markup(seen):
    assert "<script>alert(1)</script>" in seen.text
    assert "{{ 7*7 }}" in seen.text
    assert len(seen.scripts) == 1
    foreign = {"img", "iframe", "object", "link", "base", "form", "foreignobject"}
    assert not foreign & {tag for tag, _ in seen.found}
    assert not any(name.startswith("on") for _, own in seen.found for name in own)


def test_nothing_is_fetched(seen):
    pairs = [pair for _, attributes in seen.found for pair in attributes.items()]
    places = [value for name, value in pairs if name in {"href", "src", "action", "xlink:href"}]
    assert places
    assert all(value.startswith("#") for value in places)
    values = " ".join(value or "" for _, value in pairs)
    assert not re.search(r"https?:|//|@import|url\((?!#)", values)


def test_only_our_script_may_run(seen):
    policies = [own for _, own in seen.found if own.get("http-equiv") == "Content-Security-Policy"]
    policy = policies[0]["content"]
    digest = b64encode(hashlib.sha256(seen.scripts[0].encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}'" in policy


def test_only_keys_that_differ_are_among_the_differences(tmp_path):
    for number in range(2):
        config = {"model": {"width": 8}, "optim": {"lr": number}}
        make_run(tmp_path / str(number), (f"data={number}",), config=config)
    report.write_report([str(tmp_path)], tmp_path / "x.html", png=False)
    html = (tmp_path / "x.html").read_text()
    assert "<code>optim.lr</code>" in html
    assert "model.width" not in html


def test_a_page_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match="C176"):
        report.write_report(["b.jsonl"], Path("b.pdf"))


def run(name="a", rate=None, status="finished", losses=(), **choices):
    steps = np.arange(1.0, len(losses) + 1)
    curve = recorded_runs.MetricCurve(steps, steps, np.array(losses, np.float64))
    curves = {("train", "loss"): curve} if losses else {}
    return RecordedRun(name, name, status, choices=choices, records_per_s=rate, curves=curves)


def test_runs_are_called_by_what_differs():
    runs = [run(data="hdf5", epochs="2", lr="0.1"), run(data="lmdb", epochs="2", lr="0.2")]
    assert varying(runs) == ["data", "lr"]
    assert [run.label for run in report.labeled(runs)] == ["hdf5 · lr=0.1", "lmdb · lr=0.2"]


def test_what_was_not_asked_for_is_what_the_configuration_has():
    config = {
        "epochs": 10,
        "loader._target_": "framework.loader.plain.PlainLoader",
        "model._target_": "Net",
        "optim._target_": "torch.optim.SGD",
    }
    recorded = RecordedRun("a", "a", config=config)
    keys = ("epochs", "loader", "model", "optim", "data")
    assert [chosen(recorded, key) for key in keys] == ["10", "plain", "Net", "SGD", "default"]


def test_only_keys_that_differ_are_reported_with_the_value_of_each_rank():
    tables = [{"a": 1, "b": [1]}, {"a": 1, "b": [2], "c": 3}, {}, {"a": 1, "b": [1], "c": 3}]
    differing = report.differences(tables)
    assert [(d.key, d.values) for d in differing] == [
        ("b", [("[1]", [0, 3]), ("[2]", [1])]),
        ("c", [(report.ABSENT, [0]), ("3", [1, 3])]),
    ]
    assert [d.key for d in report.differences([{"a": 1}, {"a": 1}], everything=True)] == ["a"]


@pytest.mark.parametrize(
    ("to", "base", "times"),
    [("first", 1, [None, 1.0, 2.0, 0.5]), ("slowest", 2, [None, 0.5, 1.0, 0.25])],
)
def test_times_are_multiples_of_the_base(to, base, times):
    runs = [run(status="failed"), run(rate=100.0), run(rate=50.0), run(rate=200.0)]
    assert relative_times(runs, to) == (base, times)


def test_of_a_bench_the_median_of_the_rounds_counts():
    base = RecordedRun("a", "a", records_per_s=100.0, rounds={0: 100.0, 1: 50.0, 2: 120.0})
    other = RecordedRun("a", "a", records_per_s=100.0, rounds={0: 200.0, 1: 100.0, 2: 60.0, 3: 1.0})
    # another bench, whose rounds were other minutes
    elsewhere = RecordedRun("b", "b", records_per_s=100.0, rounds={0: 200.0})
    assert relative_times([base, other, elsewhere], "first").times == [1.0, 0.5, 1.0]
    assert relative_times([base, replace(other, what="loader")], "first").times == [1.0, None]


def test_runs_with_equal_losses_are_grouped():
    runs = [run(losses=losses) for losses in ([3, 2], [3, 2.1], [], [3, 2], [3, 2, 1])]
    assert report.equal_losses(runs) == [[0, 3], [1], [4]]


LATE = LateRank(1, "forward", 0.98, 0.0309, 0.56)
RANKS = RankReport(2, {"forward": RankSpan(0.001, 0.002, 0.033, 1)}, LATE)


def shown(runs):
    return {card.title: card for card in report.cards(report.labeled(runs))}


def cards_of(*paths):
    return shown([read_run(path) for path in paths])


def repeats(loader, rates, load=0.0, **changes):
    """Return runs of one choice that took turns with others."""
    runs: list[RecordedRun] = []
    for seed, rate in enumerate(rates):
        known = {"choices": {"loader": loader, "seed": str(seed)}, "records_per_s": rate}
        known["resources"] = {"usage.others_cpu_cores": load}
        runs.append(RecordedRun(f"{loader}{seed}", f"{loader}{seed}", **known, **changes))
    return runs


def test_repeats_of_one_choice_have_their_median_and_spread(tmp_path):
    good = [make_run(tmp_path / "slow", slow=2.0), make_run(tmp_path / "fast")]
    by_title = cards_of(*good, make_run(tmp_path / "bad", code=1))
    assert by_title["Runs"].detail == "2 finished, 1 failed"
    assert "Fastest" not in by_title
    assert "median of 2 runs of one choice, repeats differ by" in by_title["Speed"].detail
    assert by_title["Learned"].value == "the same"


def test_only_what_the_test_finds_is_called_the_fastest():
    slow = [100.0 + seed for seed in range(5)]
    fast = shown([*repeats("plain", slow), *repeats("stream", [2 * rate for rate in slow])])
    assert "Mann-Whitney U, p <= 0.01 against every other" in fast["Fastest"].detail
    same = shown([*repeats("plain", slow), *repeats("stream", [rate + 0.1 for rate in slow])])
    assert "Fastest" not in same
    assert same["Speed"].value == "no difference can be claimed"
    assert "no difference found: Mann-Whitney U" in same["Speed"].detail


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"what": "train"}, {"what": "loader"}),
        ({"facts": {"machine.num_cores": 2}}, {"facts": {"machine.num_cores": 4}}),
    ],
    ids=["part", "machine"],
)
def test_other_parts_and_other_machines_are_not_compared(first, second):
    runs = [*repeats("plain", [1.0] * 5, **first), *repeats("stream", [9.0] * 5, **second)]
    assert {"Fastest", "Speed"}.isdisjoint(shown(runs))


@pytest.mark.parametrize(
    ("count", "load", "why"),
    [
        (1, 0.0, "not tested: that takes 5 processes of each"),
        (5, 1.4, "other programs kept up to 1.4 cores busy"),
    ],
    ids=["few", "busy"],
)
def test_few_repeats_and_busy_machines_prove_nothing(count, load, why):
    by_title = shown([*repeats("plain", [800.0] * count), *repeats("x", [100.0] * count, load)])
    assert by_title["Speed"].value == "no difference can be claimed"
    assert why in by_title["Speed"].detail


def test_runs_with_other_losses_are_not_called_the_same(tmp_path):
    lines = [{"step": 1, "split": "train", "loss": 9.0, "lr": 1}]
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b")]
    by_title = cards_of(*runs, make_run(tmp_path / "c", lines=lines))
    assert by_title["Learned"].value == "2 ways"
    assert by_title["Lowest last validation loss"].detail == "a"


def test_a_failed_run_says_why(tmp_path):
    by_title = cards_of(make_run(tmp_path / "a", code=6, reason="error[N101]: nan", lines=[]))
    assert (by_title["Status"].value, by_title["Speed"].value) == ("failed", "\N{EN DASH}")
    assert "N101" in by_title["Status"].detail


def test_different_machines_are_warned_of(tmp_path):
    other = {**MACHINE, "processor": "another"}
    paths = [make_run(tmp_path / "a"), make_run(tmp_path / "b", machine=other)]
    notes = report.remarks([read_run(path) for path in paths])
    assert "2 different machines" in notes[0].text
    assert notes[0].numbers == [0, 1]


def column(table, name):
    place = [title for title, _ in table.columns].index(name)
    return [row[place] for row in table.rows]


def test_every_run_has_a_row_and_sorts_by_numbers(tmp_path):
    make_run(tmp_path / "a", slow=2.0)
    make_run(tmp_path / "b")
    make_run(tmp_path / "c", code=2, reason="wrong", lines=[])
    runs = report.labeled([read_run(tmp_path / name) for name in "abc"])
    table = report.runs_table(runs, relative_times(runs, "first"))
    assert [row[1].text for row in table.rows] == ["a", "b", "c"]
    times = column(table, "time, \N{MULTIPLICATION SIGN} #0")
    assert [(cell.text, cell.sort) for cell in times] == [
        ("1.00\N{MULTIPLICATION SIGN}", 1.0),
        ("0.50\N{MULTIPLICATION SIGN}", 0.5),
        ("\N{EN DASH}", None),
    ]
    assert [cell.mark for cell in column(table, "status")] == ["finished", "finished", "failed"]


def test_ranks_have_a_card_of_the_late_one_and_a_table_of_the_slowest(tmp_path):
    paths = [make_run(tmp_path / name) for name in "ab"]
    assert "ranks" not in read_object(paths[0] / "summary.json")
    change(paths[1] / "summary.json", ranks=RANKS.as_dict())
    runs = [read_run(path) for path in paths]
    card = shown(runs[1:])["Waiting for a rank"]
    lost = "of the run lost by the others, in forward of rank 1"
    assert (card.value, card.detail) == ("56.0 %", lost)
    table = report.ranks_table(runs)
    assert [cell.text for cell in column(table, "ranks")] == ["\N{EN DASH}", "2"]
    cell = column(table, "forward")[1]
    assert (cell.text, cell.details) == ("33 ms", ("rank 1", "1 ms | 2 ms"))
    assert report.ranks_table(runs[:1]).rows == []
