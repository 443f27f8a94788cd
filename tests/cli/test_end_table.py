import pytest

from framework.cli.tables import print_run
from framework.commands.train.train import SweepJob, print_sweep
from framework.contracts.span import LateRank
from framework.system.run_dir import write_object

SPAN = {"total_s": 4.0, "mean_s": 0.04, "p50_s": 0.035, "p90_s": 0.0625, "share": 0.5}
USAGE = {"cpu_cores": 1.5, "workers_cpu_cores": 0.75, "gpu_busy_share": 0.9}
SUMMARY = {"status": "finished", "run_steps": 100, "wall_s": 9.0, "train_s": 8.0}
SUMMARY |= {"records_per_s": 1234.0, "val": {}, "best": {}}
SUMMARY |= {"spans": {"wait": {**SPAN, "share": 0.25}, "forward": SPAN}}
SUMMARY |= {"stages_s": {"decode": 20.25, "read": 1.5}, "queue": {"ready": 1.75, "depth": 2}}
SUMMARY |= {"usage": {**USAGE, "peak_rss_bytes": 2**30}}


@pytest.fixture
def printed(tmp_path, capsys):
    """Return a function that returns what a run with a changed summary prints at its end."""

    def printed(**change):
        write_object(tmp_path / "summary.json", {**SUMMARY, **change})
        print_run(tmp_path, 0, short=False)
        return capsys.readouterr().out

    return printed


def test_the_table_has_share_quantiles_mean_and_total(printed):
    (row,) = [line for line in printed().splitlines() if "forward" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        *("forward", "50.0 %", "35.000 ms", "62.500 ms", "40.000 ms", "4.00 s"),
    ]


def test_lines_below_the_table_have_the_stages_of_reading_and_the_use_of_the_machine(printed):
    more = {"content": {"padding": 0.039}, "reason": "no better f1"}
    assert "in the batches: padding 3.9 %" in printed(**more)
    assert "ended early: no better f1\n" in printed(**more)
    assert "reading" not in printed(stages_s={}, usage={})
    out = printed()
    assert "reading, thread-seconds: read 1.50  decode 20.25, 1.8 of 2 batches ready" in out
    assert "this process 1.50 cores  workers 0.75 cores  GPU busy 90 %  peak memory 1.00 GiB" in out
    assert "idle" not in out


def test_several_ranks_have_a_table_and_a_late_rank_a_sentence(printed):
    span = {"min_s": 0.001, "median_s": 0.002, "max_s": 0.033, "rank": 1}
    late = LateRank(1, "forward", 0.98, 0.0309, 0.56)
    ranks = {"num": 2, "spans": {"forward": span}, "late": late._asdict()}
    out = printed(ranks=ranks)
    assert "the mean step of 2 ranks" in out
    row = next(line for line in out.splitlines() if "33.000 ms" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        *("forward", "1.000 ms", "2.000 ms", "33.000 ms", "1"),
    ]
    assert f"{late.words}\n" in out
    assert "late" not in printed(ranks={**ranks, "late": None})
    assert "the mean step of" not in printed(ranks=None)


@pytest.mark.parametrize(("cores", "is_busy"), [(0.02, False), (0.4, False), (0.9, True)])
def test_programs_beside_a_run_are_reported(printed, tmp_path, capsys, monkeypatch, cores, is_busy):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    usage = {"cpu_cores": 1.0, "others_cpu_cores": cores}
    out = printed(usage=usage)
    assert (f"other programs {cores:.2f} cores" in out) == (cores > 0.1)
    assert ("OMP_NUM_THREADS=1 may be faster" in out) == is_busy
    assert "OMP_NUM_THREADS" not in printed(usage={**usage, "peak_device_bytes": 1.0})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert "OMP_NUM_THREADS" not in printed(usage=usage)
    write_object(tmp_path / "summary.json", {**SUMMARY, "usage": usage})
    print_run(tmp_path, 0, short=True)
    assert ("(beside other programs on 0.9 cores)" in capsys.readouterr().out) == is_busy


def test_a_trace_is_named_with_what_opens_it(printed, tmp_path):
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "rank0.pt.trace.json").write_text("{}")
    assert (
        f"trace: {tmp_path / 'profile' / 'rank0.pt.trace.json'} (open it at https://ui.perfetto.dev"
        in printed()
    )


def test_a_sweep_has_the_share_of_waiting_of_each_job(tmp_path, capsys):
    wait = {"wait": {**SPAN, "share": 0.25}}
    idle = {"wait": {**SPAN, "share": 0.9}, "idle": {**SPAN, "share": 0.125}}
    for number, spans in enumerate([wait, idle, {}]):
        (tmp_path / str(number)).mkdir()
        write_object(tmp_path / str(number) / "summary.json", {**SUMMARY, "spans": spans})
    print_sweep([SweepJob.read(tmp_path / str(number)) for number in range(3)])
    out = capsys.readouterr().out
    assert ["25 %" in out, "12 %" in out, "90 %" in out] == [True, True, False]


