"""A model starts from the weights in a file, all of them but those of a new head."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from framework.config import init_weights
from framework.errors import CheckpointError, ConfigError
from framework.objective.distill import Distill
from tests.cli.command import is_one_error_line, paceline
from tests.config.assembled import assembled, parts_of

INIT = {"weights": "x.pth", "average": True, "skip": [], "rename": None}


class Net(nn.Module):
    def __init__(self, num_classes=10, width=4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width))
        self.fc = nn.Linear(width, num_classes)


def save(weights):
    """Save weights as ``x.pth``."""
    torch.save(weights.state_dict() if isinstance(weights, nn.Module) else weights, "x.pth")


def start(model, num_classes=0, typed=None, **init):
    config = {"init": {**INIT, **init}, "model": typed or {}}
    return init_weights.start_from_weights(model, Path("x.pth"), config, num_classes)


def refusal(model, **options):
    """Return the line that refuses the file, which must leave the model as it was."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises((CheckpointError, ConfigError)) as raised:
        start(model, **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return str(raised.value)


def test_all_weights_of_the_same_model_are_loaded():
    save(theirs := Net())
    assert start(ours := Net()) == "init: loaded 9 of 9 tensors from x.pth"
    theirs = theirs.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.state_dict().items())


@pytest.mark.parametrize(
    "sizes",
    [{"num_classes": 5}, {}, {"num_classes": 3, "typed": {"num_classes": 5}}],
    ids=["of the data", "last layer", "typed"],
)
def test_a_head_for_another_number_of_classes_is_new(sizes):
    save(theirs := Net(1000))
    note = start(ours := Net(5), **sizes)
    assert "7 of 9 tensors from x.pth; new: fc.weight, fc.bias (5 classes instead of 1000)" in note
    assert torch.equal(ours.stem[0].weight, theirs.stem[0].weight)


def test_what_is_skipped_stays_new_and_may_be_missing_or_more():
    save(Net())
    kept = (ours := Net()).fc.weight.clone()
    assert start(ours, skip=["fc"]).endswith("; new: fc.weight, fc.bias (init.skip)")
    assert torch.equal(ours.fc.weight, kept)
    stem = {f"stem.{name}": value for name, value in Net().stem.state_dict().items()}
    save({**stem, "aux.w": torch.ones(1)})
    assert start(Net(), skip=["fc", "aux.*"]).endswith("(init.skip); left out: aux.w")


@pytest.mark.parametrize(
    ("old", "new", "rename"),
    [("fc.", "head.out.", {"head.out": "fc"}), ("", "net.", {"net": ""})],
    ids=["renamed", "prefix dropped"],
)
def test_names_are_changed_by_their_first_parts(old, new, rename):
    save({re.sub(f"^{old}", new, name): value for name, value in Net().state_dict().items()})
    assert "9 of 9" in start(Net(), rename=rename)


def test_a_prefix_is_added():
    save(Net())
    assert "9 of 9" in start(nn.ModuleDict({"net": Net()}), rename={"*": "net"})


def test_weights_of_another_precision_are_cast():
    weights = Net().state_dict()
    save({name: value.half() for name, value in weights.items() if value.is_floating_point()})
    assert "8 of 9" in start(ours := Net())  # without the count of batches
    assert ours.fc.weight.dtype == torch.float32


def test_tied_weights_may_be_in_the_file_once():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    weights = model.state_dict()
    del weights["b.weight"]
    save(weights)
    assert "3 of 4" in start(model)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"fc.weight": None, "fc.bias": None},
            r"K114\]: .*lacks 2 of 9 tensors: fc.weight, fc.bias;.*'init.skip=.fc.' to",
        ),
        (
            {"aux.weight": torch.ones(1)},
            r"K114\]: .*has 1 that the model lacks: aux.weight; .*'init.skip=.aux.' to",
        ),
        ({f"x{n}.w": torch.ones(1) for n in range(99)}, r"K114\]: .*x3.w, \.\.\. \(99 in all\)"),
        ({"stem.1.bias": torch.zeros(7)}, r"K115\]: .*stem.1.bias is .7. there"),
        ({"fc.weight": torch.zeros(10, 4, 1)}, r"K115\]: .*fc.weight is .10, 4, 1. there"),
        ({"fc.weight": torch.zeros(10, 3)}, r"K115\]: .*fc.weight is .10, 3. there"),
        ({"fc.weight": torch.zeros(())}, r"K115\]: .*fc.weight is \[\] there"),
        ({"fc.bias": torch.zeros(10, dtype=torch.int64)}, r"K115\]: .*fc.bias is torch.int64"),
    ],
    ids=["missing", "more", "many", "no head", "dimensions", "width", "scalar", "whole numbers"],
)
def test_weights_that_do_not_fit_are_refused(change, words):
    weights = {**Net().state_dict(), **change}
    save({name: value for name, value in weights.items() if value is not None})
    line = refusal(Net(), num_classes=10)
    assert re.search(words, line)
    assert len(line) < 400


