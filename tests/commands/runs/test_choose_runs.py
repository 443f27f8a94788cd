import pytest

from framework.commands.runs.choose_runs import chosen_runs
from framework.commands.runs.run_listing import listed_runs
from framework.errors import ConfigError
from tests.commands.runs.run_folders import make_run


@pytest.fixture
def runs(tmp_path):
    """Write the runs a, b and c, and return them.

    The last of them failed before its first validation.
    """
    loader = {"loader": {"_target_": "framework.loader.stream.StreamLoader"}}
    make_run(tmp_path / "a", metrics={"accuracy": 0.9}, config={"optim": {"lr": 0.1}, **loader})
    make_run(tmp_path / "b", metrics={"accuracy": 0.5}, overrides=["optim.lr=0.2", "seed=1"])
    make_run(tmp_path / "c", code=6, config={"optim": {"lr": None}})
    return listed_runs(tmp_path)


def names(runs):
    return "".join(run.recorded.name for run in runs)


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        ("accuracy > 0.6", "a"),
        ("accuracy <= 0.6", "b"),
        ("not accuracy > 0.6", "bc"),
        ("status == 'failed' or accuracy < 0.6", "bc"),
        ("code == 6", "c"),
        ("name in ['a', 'c'] and steps < 8", "c"),
        ("loader == 'stream'", "a"),
        ("time_s < 3", "ab"),
        ("seed == '1'", "b"),
    ],
)
def test_runs_are_chosen_by_facts_metrics_and_options(runs, where, chosen):
    assert names(chosen_runs(runs, where, None)) == chosen


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("acuracy > 1", "'acuracy' is not known of every run"),
        ("__import__('os')", "is no comparison"),
        ("accuracy.__class__ == 1", "'accuracy.__class__' is not known"),
        ("(lambda: 1)() == 1", "neither a field nor a value"),
        ("status == 1", "compares a text with a number"),
        ("1 == 1", "compares no field of the runs"),
        ("", "cannot be read"),
    ],
)
def test_a_condition_is_parsed_and_never_evaluated(runs, where, what):
    with pytest.raises(ConfigError, match=r"C204.*where = ") as caught:
        chosen_runs(runs, where, None)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("sort", "order"),
    [("accuracy", "bac"), ("-accuracy", "abc"), ("status", "cab"), ("-name", "cba")],
)
def test_runs_are_sorted_and_unknown_values_come_last(runs, sort, order):
    assert names(chosen_runs(runs, None, sort)) == order


def test_an_unknown_key_to_sort_by_is_an_error_that_names_a_near_one(runs):
    with pytest.raises(ConfigError, match=r"C374.*did you mean 'accuracy'"):
        chosen_runs(runs, None, "acuracy")
