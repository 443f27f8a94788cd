import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.train.metrics import (
    Progress,
    Tally,
    TrainPlan,
    check_outcome,
    metrics_of,
    next_due,
)


def outcome(values, counts=True):
    """Return what an objective gives for records with these losses, and ``counts``.

    Each record is also counted in ``hits``.
    """
    loss = torch.tensor(values, dtype=torch.float64, requires_grad=True).mean()
    return Outcome(loss, {"hits": torch.tensor(len(values))}, len(values)), counts


def means(outcomes, total):
    return tallied(outcomes).means(total)


def tallied(outcomes):
    tally = Tally()
    for number, (result, counts) in enumerate(outcomes):
        tally.add(result, counts, number, None)
    return tally


def one_rank(sums):
    return sums


def test_uneven_batches_weigh_what_they_hold():
    averages, count = means([outcome([1.0, 1.0, 1.0]), outcome([5.0])], one_rank)
    assert (averages, count) == ({"loss": 2.0, "hits": 1.0}, 4.0)


@given(st.lists(st.lists(st.integers(-1000, 1000), min_size=1, max_size=5), min_size=1, max_size=5))
def test_the_mean_over_batches_is_the_mean_over_records(batches):
    averages, count = means(
        [outcome([float(value) for value in batch]) for batch in batches], one_rank
    )
    records = [value for batch in batches for value in batch]
    assert count == len(records)
    assert averages["loss"] == pytest.approx(sum(records) / len(records), abs=1e-9)


def test_a_filler_is_as_nothing():
    averages, count = means([outcome([1.0, 3.0]), outcome([1e30], counts=False)], one_rank)
    assert (averages, count) == ({"loss": 2.0, "hits": 1.0}, 2.0)


def test_what_is_kept_holds_no_graph():
    result, counts = outcome([1.0])
    tallied([(result, counts)])
    assert not result.loss.requires_grad


# -------------------------------------------------------------------------------- saved and resumed

VALUES = [[0.1, 0.7], [0.3], [1e-9, 0.2, 12.0], [0.5]]


def gone_on(first, second, rank=0, world_size=1, ranks=1):
    """Return a tally of ``second`` that continues one of ``first``, saved on ``ranks`` ranks."""
    tally = Tally()
    tally.load_state_dict(
        tallied(first).state_dict(lambda values: [values] * ranks), rank, world_size
    )
    for number, (result, counts) in enumerate(second):
        tally.add(result, counts, number, None)
    return tally


@pytest.mark.parametrize("cut", range(len(VALUES) + 1))
def test_a_mean_is_the_same_to_the_bit_when_it_was_saved_in_between(cut):
    whole = means([outcome(values) for values in VALUES], one_rank)
    tally = gone_on(
        [outcome(values) for values in VALUES[:cut]], [outcome(values) for values in VALUES[cut:]]
    )
    assert tally.means(one_rank) == whole


def test_only_this_run_s_records_count_for_its_pace():
    assert gone_on([outcome([1.0, 2.0])], [outcome([3.0])]).carried == 2


@pytest.mark.parametrize(("ranks", "world_size"), [(1, 2), (3, 2), (2, 1), (4, 4)])
def test_another_number_of_ranks_takes_every_record_on_once(ranks, world_size):
    counts = [
        gone_on([outcome([1.0, 2.0])], [], rank, world_size, ranks).columns().counts.sum()
        for rank in range(world_size)
    ]
    assert sum(map(float, counts)) == 2 * ranks


def test_what_was_cleared_is_gone():
    tally = gone_on([outcome([1.0])], [outcome([2.0])])
    tally.clear()
    assert (tally.columns().counts.tolist(), tally.carried) == ([], 0)


# ------------------------------------------------------------------------------- numbers gone wrong


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_first_loss_that_is_none_is_found_with_its_step_and_records(bad):
    tally = Tally()
    for step, value in ((7, 1.0), (8, bad), (9, bad)):
        tally.add(outcome([value])[0], True, step, torch.arange(10, 17))
    assert tally.first_bad().where == "step 8, records 10, 11, 12, 13, 14, ... (7)"


def test_what_is_no_number_can_be_left_out():
    tally = tallied([outcome([1.0, 3.0]), outcome([float("nan")]), outcome([float("inf")])])
    tally.drop_bad()
    assert tally.means(one_rank) == ({"loss": 2.0, "hits": 1.0}, 2.0)
    assert tally.first_bad() is None


def test_if_everything_was_left_out_nothing_is_counted():
    tally = tallied([outcome([float("nan")])])
    tally.drop_bad()
    assert tally.means(one_rank) == ({"loss": 0.0, "hits": 0.0}, 0.0)