def sweep(folder, rates, load=0.1, takes_turns=True):
    """Write a sweep: jobs of ``rates`` by loader, each beside ``load`` cores more of others."""
    jobs = [
        (loader, seed, loader_rates[seed])
        for seed in range(max(map(len, rates.values())))
        for loader, loader_rates in rates.items()
    ]
    if not takes_turns:
        jobs.sort(key=lambda job: job[0])
    for number, (loader, seed, rate) in enumerate(jobs):
        (folder / str(number)).mkdir()
        summary = {**SUMMARY, "records_per_s": rate, "usage": {"others_cpu_cores": load * number}}
        write_object(folder / str(number) / "summary.json", summary)
        words = [f"loader={loader}", f"seed={seed}", "epochs=1"]
        write_object(folder / str(number) / "run.json", {"overrides": words})
    return [SweepJob.read(folder / str(number)) for number in range(len(jobs))]


LOW, HIGH = [1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]


@pytest.mark.parametrize(
    ("plain", "takes_turns", "words"),
    [
        (LOW, True, "fastest: loader=stream (Mann-Whitney U, p"),
        (LOW, False, "seed=0,1,2,3,4 as the first key of a sweep); the highest rate has"),
        ([5.5, 7.5, 6.5, 9.5, 8.5], True, "no difference can be claimed (no difference found"),
    ],
    ids=["faster", "one after the other", "alike"],
)
def test_a_sweep_names_a_winner_only_if_the_test_finds_it(
    tmp_path, capsys, plain, takes_turns, words
):
    print_sweep(sweep(tmp_path, {"plain": plain, "stream": HIGH}, 0.01, takes_turns))
    out = capsys.readouterr().out
    assert words in out
    assert ("fastest" in out) == words.startswith("fastest")


def test_a_sweep_shows_what_other_programs_took_beside_each_job(tmp_path, capsys):
    print_sweep(sweep(tmp_path, {"plain": [1.0], "stream": [8.14]}, load=1.2))
    out = capsys.readouterr().out
    assert "0.0 cores" in out
    assert "1.2 cores" in out
    assert "no difference can be claimed (not tested: other programs kept up to 1.2" in out


def test_a_refused_job_has_a_line_and_its_number(tmp_path, capsys):
    jobs = sweep(tmp_path, {"plain": [1.0], "stream": [2.0]})
    refused = SweepJob(0, tmp_path / "none", ["loader=odd"], "error[C105]: why")
    print_sweep([refused, *(job._replace(number=job.number + 1) for job in jobs)])
    lines = capsys.readouterr().out.splitlines()
    rows = [line.strip("│ ").split("│") for line in lines if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["0", "1", "2"]
    assert "error[C105]: why" in rows[0][-1]


def test_brackets_are_printed_as_text(tmp_path, capsys):
    folder = tmp_path / "exp[lr]" / "[" / "a.h5]"
    folder.mkdir(parents=True)
    words = ["resume.allow=[optim.lr]", "data.train=[/data/a.h5]", "epochs=[red]"]
    for number, run_dir in enumerate([folder / "0", folder / "1"]):
        run_dir.mkdir()
        write_object(run_dir / "summary.json", {**SUMMARY, "val": {"[x]": number}})
        overrides = [words[0], words[1 + number]]
        write_object(run_dir / "run.json", {"overrides": overrides})
    print_run(folder / "0", 0, short=False)
    print_run(folder / "1", 0, short=True)
    print_sweep([SweepJob.read(folder / "0"), SweepJob.read(folder / "1")])
    out = "".join(capsys.readouterr().out.split())
    assert out.count("exp[lr]/[/a.h5]") == 3
    assert "[/data/a.h5]" in out
    assert "val[x]1.0000" in out


def test_a_few_slow_records_that_matter_are_named(printed):
    record = {"name": "a/huge.jpg", "mean_s": 0.5, "size_bytes": 9e6}
    block = {"records": [record], "num_slow": 2, "num_records": 1000, "slow_s": 1.0}
    block |= {"read_s": 2.0, "wait_s": 1.0, "slow_wait_s": 0.9, "saved_s": 0.8}
    assert "about 0.8 of 8.0 s: a/huge.jpg (500 ms, 9.0 MB)" in printed(slow_records=block)
    assert "huge" not in printed(slow_records={**block, "saved_s": 0.1})
