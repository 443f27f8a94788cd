"""Captured steps. A stand-in repeats captured work call by call; on CUDA the graph itself does."""

import pytest
import torch
from torch import nn

from framework.errors import ResourceError
from framework.measure.clock import make_clock
from framework.objective.scores import ClassObjective
from framework.parallel.none import NoParallel
from framework.precision.fp32 import FP32
from framework.schedule.plateau import Plateau
from framework.train import cuda_graph, weights
from tests.fakes import FakeClock, FakeLoader, FakeSink, make_data, make_trainer
from tests.train.states import same

CUDA = torch.device("cuda")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")


@pytest.fixture(autouse=True)
def few_slots(monkeypatch):
    """Let the slots of captured steps be used again soon."""
    monkeypatch.setattr(cuda_graph, "NUM_SLOTS", 4)


class Counting(ClassObjective):
    """Classifies, and also returns an array and totals, whose newest values are the step's."""

    def __init__(self):
        super().__init__("x", "y", -100)

    def __call__(self, model, batch):
        logits = model(batch["x"])
        outcome = self.outcome(
            model, nn.functional.cross_entropy(logits, batch["y"]), logits, batch["y"]
        )
        outcome.sums["logits"] = logits.detach().sum(0, keepdim=True)
        outcome.totals = {"largest": logits.detach().amax(0)}
        return outcome

    def metrics(self, totals):
        return {"largest": float(totals["largest"].sum())}


class Again:
    """A recorder whose captured work is done again, as a graph does it."""

    def __init__(self):
        self.asides = self.captures = self.replays = 0

    def aside(self, work):
        self.asides += 1
        return work()

    def capture(self, work):
        self.captures += 1

        def replay():
            self.replays += 1
            work()

        return replay


class Refuses(Again):
    def capture(self, work):
        raise RuntimeError("operation not permitted\nwhen stream is capturing")


class Halving:
    """A schedule whose rates are the same in float32."""

    def __call__(self, step, total):
        return 0.5 ** (step // 4)


def small_model():
    torch.manual_seed(0)
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    return nn.Sequential(*layers)


def trainer(recorder, records=18, model=None, optimizer=torch.optim.SGD, **parts):
    """Return a Trainer whose epochs have whole batches of four and a short one, and its sink."""
    model, sink = model or small_model(), FakeSink()
    own = optimizer(model.parameters(), lr=0.125, fused=True)
    parts = {"epochs": 3, "report_every": 1, "schedule": Halving(), "optimizer": own, **parts}
    data = make_data(records, torch.float32)
    return make_trainer(data, 4, model=model, recorder=recorder, sinks=[sink], **parts), sink


def trained(recorder, state=None, **parts):
    """Train, and return the losses, the rates, and all weights and averages."""
    own, sink = trainer(recorder, **parts)
    torch.manual_seed(1)
    if state is not None:
        own.load_state_dict(state)
    own.fit()
    reports = [(report.means, report.arrays, report.learning_rate) for report in sink.of("train")]
    return reports, own.stepper.model.state_dict(), own.stepper.weights()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_captured_steps_learn_what_others_learn(optimizer):
    recorder, clock = Again(), FakeClock()
    parts = {"optimizer": optimizer, "clip_norm": 1.0, "ema": 0.9, "objective": Counting()}
    captured = trained(recorder, clock=clock, **parts)
    assert same(captured, trained(None, **parts))
    assert len({rate for *_, rate in captured[0]}) == 4
    assert same(trained(Again(), report_every=7, **parts), trained(None, report_every=7, **parts))
    assert (recorder.asides, recorder.captures) == (cuda_graph.WARM_UPS, 1)
    assert recorder.replays == 3 * 4 - cuda_graph.WARM_UPS  # short batches are run as they are
    assert clock.marks[:11] == ["forward", "optimizer", "report"] * 3 + ["forward", "report"]


@pytest.mark.parametrize("words", [{"every": 3, "ramp": 1.0}, {}], ids=["now and then", "always"])
def test_an_average_that_looks_ahead_is_the_same_with_captured_steps(words):
    def learned(recorder):
        model = small_model()
        average = weights.Average(model, 0.5, lookahead=True, **words)
        return trained(recorder, model=model, average=average)

    recorder = Again()
    assert same(learned(recorder), learned(None))
    assert recorder.replays > 0


def test_captured_steps_follow_a_validation_that_lowers_the_rate():
    def learned(recorder):
        plateau = Plateau("loss", "min", 0.5, patience=0, threshold=0.5)
        val = FakeLoader(make_data(16, torch.float32), 4)
        return trained(recorder, records=16, schedule=plateau, val=val, validate_every=2)

    captured = learned(Again())
    assert same(captured, learned(None))
    assert len({rate for *_, rate in captured[0]}) > 4


@pytest.mark.parametrize(
    ("first", "second"), [(Again, None), (None, Again)], ids=["captured first", "captured later"]
)
def test_steps_resume_from_a_state_of_the_other_kind(first, second):
    parts = {"records": 16, "optimizer": torch.optim.AdamW, "order": {"seed": 3}}
    half, _ = trainer(first and first(), max_steps=6, **parts)
    torch.manual_seed(1)
    half.fit()
    resumed = trained(second and second(), half.state_dict(), **parts)
    assert same(resumed[1], trained(None, **parts)[1])


def test_an_epoch_that_begins_with_a_short_batch_is_captured_later():
    recorder = Again()
    trained(recorder, records=6, order={"shuffle": False})  # 4 and 2, in turn
    assert recorder.captures == 0
    trained(recorder, records=16)
    assert recorder.captures == 1


class Named(FakeLoader):
    """A loader whose batches have names, too."""

    def epoch(self, epoch, start=0):
        for micro in super().epoch(epoch, start):
            yield micro._replace(batch={**micro.batch, "name": ["a name"] * len(micro.batch["y"])})


class Rows(nn.Module):
    """A model whose gradient is sparse."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(3, 4, sparse=True)
        nn.init.ones_(self.rows.weight)

    def forward(self, x):
        return x @ self.rows(torch.arange(3)).t()


@pytest.mark.parametrize(
    ("recorder", "parts", "why"),
    [
        pytest.param(
            Again,
            lambda: {"train": Named(make_data(18, torch.float32), 4)},
            "the batch has values that are no tensors",
            id="texts in the batch",
        ),
        pytest.param(
            Refuses, dict, "operation not permitted when stream is capturing", id="a refusal"
        ),
        pytest.param(
            Again,
            lambda: {"model": Rows()},
            "no fused optimizer takes sparse gradients",
            id="sparse gradients",
        ),
    ],
)
def test_a_step_that_cannot_be_captured_ends_the_run_and_says_why(recorder, parts, why):
    with pytest.raises(ResourceError, match=rf"R111.*the step cannot be captured \({why}\); leave"):
        trained(recorder(), **parts())


def trained_on_cuda(recorder, model=None, optimizer=torch.optim.SGD):
    """Return the losses of twenty epochs."""
    train = FakeLoader(make_data(18, torch.float32), 4, device=CUDA)
    parts = {"parallel": NoParallel(device=CUDA), "precision": FP32(tf32=False, device=CUDA)}
    parts |= {"train": train, "clock": make_clock(CUDA)}
    model = (model or small_model()).to(CUDA)
    return trained(recorder, model=model, optimizer=optimizer, epochs=20, **parts)[0]


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_graph_learns_what_kernels_learn(optimizer):
    captured = trained_on_cuda(cuda_graph.CudaRecorder(CUDA), optimizer=optimizer)
    assert captured == trained_on_cuda(None, optimizer=optimizer)