def test_sums_are_added_over_ranks_before_they_are_divided():
    def total(sums):
        # another rank's hits, losses and count
        return sums + torch.tensor([2.0, 30.0, 6.0], dtype=torch.float64)

    asked = []
    averages, count = means([outcome([1.0, 1.0])], lambda sums: asked.append(sums) or total(sums))
    assert asked[0].tolist() == [2.0, 2.0, 2.0]
    assert (averages["loss"], averages["hits"], count) == (4.0 / 8, 32.0 / 8, 8.0)


def test_what_is_asked_of_the_ranks_is_float64_on_the_host():
    asked = []
    means([outcome([1.0])], lambda sums: asked.append(sums) or sums)
    assert (asked[0].dtype, asked[0].device.type) == (torch.float64, "cpu")


def test_a_million_small_losses_keep_their_digits():
    outcomes = [(Outcome(torch.tensor(0.1), {}, 1), True)] * 100_000
    averages, _ = means(outcomes, one_rank)
    assert averages["loss"] == pytest.approx(float(torch.tensor(0.1)), rel=1e-12)


def test_half_precision_counts_are_exact():
    outcomes = [
        (Outcome(torch.tensor(1.0), {"total": torch.tensor(2000.0, dtype=torch.bfloat16)}, 1), True)
    ] * 3
    assert means(outcomes, one_rank)[0]["total"] == 2000.0


def test_a_pass_with_other_sums_than_the_one_before_is_refused():
    tally, (first, _) = Tally(), outcome([1.0])
    tally.add(first, True, 1, None)
    with pytest.raises(ConfigError, match=r"C220.*has hits, late, and had hits one pass before"):
        tally.add(Outcome(first.loss, {**first.sums, "late": first.loss}, 1), True, 2, None)


@pytest.mark.parametrize("value", [torch.ones(2, 1), torch.ones(3), "1", None])
def test_what_is_neither_a_sum_nor_a_value_per_record_is_refused(value):
    (result, _) = outcome([1.0, 2.0])
    result.sums["x"] = value
    with pytest.raises(ConfigError, match=r"C220.*Outcome\.sums\['x'\]"):
        check_outcome(result)


# ----------------------------------------------------------------- totals, and metrics made of them


class Shares:
    """An objective whose metric is the share of the first of two totals."""

    def metrics(self, totals):
        return {"share": (totals["hits"][0] / totals["hits"].sum().clamp(min=1)).item()}


def with_totals(*hits, loss=1.0):
    return Outcome(torch.tensor(loss), {}, 1, {"hits": torch.tensor(hits)})


def shares(*outcomes, counts=True):
    tally = Tally(Shares())
    for outcome in outcomes:
        tally.add(outcome, counts, 1, None)
    return tally


def test_a_metric_is_made_of_totals_and_not_of_means():
    metrics, count = shares(with_totals(1, 1), with_totals(98, 0)).means(one_rank)
    assert (metrics, count) == ({"loss": 1.0, "share": 0.99}, 2.0)


def test_totals_are_summed_over_ranks_in_their_own_shape():
    tally = Tally(Shares())
    tally.add(Outcome(torch.tensor(1.0), {}, 1, {"hits": torch.tensor([[1], [3]])}), True, 1, None)
    assert tally.means(lambda values: 2 * values)[0]["share"] == 0.25


def test_totals_of_fillers_and_of_bad_losses_are_left_out():
    tally = shares(with_totals(1, 3), with_totals(5, 0, loss=float("nan")))
    tally.add(with_totals(50, 0), False, 2, None)
    tally.drop_bad()
    assert tally.means(one_rank)[0] == {"loss": 1.0, "share": 0.25}


def test_a_validation_counts_the_totals_of_bad_losses():
    tally = Tally(Shares(), drops_bad=False)
    for outcome in (with_totals(1, 1), with_totals(0, 2, loss=float("inf"))):
        tally.add(outcome, True, 0, None)
    assert tally.means(one_rank)[0]["share"] == 0.25


def test_totals_of_another_objective_are_not_continued():
    saved = shares(with_totals(1, 1)).state_dict(lambda values: [values])
    tally = Tally(Shares())
    tally.load_state_dict(saved, 0, 1)
    tally.add(Outcome(torch.tensor(1.0), {}, 1, {"hits": torch.tensor([[1], [3]])}), True, 1, None)
    assert tally.means(one_rank)[0]["share"] == 0.25
    plain = Tally()
    plain.load_state_dict(saved, 0, 1)
    plain.add(Outcome(torch.tensor(1.0), {}, 1), True, 1, None)
    assert plain.means(one_rank) == ({"loss": 1.0}, 2.0)