def test_a_layer_of_another_width_is_refused_with_the_option_that_skips_it():
    save(Net(width=8))
    line = refusal(Net(), num_classes=10)
    assert "stem.0.weight is [8, 3, 3, 3] there, and [4, 3, 3, 3] in the model" in line
    assert "init.skip=[stem]" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"skip": ["*"]}, "K116.*nothing is left to load"),
        ({"skip": ["f"]}, r"C300.*did you mean 'fc'\?"),
        ({"rename": {"fcc": "head"}}, r"C300.*did you mean 'fc'\?"),
        ({"rename": {"stem.1": "fc"}}, "C300.*gives two tensors the name fc.weight"),
    ],
    ids=["all skipped", "unknown skip", "unknown rename", "same name"],
)
def test_options_that_do_not_fit_the_file_are_refused(options, words):
    save(Net())
    assert re.search(words, refusal(Net(), **options))


def file_of_run():
    """Save a model of the default configuration with weights of its own, and return them."""
    weights = parts_of("seed=7")[1].model.state_dict()
    save(weights)
    return weights


@pytest.mark.parametrize(
    "words",
    [(), ("parallel=dp",), ("channels_last=true",), ("ema_decay=0.9",)],
    ids=["plain", "replicas", "channels last", "average"],
)
def test_weights_are_loaded_before_the_model_is_wrapped(words):
    theirs = file_of_run()
    assembly, parts = parts_of("init.weights=x.pth", *words)
    own = assembly.parallel.unwrap(parts.model).state_dict()
    assert all(torch.equal(own[name], value) for name, value in theirs.items())
    if parts.average is not None:
        assert torch.equal(parts.average.state_dict()["head.weight"], theirs["head.weight"])


def test_what_is_learned_names_the_weights():
    file_of_run()
    assert not any(key.startswith("init") for key in parts_of()[0].learns)
    digests = []
    for text in (b"", b"\0"):
        Path("x.pth").write_bytes(Path("x.pth").read_bytes() + text)
        with assembled("init.weights=x.pth") as assembly:
            digests.append(assembly.learns["init.digest"])
    assert digests[0] != digests[1]


def test_a_resumed_run_reads_no_file():
    config = init_weights.with_saved_digest({"init": {**INIT, "weights": "gone"}}, {"init": "abc"})
    assert init_weights.with_digest(config) == (config, None)
    assert config["init"]["digest"] == "abc"


def trained(*words):
    short = ("limit=64", "max_steps=2", "batch_size=16", "sink=[]", "clock=false")
    done = paceline("train", *short, *words)
    assert done.code == 0, done.err
    return done


def test_a_run_starts_from_weights_and_is_resumed_without_them():
    file_of_run()
    done = trained("hydra.run.dir=run", "init=x.pth")
    assert "note: init: loaded 20 of 20 tensors from x.pth" in done.err
    facts = json.loads(Path("run/run.json").read_text())["init"]
    assert re.fullmatch("[0-9a-f]{64}", facts["digest"])
    Path("x.pth").unlink()
    trained("resume=run", "max_steps=3")
    assert json.loads(Path("run/run.json").read_text())["init"] == facts
    file_of_run()
    done = paceline("train", "resume=run", "init=./x.pth")
    assert is_one_error_line(done, "K105")
    assert "begin a new run, since a resumed one has its weights" in done.err


def test_a_missing_file_is_refused_before_the_run_has_a_directory():
    Path("weights.pth").touch()
    done = paceline("train", "hydra.run.dir=run", "init=weigths.pth")
    assert is_one_error_line(done, "K110")
    assert "did you mean 'weights.pth'?" in done.err
    assert not Path("run").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.parametrize(
    "words",
    [
        ("parallel=ddp", "parallel.num_processes=2"),
        ("parallel=fsdp", "parallel.num_processes=2", "ema_decay=0.9"),
        ("compile=true",),
    ],
    ids=["ddp", "fsdp", "compiled"],
)
def test_ranks_and_compiled_models_start_from_the_weights(words):
    theirs = file_of_run()
    trained("optim.lr=0", "hydra.run.dir=run", "init=x.pth", *words)
    last = torch.load("run/checkpoints/last.pt", weights_only=True)
    assert torch.equal(last["head.weight"], theirs["head.weight"])


def distill(teacher, weights="x.pth"):
    return Distill("image", "label", teacher, weights, 0.5, 1.0)


def test_a_teacher_gets_its_weights():
    save(model := nn.Linear(2, 3))
    objective = distill(nn.Linear(2, 3))
    init_weights.load_teacher(objective, print)
    assert torch.equal(objective.teacher.weight, model.weight)


def test_a_teacher_without_weights_is_noted():
    notes = []
    init_weights.load_teacher(distill(nn.Linear(2, 3), weights=None), notes.append)
    assert notes == [
        "note: objective.weights = null: the teacher keeps the weights it was built with"
    ]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(2, 4), "size mismatch for weight"),
        (nn.Linear(2, 3, bias=False), 'Unexpected key.*"bias"'),
        (nn.Sequential(nn.Linear(2, 3)), 'Missing key.*"0.weight", "0.bias"'),
    ],
    ids=["shape", "more", "names"],
)
def test_the_weights_of_another_teacher_are_refused(model, words):
    save(nn.Linear(2, 3))
    with pytest.raises(ConfigError, match=f"C319.*objective.weights = x.pth: {words}"):
        init_weights.load_teacher(distill(model), print)
