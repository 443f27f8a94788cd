import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.parallel.virtual import PairwiseSum
from framework.train.checkpoint import newest_path, read_state
from tests.cli.command import EXAMPLES, losses, paceline
from tests.parallel.launching import of_two_ranks

# Everything that could reveal how the work was shared: batch norm, momentum, an average, clipping,
# dropout, and a short last batch in each epoch.
COMMON = [
    *("model=resnet9", "model.in_channels=1", "model.width=4", "batch_size=100", "limit=450"),
    *("epochs=2", "report_every=3", "ema_decay=0.9", "clip_norm=1.0", "sink=[jsonl]"),
    "parallel=virtual",
]


@given(st.integers(1, 40), st.data())
def test_sums_of_aligned_runs_are_inside_the_sum_of_all(count, data):
    torch.manual_seed(count)
    values = [torch.randn(5) * 10.0 ** (number % 7) for number in range(count)]
    divisors = [n for n in range(1, count + 1) if count % n == 0]
    fitting = [n for n in divisors if n == 1 or (count // n).bit_count() == 1]
    groups = data.draw(st.sampled_from(fitting))
    each = count // groups
    whole = PairwiseSum(entry.clone() for entry in values).total()
    parts = [
        PairwiseSum(entry.clone() for entry in values[first : first + each]).total()
        for first in range(0, count, each)
    ]
    assert PairwiseSum(parts).total().tolist() == whole.tolist()
    assert whole.double().tolist() == pytest.approx(
        torch.stack(values).double().sum(0).tolist(), rel=1e-4, abs=1
    )


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return of_two_ranks("virtual", tmp_path_factory)


@pytest.mark.slow
def test_every_rank_starts_with_rank_0_s_weights(ranks):
    assert [facts["start"] for facts in ranks] == [ranks[0]["start"]] * 2
    assert ranks[0]["own_start"] != ranks[1]["own_start"]


def test_gradients_are_means_over_the_virtual_ranks(ranks):
    for facts in ranks:
        assert facts["gradients"].keys() == facts["expected_gradients"].keys()
        for name, expected in facts["expected_gradients"].items():
            assert facts["gradients"][name] == pytest.approx(expected, rel=1e-6)
        assert facts["gradients"] == ranks[0]["gradients"]


def test_between_passes_no_gradient_is_left(ranks):
    assert all(facts["between"] == [True] for facts in ranks)


def test_statistics_are_means_over_the_virtual_ranks_and_counted_once_a_step(ranks):
    for facts in ranks:
        assert facts["running_mean"] == pytest.approx(facts["expected_mean"], rel=1e-6)
        assert facts["counted"] == 2
        assert facts["calls"] == 2.0
        assert facts["whole_number"] == facts["expected_whole_number"]
        assert facts["constants"] == ["-inf", str(torch.finfo(torch.float32).max), 2**40 + 1]


def test_a_model_whose_forward_leaves_traces_for_the_next_part_is_refused(ranks):
    for facts in ranks:
        moved, added, other, synced = facts["refused"]
        assert moved.startswith("error[C146]: model: forward changes head.weight, ")
        assert added.startswith("error[C146]: model: forward adds, removes or reshapes late, ")
        assert other.startswith("error[C146]: model: forward adds, removes or reshapes calls, ")
        assert synced.startswith("error[C146]: model: SyncBatchNorm looks at other processes'")


def test_a_parameter_has_a_gradient_only_if_some_part_used_it(ranks):
    for facts in ranks:
        assert "unused" not in facts["gradients"]
        assert "seldom" in facts["gradients"]


def test_each_virtual_rank_draws_its_own_numbers_and_others_at_each_step(ranks):
    drawn = [entry for facts in ranks for entry in facts["drawn"]]
    assert len(drawn) == len({tuple(entry) for entry in drawn}) == 8


def test_a_pass_that_fails_ends_its_step(ranks):
    assert all(facts["after_failure"] == facts["gradients"] for facts in ranks)


def train(run_dir, *words):
    done = paceline("train", *words, f"hydra.run.dir={run_dir}")
    assert done.code == 0, done.err
    return done


def facts(run_dir):
    """Return losses, validations, weights, their average, moments and the loss's scale."""
    state = read_state(newest_path(Path(run_dir)))
    parts = ("model", "average", "optimizer", "precision", "progress")
    learned = {part: state[part] for part in parts}
    text = json.dumps(learned, default=lambda value: value.tolist())
    return losses(Path(run_dir)), losses(Path(run_dir), "val"), text


FUSED = [
    *("optim=adamw", "+optim.fused=true", "channels_last=true", "augment=mixup"),
    *("augment.num_classes=10", "last=wrap"),
]
SCALED = [
    *("precision=amp", "precision.dtype=fp16", "on_nan=skip", "parallel.virtual_ranks=6"),
    *("workers.num=2", "loader=prefetch"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "counts"),
    [([], (1, 2, 4)), (["precision=amp"], (1, 4)), (FUSED, (2, 4)), (SCALED, (1, 3))],
    ids=["plain", "bf16", "fused", "fp16"],
)
def test_any_number_of_processes_learns_the_same_bits(words, counts):
    for count in counts:
        train(f"of-{count}", *COMMON, *words, f"parallel.num_processes={count}")
    first, *others = [facts(f"of-{count}") for count in counts]
    assert len(first[0]) == 5
    assert all(other == first for other in others)


@pytest.mark.slow
def test_with_dropout_a_run_goes_on_with_another_number_of_processes_as_if_nothing_had_been(
    tmp_path,
):
    chips = [*EXAMPLES, "recipes=chips", "model.image_size=32", "batch_size=16", "epochs=3"]
    chips += ["report_every=1", "sink=[jsonl]"]
    for split in ("train", "val"):
        chips += [f"prepare.{split}.input.{key}" for key in ("items=56", "call.size=40")]
    chips += ["parallel=virtual", f"dataset={tmp_path}/chips"]
    train("whole", *chips, "parallel.num_processes=2")
    train("parts", *chips, "parallel.num_processes=4", "max_steps=5")
    for count, steps in ((1, 7), (2, 12)):
        words = [f"parallel.num_processes={count}", f"max_steps={steps}"]
        done = paceline("train", "resume=parts", EXAMPLES[-1], *words)
        assert done.code == 0, done.err
    (parts, _, learned), (whole, _, expected) = facts("parts"), facts("whole")
    assert parts == whole
    assert learned == expected


@pytest.mark.slow
def test_fused_optimizers_get_gradients_laid_out_as_the_weights():
    words = [*COMMON, *FUSED[:2], "parallel.virtual_ranks=1", "parallel.num_processes=1"]
    for layout in ("true", "false"):
        train(f"layout-{layout}", *words, f"channels_last={layout}")
    assert losses(Path("layout-true")) == pytest.approx(losses(Path("layout-false")), rel=1e-4)
