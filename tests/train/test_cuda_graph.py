"""Captured steps. A stand-in repeats captured work call by call; on CUDA the graph itself does."""

import pytest
import torch
from torch import nn

from framework.measure.clock import make_clock
from framework.objective.classify import Classify
from framework.parallel.none import NoParallel
from framework.precision.fp32 import FP32
from framework.schedule.plateau import Plateau
from framework.train.cuda_graph import WARM_UPS, CudaRecorder
from framework.train.ema import Average
from tests.fakes import FakeClock, FakeLoader, make_data, make_trainer

CUDA = torch.device("cuda")


class Again:
    """What was captured is done again: what a graph does, but for the kernels' addresses."""

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


def test_a_captured_step_has_two_marks():
    clock = FakeClock()
    data = make_data(24, torch.float32)
    trained(Again(), data=data, train=FakeLoader(data, 4), clock=clock)
    plain, captured = clock.marks[:5], clock.marks[-2:]
    assert captured == ["forward", "report"]
    assert "optimizer" in plain


class Refuses(Again):
    def capture(self, work):
        raise RuntimeError("operation not permitted\nwhen stream is capturing")


class Seen:
    """A sink that keeps what training reports."""

    def __init__(self):
        self.losses, self.rates = [], []

    def write(self, report):
        self.losses.append(report.means["loss"])
        self.rates.append(report.learning_rate)

    def flush(self):
        pass

    def close(self):
        pass


class Halving:
    """A schedule whose rates are the same in float32."""

    def __call__(self, step, total):
        return 0.5 ** (step // 4)


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    )


def trained(recorder, kind="sgd", data=None, said=None, **parts):
    """Train and return the losses, the rates and the model's state.

    By default, each of the three epochs has four whole batches and a short one.
    """
    model, seen = small_model(), Seen()
    optimizer = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.9, fused=True),
        "adam": lambda: torch.optim.AdamW(model.parameters(), lr=0.125, fused=True),
    }[kind]()
    words = {
        "epochs": 3,
        "report_every": 1,
        "schedule": Halving(),
        "optimizer": optimizer,
        "model": model,
        "clip_norm": 1.0,
    }
    data = make_data(18, torch.float32) if data is None else data
    trainer = make_trainer(
        data,
        4,
        **words,
        sinks=[seen],
        recorder=recorder,
        say=([] if said is None else said).append,
        ema=0.9,
        **parts,
    )
    torch.manual_seed(1)
    trainer.fit()
    return (
        seen.losses,
        seen.rates,
        [*model.state_dict().values(), *trainer.stepper.weights().values()],
    )


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_captured_steps_learn_what_others_learn(kind):
    recorder = Again()
    losses, rates, state = trained(None, kind)
    found_losses, found_rates, found_state = trained(recorder, kind)
    assert (found_losses, found_rates) == (losses, rates)
    assert len(set(rates)) == 4
    assert all(torch.equal(tensor, other) for tensor, other in zip(found_state, state, strict=True))
    assert (recorder.asides, recorder.captures) == (WARM_UPS, 1)
    assert recorder.replays == 3 * 4 - WARM_UPS  # short batches are run as they are


@pytest.mark.parametrize("words", [{"every": 3, "ramp": 1.0}, {}])
def test_an_average_that_looks_ahead_is_the_same_with_captured_steps(words):
    def learned(recorder):
        model = small_model()
        average = Average(model, 0.5, lookahead=True, **words)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125, fused=True)
        parts = {"model": model, "average": average, "optimizer": optimizer, "recorder": recorder}
        torch.manual_seed(1)
        make_trainer(make_data(18, torch.float32), 4, epochs=3, **parts).fit()
        return [*model.state_dict().values(), *average.state_dict().values()]

    recorder = Again()
    assert all(map(torch.equal, learned(recorder), learned(None)))
    assert recorder.replays > 0


class Named(FakeLoader):
    """Whose batches have names, too."""

    def epoch(self, epoch, start=0):
        for micro in super().epoch(epoch, start):
            yield micro._replace(batch={**micro.batch, "name": ["a name"] * len(micro.batch["y"])})


def test_steps_of_batches_with_strings_are_not_captured_and_this_is_said_once():
    said, recorder, data = [], Again(), make_data(18, torch.float32)
    assert trained(recorder, said=said, train=Named(data, 4))[0] == trained(None)[0]
    assert recorder.captures == 0
    assert len(said) == 1
    assert "values that are no tensors" in said[0]


def test_a_step_that_cannot_be_captured_is_run_as_it_is_and_said_once():
    said = []
    assert trained(Refuses(), said=said)[0] == trained(None)[0]
    assert said == [
        (
            "note: cuda_graph=true: the step cannot be captured "
            "(operation not permitted when stream is capturing); it runs kernel by kernel"
        )
    ]


