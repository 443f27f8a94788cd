"""What an objective owns is trained and saved with the model."""

from collections import deque

import pytest
import torch
from torch import nn

from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.objective import classify, own_loss
from framework.parallel.none import NoParallel
from framework.train.objective_state import ObjectiveState, evaluating, untouched
from tests.fakes import CPU, FakeCheckpoints, make_model
from tests.parallel.launching import of_two_ranks
from tests.train.owned import ByCenters, Centers, Deep, learned_with_centers, trainer_of
from tests.train.states import same

ALONE = NoParallel(device=CPU)


def test_weights_of_an_objective_are_trained_with_the_models():
    objective = ByCenters()
    trainer_of(objective, ALONE).fit()
    learned = objective.centers.weights.flatten().tolist()
    assert learned == pytest.approx(learned_with_centers(), rel=1e-12)


def test_weights_of_a_loss_inside_ours_are_found():
    objective = own_loss.OwnLoss("x", "y", {"own": Centers(), "torch": nn.CrossEntropyLoss()})
    owned = ObjectiveState(objective, ALONE)
    assert list(owned.weights.values()) == ["objective.losses.own.weights"]
    assert owned.note == "9 weights of the objective are trained, too: objective.losses.own.weights"


def test_two_ranks_train_the_same_weights(tmp_path_factory):
    first, second = of_two_ranks("owned", tmp_path_factory)
    assert first["weights"] == pytest.approx(learned_with_centers(), rel=1e-9)
    assert (first["weights"], first["mean"]) == (second["weights"], second["mean"])
    assert [first["own"], second["own"]] == [[0], [1]]  # after a resume, each rank has its own


class Remembering(ByCenters):
    """Weighs its loss by what it has seen, in values of several kinds."""

    def __init__(self, seed=5):
        super().__init__(seed)
        self.average = None
        self.seen = []
        self.queue = torch.zeros(4, dtype=torch.float64)

    def __call__(self, model, batch):
        outcome = super().__call__(model, batch)
        if model.training:
            loss = float(outcome.loss.detach())
            self.average = loss if self.average is None else 0.9 * self.average + 0.1 * loss
            self.seen.append(len(batch["x"]))
            self.queue = torch.cat([self.queue[1:], torch.tensor([loss], dtype=torch.float64)])
        scale = 1 + (self.average or 0) + len(self.seen) + self.queue.sum()
        return Outcome(outcome.loss * scale, {})


class Saving(Remembering):
    """Says itself what its state is."""

    def state_dict(self):
        return {"average": self.average, "queue": self.queue, "seen": self.seen}

    def load_state_dict(self, state):
        vars(self).update(state)


class SavingModule(nn.Module):
    """A module that keeps a number beside its parameters."""

    def __init__(self):
        super().__init__()
        self.inside = Remembering()
        self.steps = 0

    def forward(self, model, batch):
        self.steps += model.training
        outcome = self.inside.centers(model(batch["x"]), batch["y"])
        return Outcome(outcome * (1 + self.steps), {})

    def better(self, new, old):
        return new["loss"] < old["loss"]


@pytest.mark.parametrize("kind", [Remembering, SavingModule, Deep])
def test_a_resumed_run_continues_what_the_objective_remembers(kind):
    saved = [FakeCheckpoints() for _ in range(3)]
    trainer_of(kind(), ALONE, epochs=4, checkpoints=saved[0]).fit()
    trainer_of(kind(), ALONE, epochs=2, checkpoints=saved[1]).fit()
    second = trainer_of(kind(), ALONE, epochs=4, checkpoints=saved[2])
    second.load_state_dict(saved[1].saved[-1][0])
    second.fit()
    whole, resumed = ({**own.saved[-1][0], "trained_s": 0} for own in (saved[0], saved[2]))
    assert same(whole, resumed)


def test_a_plain_object_may_say_itself_what_its_state_is():
    first, second = Saving(), Saving()
    trainer_of(first, ALONE, epochs=1).fit()
    state = ObjectiveState(first, ALONE).state_dict()
    ObjectiveState(second, ALONE).load_state_dict(state)
    assert (second.average, second.seen) == (first.average, first.seen)
    assert state["of_ranks"][0]["values"] == {}