def test_totals_of_pixels_keep_their_last_digit():
    whole = 2**24 + 1  # float32 ends before
    tally = shares(with_totals(2**24, 0), with_totals(1, 0), with_totals(0, whole))
    assert tally.means(one_rank)[0]["share"] == 0.5


def test_a_pass_s_totals_are_not_kept_beside_the_sum():
    outcome = with_totals(1, 1)
    shares(outcome)
    assert outcome.totals == {}


@pytest.mark.parametrize(("ranks", "world_size"), [(1, 1), (1, 2), (3, 2), (2, 1)])
def test_saved_totals_are_taken_over_once(ranks, world_size):
    state = shares(with_totals(1, 3)).state_dict(lambda values: [values] * ranks)
    tallies = [Tally(Shares()) for _ in range(world_size)]
    for rank, tally in enumerate(tallies):
        tally.load_state_dict(state, rank, world_size)
        tally.add(with_totals(1, 0), True, 1, None)
    asked = []
    for tally in tallies:
        tally.means(lambda values: asked.append(values[-2:]) or values)
    assert sum(asked).tolist() == [ranks + world_size, 3 * ranks]


def test_cleared_totals_are_gone():
    tally = shares(with_totals(1, 3))
    tally.load_state_dict(tally.state_dict(lambda values: [values]), 0, 1)
    tally.clear()
    tally.add(with_totals(1, 0), True, 1, None)
    assert tally.means(one_rank)[0]["share"] == 1.0


def test_totals_of_another_shape_than_before_are_refused():
    tally = shares(with_totals(1, 3))
    with pytest.raises(ConfigError, match=r"C220.*Outcome\.totals.*'hits': \(3,\)"):
        tally.add(with_totals(1, 2, 3), True, 1, None)


@pytest.mark.parametrize("totals", [None, {"x": 3}, {"x": torch.ones(2, device="meta")}])
def test_what_cannot_be_a_total_is_refused(totals):
    with pytest.raises(ConfigError, match=r"C220.*Outcome\.totals"):
        check_outcome(Outcome(torch.tensor(1.0), {}, 1, totals))


def test_an_objective_that_makes_no_numbers_of_its_totals_is_refused():
    with pytest.raises(ConfigError, match=r"C220.*has x.*metrics\(totals\)"):
        metrics_of(object(), {"x": torch.ones(2)})
    with pytest.raises(ConfigError, match=r"C220.*the objective's metrics"):
        metrics_of(
            type("Silent", (), {"metrics": lambda self, totals: None})(), {"x": torch.ones(2)}
        )


# ---- losses by name


def with_losses(values, **more):
    """Return the outcome of records with these losses, half of each in a part of its own."""
    result, _ = outcome(values)
    result.losses = {"half": result.loss / 2, **more}
    return result


def test_losses_by_name_are_means_over_batches_of_any_size_and_ranks():
    parts = [(with_losses([1.0, 1.0, 1.0]), True), (with_losses([5.0]), True)]
    assert means(parts, one_rank)[0]["half"] == 1.0
    parts = [(with_losses([1.0, 1.0, 1.0]), True), (with_losses([5.0]), True)]
    # the loss, "half", "hits" and the count of another rank: one record
    other = torch.tensor([6.0, 3.0, 1.0, 1.0], dtype=torch.float64)
    averages, count = means(parts, lambda sums: sums + other)
    assert (averages["half"], averages["loss"], count) == (1.4, 2.8, 5.0)


def test_losses_by_name_are_saved_with_the_means():
    first, second = ([(with_losses([1.0, 2.0]), True)], [(with_losses([7.0]), True)])
    state = tallied(first).state_dict(lambda values: [values])
    again = tallied(second)
    again.load_state_dict(state, 0, 1)
    again.add(with_losses([7.0]), True, 1, None)
    assert again.means(one_rank)[0]["half"] == pytest.approx(10 / 6)


def test_a_loss_by_name_holds_no_graph_and_a_filler_counts_as_nothing():
    filler, own = with_losses([9.0]), with_losses([1.0])
    assert means([(own, True), (filler, False)], one_rank)[0]["half"] == 0.5
    assert not own.sums["half"].requires_grad


@pytest.mark.parametrize(
    "losses",
    [
        {"loss": torch.ones(())},
        {"hits": torch.ones(())},
        {"a": torch.ones(2)},
        {"a": 1.0},
        [torch.ones(())],
    ],
)
def test_what_cannot_be_a_loss_by_name_is_refused(losses):
    result, _ = outcome([1.0])
    result.losses = losses
    with pytest.raises(ConfigError, match=r"C220.*Outcome.losses"):
        check_outcome(result)


