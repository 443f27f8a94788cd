"""Metrics over real ranks, and runs that end on all ranks after the same step."""

import pytest
import torch

pytest.importorskip("torchmetrics")

from sklearn.metrics import confusion_matrix, f1_score, roc_auc_score

from tests.parallel import launching, rank_program

COUNTS = [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 3))]


@pytest.fixture(scope="module", params=COUNTS)
def ranks(request, tmp_path_factory):
    if request.param == 2:
        return launching.of_two_ranks("watch", tmp_path_factory)
    return launching.launched("watch", tmp_path_factory.mktemp("ranks"), request.param)


def test_metrics_are_those_of_scikit_learn_on_every_rank(ranks):
    data = rank_program.logits_and_classes()
    target, guess = data["y"], data["x"].argmax(1)
    confusion = confusion_matrix(target, guess).tolist()
    for metrics in (facts["metrics"] for facts in ranks):
        assert metrics["count"] == 10
        assert metrics["accuracy"] == pytest.approx((guess == target).double().mean().item())
        assert metrics["macro_f1"] == pytest.approx(f1_score(target, guess, average="macro"))
        shares = data["x"].softmax(1)
        assert metrics["auroc"] == pytest.approx(roc_auc_score(target, shares, multi_class="ovr"))
        assert metrics["confusion"] == metrics["own"] == confusion
        loss = torch.nn.functional.cross_entropy(data["x"], target).item()
        assert metrics["loss"] == pytest.approx(loss)


def test_a_validation_ends_the_run_on_all_ranks_at_once(ranks):
    ends = {tuple(facts["after_validation"]) for facts in ranks}
    assert len(ends) == 1
    step, reason = ends.pop()
    assert step == 40
    assert reason.startswith("no better loss in 1 validations (best: ")


def test_a_report_ends_the_run_on_all_ranks_after_the_same_step_and_with_the_same_reason(ranks):
    ends = {tuple(facts["after_report"]) for facts in ranks}
    assert len(ends) == 1
    step, reason = ends.pop()
    assert reason == "step 2 is enough"
    assert 2 < step <= 2 + 16