def test_a_value_that_no_state_holds_is_warned_of_once():
    printed = []
    objective = ByCenters()
    objective.kept, objective.constant = None, deque([1])
    owned = ObjectiveState(objective, ALONE, printed.append)
    owned.state_dict()
    assert printed == []
    objective.kept = deque([1])
    owned.state_dict()
    owned.state_dict()
    (warning,) = printed
    assert warning.startswith("warning: objective.kept is deque: a resumed run begins with it anew")


@pytest.mark.parametrize("objective", [ByCenters(), Saving()], ids=["weights", "state"])
def test_what_cannot_keep_it_refuses_it(objective):
    with pytest.raises(ConfigError, match=r"C392\]: objective: owns objective.*, and it is so; "):
        ObjectiveState(objective, ALONE).check("it is so")
    ObjectiveState(own_loss.OwnLoss("x", "y", {"loss": nn.MSELoss()}), ALONE).check("it is so")


def test_weights_and_lists_keep_their_place_on_a_resume():
    objective = Deep()
    owned = ObjectiveState(objective, ALONE)
    assert list(owned.weights.values()) == [
        "objective.parts.heads.0",
        "objective.scale.func.layer.weights",
    ]
    before = [objective.parts, objective.parts["heads"], *owned.weights]
    owned.load_state_dict(ObjectiveState(Deep(), ALONE).state_dict())
    after = [objective.parts, objective.parts["heads"], *ObjectiveState(objective, ALONE).weights]
    assert list(map(id, before)) == list(map(id, after))


def test_calls_that_are_undone_leave_no_trace():
    objective, untried = Deep(), Deep()
    batch = {"x": torch.ones(4, 4, dtype=torch.float64), "y": torch.zeros(4, dtype=torch.long)}
    with untouched(objective):
        objective(make_model(), batch).loss.backward()
        objective.made_now = Centers()
        assert objective.last is not None
    assert "made_now" not in vars(objective)
    assert all(weight.grad is None for weight in ObjectiveState(objective, ALONE).weights)
    model = make_model()
    assert objective(model, batch).loss == untried(model, batch).loss


class Lazy(ByCenters):
    """Makes its module in the first call."""

    def __init__(self):
        self.first = None

    def __call__(self, model, batch):
        self.model, self.weight = model, next(model.parameters())  # these are not its own
        self.first = self.first or Centers()


class Changing(ByCenters):
    def __init__(self):
        self.average = 0.0

    def __call__(self, model, batch):
        self.average += 1
        self.model = model


def test_what_a_call_makes_is_refused():
    objective = Lazy()
    owned, model = ObjectiveState(objective, ALONE), make_model()
    objective(model, {})
    with pytest.raises(ConfigError, match=r"makes objective\.first.weights in a call"):
        owned.check_called(model)


def test_what_a_second_call_changes_may_be_refused():
    objective = Changing()
    owned, model = ObjectiveState(objective, ALONE), make_model()
    objective(model, {})
    first = owned.check_called(model)
    owned.check_unchanged(first, "it is so")  # what only the first call sets is no state
    objective(model, {})
    with pytest.raises(ConfigError, match=r"changes objective\.average, and it is so"):
        owned.check_unchanged(first, "it is so")


def test_a_module_without_sizes_is_refused():
    objective = ByCenters()
    objective.centers = nn.LazyLinear(3)
    with pytest.raises(ConfigError, match=r"owns objective\.centers\.weight, whose size"):
        ObjectiveState(objective, ALONE)


def test_validation_evaluates_the_modules_of_an_objective():
    objective = ByCenters()
    objective.teacher = nn.Dropout().eval()
    with evaluating(objective):
        assert not objective.centers.training
    assert (objective.centers.training, objective.teacher.training) == (True, False)


class TwoRanks(NoParallel):
    """The first of two ranks, of which the other one has no gradients."""

    world_size = 2


def test_a_weight_without_a_gradient_on_any_rank_gets_none():
    objective = ByCenters()
    objective.idle = nn.Linear(2, 2)
    owned = ObjectiveState(objective, TwoRanks(device=CPU))
    objective.centers.weights.grad = torch.ones(3, 3, dtype=torch.float64)
    owned.average_gradients()
    assert objective.centers.weights.grad.sum() == 4.5
    assert objective.idle.weight.grad is None


def test_an_objective_of_ours_owns_nothing():
    assert not ObjectiveState(classify.Classify("x", "y", 0.0), ALONE).is_there