# ------------------------------------------------------------------------------------------- arrays


def with_array(*rows, loss=1.0, count=1):
    return Outcome(torch.tensor(loss), {"confusion": torch.tensor(rows)}, count)


def test_an_array_in_sums_stays_one_and_adds_up_over_passes_and_ranks():
    tally = Tally()
    for step, rows in enumerate(([[1, 0], [0, 2]], [[0, 3], [0, 1]]), 1):
        tally.add(with_array(*rows), True, step, None)
    means, count, arrays = tally.results(lambda sums: 2 * sums)
    assert (means, count) == ({"loss": 1.0}, 4.0)
    assert arrays["confusion"].tolist() == [[2, 6], [0, 6]]


def test_arrays_of_fillers_and_of_bad_losses_are_left_out():
    tally = Tally()
    tally.add(with_array([1, 1]), True, 1, None)
    tally.add(with_array([5, 5], loss=float("nan")), True, 2, None)
    tally.add(with_array([7, 7]), False, 3, None)
    assert tally.results(one_rank).arrays["confusion"].tolist() == [[1, 1]]


def test_an_array_stands_beside_sums_and_totals():
    outcome = Outcome(torch.tensor(1.0), {"n": torch.tensor(2.0), "x": torch.ones(2, 2)}, 1)
    outcome.totals = {"hits": torch.tensor([1, 0])}
    tally = Tally(Shares())
    tally.add(outcome, True, 1, None)
    means, _, arrays = tally.results(one_rank)
    assert means == {"loss": 1.0, "n": 2.0, "share": 1.0}
    assert list(arrays) == ["x"]


def test_an_array_is_in_sums_or_in_totals():
    outcome = with_array([1, 1])
    outcome.totals = {"confusion": torch.ones(2)}
    with pytest.raises(ConfigError, match=r"C220.*in Outcome\.sums and in Outcome\.totals"):
        Tally().add(outcome, True, 1, None)


def test_saved_arrays_go_on():
    first, second = Tally(), Tally()
    first.add(with_array([1, 2]), True, 1, None)
    second.load_state_dict(first.state_dict(lambda values: [values]), 0, 1)
    second.add(with_array([10, 20]), True, 2, None)
    assert second.results(one_rank).arrays["confusion"].tolist() == [[11, 22]]


def test_predictions_are_not_kept():
    outcome = with_array([1, 1])
    outcome.predictions = (torch.ones(3), torch.ones(3))
    Tally().add(outcome, True, 1, None)
    assert outcome.predictions is None


@pytest.mark.parametrize(
    ("progress", "plan", "steps"),
    [
        (Progress(), TrainPlan(4), 40),
        (Progress(step=23, epoch=2, epoch_step=3), TrainPlan(4), 40),
        (Progress(step=23, epoch=2, epoch_step=3), TrainPlan(4, max_steps=30), 30),
        (Progress(step=8, epoch=2), TrainPlan(4), 28),  # resumed with other batches
        (Progress(step=40, epoch=4), TrainPlan(6), 60),  # a finished run with more epochs
        (Progress(step=40, epoch=4), TrainPlan(2), 40),  # and with less
    ],
)
def test_a_run_has_the_steps_it_has_taken_and_those_of_the_epochs_that_are_left(
    progress, plan, steps
):
    assert progress.total_steps(plan, 10) == steps


EVERY = st.none() | st.integers(1, 9)


@given(
    st.integers(1, 9),
    EVERY,
    EVERY,
    st.integers(1, 12),
    st.integers(1, 40),
    st.sets(st.integers(0, 40)),
)
def test_between_two_steps_that_are_due_there_is_nothing_to_do(
    report, validate, save, epoch_steps, last_step, thaws
):
    plan = TrainPlan(9, report_every=report, validate_every=validate, save_every=save)
    due = {
        step
        for step in range(1, last_step + 1)
        if step % report == 0
        or step % epoch_steps == 0
        or plan.validates(step, ends_epoch=False)
        or plan.saves(step)
        or step in thaws
        or step == last_step
    }
    steps, step = set(), 0
    while step < last_step:
        # when an epoch ends, its steps are still counted, or no more
        counted = {step % epoch_steps, step and (step - 1) % epoch_steps + 1}
        (step,) = {
            next_due(plan, Progress(step=step, epoch_step=number), epoch_steps, last_step, thaws)
            for number in counted
        }
        steps.add(step)
    assert steps == due
