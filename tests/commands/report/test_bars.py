from framework.system.run_dir import read_json
from tests.commands.report.runs import drawn, make_run, make_sweep
from tests.saved_runs import change


def test_runs_that_failed_are_in_the_bars_as_such(tmp_path):
    paths = [*make_sweep(tmp_path), make_run(tmp_path / "bad", ("seed=9",), code=2, lines=[])]
    charts = drawn(paths)
    assert ">failed</text>" in charts["spans"].svg
    assert ">failed</text>" in charts["times"].svg


def test_a_device_that_idles_is_drawn_in_the_place_of_wait(tmp_path):
    path = make_run(tmp_path / "a")
    spans = read_json(path / "summary.json")["spans"]
    change(path / "summary.json", spans={**spans, "idle": {"mean_s": 0.5}})
    chart = drawn([path])["spans"]
    assert ">idle</text>" in chart.svg
    assert ">wait</text>" not in chart.svg
    assert "a device had nothing to do" in chart.caption