class Rows(nn.Module):
    """A model whose gradient is sparse."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(3, 4, sparse=True)

    def forward(self, x):
        return x @ self.rows(torch.arange(3)).t()


def test_sparse_gradients_are_stepped_kernel_by_kernel_with_a_note():
    said = []

    def losses(recorder):
        torch.manual_seed(0)
        model, seen = Rows(), Seen()
        fused = recorder is not None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125, fused=fused)
        trainer = make_trainer(
            make_data(18, torch.float32),
            4,
            epochs=2,
            report_every=1,
            model=model,
            optimizer=optimizer,
            sinks=[seen],
            recorder=recorder,
            say=said.append,
        )
        trainer.fit()
        return seen.losses

    assert losses(Again()) == losses(None)
    [note] = said
    assert "no fused optimizer takes sparse gradients" in note


def test_an_epoch_that_begins_with_a_short_batch_is_captured_later():
    recorder = Again()
    trained(
        recorder, order={"shuffle": False}, data=make_data(6, torch.float32)
    )  # 4 and 2, in turn
    assert recorder.captures == 0
    trained(recorder, data=make_data(16, torch.float32))
    assert recorder.captures == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_graph_learns_what_kernels_learn(kind):
    def run(recorder):
        data = {name: tensor.to(CUDA) for name, tensor in make_data(18, torch.float32).items()}
        model = small_model().to(CUDA)
        fused = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}[kind](
            model.parameters(), lr=0.125, fused=True
        )
        seen = Seen()
        words = {
            "epochs": 20,
            "report_every": 1,
            "schedule": Halving(),
            "optimizer": fused,
            "model": model,
            "sinks": [seen],
        }
        words |= {
            "train": FakeLoader(data, 4, device=CUDA),
            "objective": Classify("x", "y", 0.0),
            "recorder": recorder,
        }
        words |= {
            "parallel": NoParallel(device=CUDA),
            "precision": FP32(tf32=False, device=CUDA),
            "clock": make_clock(CUDA),
        }
        trainer = make_trainer(**words)
        torch.manual_seed(1)
        trainer.fit()
        return seen.losses

    assert run(CudaRecorder(CUDA)) == run(None)


class Reading(nn.Module):
    """Looks at what it computes, which no capture allows."""

    def __init__(self):
        super().__init__()
        self.head, self.drop = nn.Linear(4, 3), nn.Dropout(0.5)

    def forward(self, x):
        return self.head(self.drop(x)) if bool((x < 1e9).all()) else self.head(x)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_a_capture_that_fails_leaves_the_device_as_it_was():
    def run(recorder):
        torch.manual_seed(0)
        model, seen, said = Reading().to(CUDA), Seen(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125, fused=True)
        train = FakeLoader(make_data(16, torch.float32), 4, device=CUDA)
        words = {
            "epochs": 5,
            "report_every": 1,
            "schedule": Halving(),
            "optimizer": optimizer,
            "model": model,
            "sinks": [seen],
        }
        words |= {
            "parallel": NoParallel(device=CUDA),
            "precision": FP32(tf32=False, device=CUDA),
            "clock": make_clock(CUDA),
        }
        torch.manual_seed(1)
        make_trainer(**words, train=train, recorder=recorder, say=said.append).fit()
        return seen.losses, said

    losses, said = run(CudaRecorder(torch.device("cuda", 0)))
    assert len(said) == 1
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert losses == run(None)[0]


def test_other_steps_resume_from_a_state_of_captured_steps():
    data = make_data(16, torch.float32)

    def make(recorder, epochs):
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.125, fused=True)
        return make_trainer(
            data,
            4,
            model=model,
            optimizer=optimizer,
            epochs=epochs,
            recorder=recorder,
            order={"seed": 3},
        )

    whole, half = make(None, 4), make(Again(), 2)
    torch.manual_seed(1)
    whole.fit()
    torch.manual_seed(1)
    half.fit()
    state = half.state_dict()
    again = make(None, 4)
    again.load_state_dict(state)
    again.fit()
    for parameter, other in zip(
        again.parts.model.parameters(), whole.parts.model.parameters(), strict=True
    ):
        assert torch.equal(parameter, other)


def test_captured_steps_that_resume_follow_the_schedule():
    def make(recorder, max_steps):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125, fused=True)
        words = {"model": model, "optimizer": optimizer, "schedule": Halving()}
        data = make_data(16, torch.float32)
        return make_trainer(data, 4, epochs=4, max_steps=max_steps, recorder=recorder, **words)

    whole, half = make(None, 16), make(None, 2)
    for trainer in (whole, half):
        torch.manual_seed(1)
        trainer.fit()
    state = half.state_dict()
    again = make(Again(), 16)
    again.load_state_dict(state)
    again.fit()
    pairs = zip(again.parts.model.parameters(), whole.parts.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_captured_steps_follow_a_validation_that_lowers_the_rate():
    def run(recorder):
        plateau = Plateau("loss", "min", 0.5, patience=0, threshold=0.5)
        data, model, seen = make_data(16, torch.float32), small_model(), Seen()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125, fused=True)
        words = {"model": model, "optimizer": optimizer, "schedule": plateau, "sinks": [seen]}
        val = FakeLoader(data, 4)
        plan = {"epochs": 4, "report_every": 1, "validate_every": 2}
        torch.manual_seed(1)
        make_trainer(data, 4, val=val, recorder=recorder, **words, **plan).fit()
        return seen.losses, seen.rates

    losses, rates = run(Again())
    assert (losses, rates) == run(None)
    assert len(set(rates)) > 4
