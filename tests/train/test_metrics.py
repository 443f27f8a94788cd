"""The means of what steps returned, and how far a run is."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.train import metrics as module


def outcome(values, losses=False, **more):
    """Return an Outcome of these losses, with ``hits``, and with ``losses`` half by name."""
    loss = torch.tensor(values, dtype=torch.float64, requires_grad=True).mean()
    parts = {"half": loss / 2} if losses else {}
    return Outcome(loss, {"hits": torch.tensor(len(values))}, len(values), losses=parts, **more)


def collected(*outcomes, objective=None, pass_results=None, **options):
    pass_results = pass_results or module.PassResults(objective, **options)
    for step, result in enumerate(outcomes, 1):
        add(pass_results, result, step)
    return pass_results


def add(pass_results, result, step, weight=1.0, indices=None):
    pass_results.add(result, result.count, weight, module.PassPlace(step, indices))


def means_of(pass_results, total):
    return pass_results.results(total)[:2]


def one_rank(values):
    return values


@given(st.lists(st.lists(st.integers(-1000, 1000), min_size=1, max_size=5), min_size=1, max_size=5))
def test_the_mean_over_batches_is_the_mean_over_records(batches):
    outcomes = [outcome([float(value) for value in batch], losses=True) for batch in batches]
    means, count = means_of(collected(*outcomes), one_rank)
    records = [value for batch in batches for value in batch]
    assert (count, means["hits"]) == (len(records), 1.0)
    assert means["loss"] == pytest.approx(sum(records) / len(records), abs=1e-9)
    assert means["half"] == pytest.approx(means["loss"] / 2, abs=1e-9)


def test_sums_of_all_ranks_are_added_before_they_are_divided():
    asked = []

    def total(sums):
        asked.append(sums)
        # another rank's loss, half, hits, count and records
        return sums + torch.tensor([30.0, 15.0, 2.0, 6.0, 6.0], dtype=torch.float64)

    means, count = means_of(collected(outcome([1.0, 1.0], losses=True)), total)
    assert (means, count) == ({"loss": 4.0, "half": 2.0, "hits": 0.5}, 8.0)
    assert (asked[0].dtype, asked[0].device.type) == (torch.float64, "cpu")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_loss_is_found_with_its_step_and_records(bad):
    pass_results = module.PassResults()
    for step, value in ((7, 1.0), (8, bad), (9, bad)):
        add(pass_results, outcome([value]), step, indices=torch.arange(10, 17))
    assert pass_results.first_bad().where == "step 8, records 10, 11, 12, 13, 14, ... (7)"


def test_bad_losses_can_be_left_out_and_fillers_are():
    pass_results = collected(outcome([1.0, 3.0]), outcome([math.nan]), outcome([math.inf]))
    add(pass_results, outcome([1e30]), 4, weight=0.0)
    pass_results.drop_bad()
    assert pass_results.results(one_rank).means == {"loss": 2.0, "hits": 1.0}
    assert pass_results.first_bad() is None
    nothing = collected(outcome([math.nan]))
    nothing.drop_bad()
    assert nothing.results(one_rank).means == {"loss": 0.0, "hits": 0.0}


@pytest.mark.parametrize("count", [0, torch.tensor(0)], ids=["on the host", "on the device"])
def test_the_mean_of_nothing_adds_nothing(count):
    mean = torch.tensor(math.nan)
    nothing = Outcome(mean, {"hits": torch.tensor(0)}, count, losses={"half": mean})
    pass_results = collected(outcome([1.0, 3.0], losses=True))
    pass_results.add(nothing, 2, 1.0, module.PassPlace(2, None))
    assert pass_results.results(one_rank).means == {"loss": 2.0, "hits": 1.0, "half": 1.0}


class Shares:
    """An objective whose metric is the share of the first of two totals."""

    def metrics(self, totals):
        return {"share": (totals["hits"][0] / totals["hits"].sum().clamp(min=1)).item()}


def with_totals(*hits, loss=1.0):
    return Outcome(torch.tensor(loss), {}, 1, {"hits": torch.tensor(hits)})


def with_array(*rows, loss=1.0):
    return Outcome(torch.tensor(loss), {"confusion": torch.tensor(rows)}, 1)


def test_totals_of_fillers_and_of_bad_losses_are_left_out_except_in_validation():
    bad = with_totals(5, 0, loss=math.nan)
    pass_results = collected(with_totals(1, 3), bad, objective=Shares())
    add(pass_results, with_totals(50, 0), 2, weight=0.0)
    pass_results.drop_bad()
    assert pass_results.results(one_rank).means == {"loss": 1.0, "share": 0.25}
    both = with_totals(1, 1), with_totals(0, 2, loss=math.inf)
    validation = collected(*both, objective=Shares(), drops_bad=False)
    assert validation.results(one_rank).means["share"] == 0.25


def test_an_array_in_sums_adds_up_over_passes_and_ranks_and_stays_an_array():
    pass_results = collected(with_array([1, 0], [0, 2]), with_array([0, 3], [0, 1]))
    add(pass_results, with_array([5, 5], [5, 5], loss=math.nan), 3)
    add(pass_results, with_array([7, 7], [7, 7]), 3, weight=0.0)
    pass_results.drop_bad()
    means, count, arrays = pass_results.results(lambda sums: 2 * sums)
    assert (means, count) == ({"loss": 1.0}, 6.0)
    assert arrays["confusion"].tolist() == [[2, 6], [0, 6]]


def complete(values):
    """Return what an objective gives with sums, a loss by name, totals and an array."""
    result = outcome(values, losses=True, totals={"hits": torch.tensor([len(values), 1])})
    result.sums["confusion"] = torch.ones(2, 2)
    return result


def resumed(saved, ranks=1, rank=0, world_size=1, objective=None):
    """Return results that continue the results ``saved``, which each of ``ranks`` ranks had."""
    pass_results = module.PassResults(objective or Shares())
    state = saved.state_dict(lambda values: [values] * ranks)
    pass_results.load_state_dict(state, rank, world_size)
    return pass_results


@pytest.mark.parametrize("cut", range(5))
def test_results_are_the_same_bits_if_they_were_saved_in_between(cut):
    batches = [[0.1, 0.7], [0.3], [1e-9, 0.2, 12.0], [0.5]]
    whole = collected(*map(complete, batches), objective=Shares()).results(one_rank)
    second = resumed(collected(*map(complete, batches[:cut]), objective=Shares()))
    means, count, arrays = collected(*map(complete, batches[cut:]), pass_results=second).results(
        one_rank
    )
    assert (means, count) == (whole.means, sum(map(len, batches[cut:])))
    assert torch.equal(arrays["confusion"], whole.arrays["confusion"])


@pytest.mark.parametrize(("ranks", "world_size"), [(1, 2), (3, 2), (2, 1), (4, 4)])
def test_another_number_of_ranks_takes_over_every_record_and_total_once(ranks, world_size):
    saved = collected(complete([1.0, 2.0]), objective=Shares())
    of_ranks = [resumed(saved, ranks, rank, world_size) for rank in range(world_size)]
    assert sum(float(pass_results.columns().counts.sum()) for pass_results in of_ranks) == 2 * ranks
    asked = []
    for pass_results in of_ranks:
        pass_results.results(lambda values: asked.append(values[-2:]) or values)
    assert sum(asked).tolist() == [2 * ranks, ranks]


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("sums", {"x": torch.ones(2, 1)}, r"sums\['x'\]"),
        ("sums", {"x": torch.ones(3)}, r"sums\['x'\]"),
        ("sums", {"x": "1"}, r"sums\['x'\]"),
        ("sums", [1], "sums: is a list"),
        ("loss", torch.ones(2), "loss: has the shape"),
        ("totals", None, "totals: is a NoneType"),
        ("totals", {"x": 3}, r"totals\['x'\]"),
        ("totals", {"x": torch.ones(2, device="meta")}, "totals"),
        ("losses", [1.0], "losses: is a list"),
        ("losses", {"a": torch.ones(2)}, r"losses\['a'\]"),
        ("losses", {"loss": torch.ones(())}, "another value has this name"),
        ("losses", {"hits": torch.ones(())}, "another value has this name"),
    ],
)
def test_values_that_cannot_be_added_up_are_refused(name, value, where):
    result = outcome([1.0, 2.0])
    setattr(result, name, value)
    with pytest.raises(ConfigError, match=rf"C220.*Outcome\..*{where}"):
        module.check_outcome(result, 2)


def test_a_pass_with_another_form_than_the_one_before_is_refused():
    first, second = (Outcome(torch.ones(()), {name: torch.ones(())}, 1) for name in ("a", "b"))
    with pytest.raises(ConfigError, match=r"C220.*sums: has b, and had a one pass before"):
        collected(first, second)
    with pytest.raises(ConfigError, match=r"C220.*Outcome\.totals.*'hits': \(3,\)"):
        collected(with_totals(1, 3), with_totals(1, 2, 3))


def test_an_objective_that_makes_no_numbers_of_its_totals_is_refused():
    with pytest.raises(ConfigError, match=r"C220.*has x.*metrics\(totals\)"):
        module.metrics_of(object(), {"x": torch.ones(2)})
    silent = type("Silent", (), {"metrics": lambda self, totals: None})()
    with pytest.raises(ConfigError, match=r"C220.*the objective's metrics"):
        module.metrics_of(silent, {"x": torch.ones(2)})


@pytest.mark.parametrize(("epochs", "steps"), [(6, 60), (2, 40)], ids=["more epochs", "fewer"])
def test_a_finished_run_has_the_steps_of_the_epochs_that_are_left(epochs, steps):
    assert module.Progress(step=40, epoch=4).total_steps(module.TrainPlan(epochs), 10) == steps


EVERY = st.none() | st.integers(1, 9)


@given(
    st.integers(1, 9),
    EVERY,
    EVERY,
    st.integers(1, 12),
    st.integers(1, 40),
    st.sets(st.integers(0, 40)),
)
def test_next_due_finds_every_step_at_which_something_is_due(
    report, validate, save, epoch_steps, last_step, thaws
):
    plan = module.TrainPlan(9, report_every=report, validate_every=validate, save_every=save)
    steps = range(1, last_step + 1)
    due = {step for step in steps if step % report == 0 or step % epoch_steps == 0}
    due |= {step for step in steps if plan.validates(step, ends_epoch=False) or plan.saves(step)}
    due |= {last_step, *thaws.intersection(steps)}
    steps, step = set(), 0
    while step < last_step:
        # when an epoch ends, its steps are still counted, or no more
        counted = {step % epoch_steps, step and (step - 1) % epoch_steps + 1}
        places = [module.Progress(step=step, epoch_step=number) for number in counted]
        rest = (epoch_steps, last_step, thaws)
        (step,) = {module.next_due(plan, progress, *rest) for progress in places}
        steps.add(step)
    assert steps == due
