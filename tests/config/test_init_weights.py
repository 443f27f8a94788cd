"""A model starts from the weights in a file, all of them but those of a new head."""

import json
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import nn

from framework.cli.compose_config import composed
from framework.config.assemble import assemble
from framework.config.init_weights import start_from_weights, with_digest, with_saved_digest
from framework.config.training_parts import training_parts
from framework.errors import CheckpointError, ConfigError
from tests.cli.command import is_one_error_line, paceline
from tests.commands.tune.test_candidate import NOBODY, config_of

SYNTHETIC = ("data=synthetic", "data.val=null", "prepare=null", "workers.num=0")
SHORT = ["limit=64", "max_steps=2", "batch_size=16", "sink=[jsonl]", "clock=false"]


class Net(nn.Module):
    def __init__(self, num_classes=10, width=4):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width))
        self.fc = nn.Linear(width, num_classes)


def saved(model_or_state, path="x.pth"):
    state = model_or_state
    if isinstance(state, nn.Module):
        state = state.state_dict()
    torch.save(state, path)
    return path


def start(model, path="x.pth", num_classes=0, skip=(), rename=None, **typed):
    init = {"weights": path, "average": True, "skip": list(skip), "rename": rename}
    return start_from_weights(model, Path(path), {"init": init, "model": typed}, num_classes)


def refused(number, model, **options):
    """Return the line that refuses the file, which must leave the model as it was."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises((CheckpointError, ConfigError)) as raised:
        start(model, **options)
    assert str(raised.value).startswith(f"error[{number}]: ")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return str(raised.value)


# ------------------------------------------------------------------------------- what is loaded


def test_all_weights_of_the_same_model_are_loaded():
    saved(theirs := Net())
    assert start(ours := Net()) == "init: loaded 9 of 9 tensors from x.pth"
    theirs = theirs.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.state_dict().items())


@pytest.mark.parametrize("sizes", [{"num_classes": 5}, {}], ids=["classes known", "last layer"])
def test_a_head_for_another_number_of_classes_is_new(sizes):
    saved(theirs := Net(1000))
    note = start(ours := Net(5), **sizes)
    assert note.endswith(
        "7 of 9 tensors from x.pth; new: fc.weight, fc.bias (5 classes instead of 1000)"
    )
    assert torch.equal(ours.stem[0].weight, theirs.stem[0].weight)


def test_the_typed_number_of_classes_counts_before_that_of_the_data():
    saved(Net(1000))
    config = {"weights": "x.pth", "average": True, "skip": [], "rename": None}
    block = {"init": config, "model": {"num_classes": 5}}
    assert "5 classes" in start_from_weights(Net(5), Path("x.pth"), block, num_classes=3)


def test_a_layer_that_is_no_head_must_have_the_same_width():
    saved(Net(10, width=8))
    line = refused("K115", Net(), num_classes=10)
    assert "stem.0.weight is [8, 3, 3, 3] there, and [4, 3, 3, 3] in the model" in line
    assert "init.skip=[stem]" in line


def test_a_size_that_only_looks_like_a_head_is_refused():
    saved({**Net(10).state_dict(), "stem.1.bias": torch.zeros(7)})
    assert "stem.1.bias is [7] there" in refused("K115", Net(5), num_classes=5)


def test_what_is_skipped_stays_new():
    saved(Net())
    kept = (ours := Net()).fc.weight.clone()
    assert start(ours, skip=["fc"]).endswith("; new: fc.weight, fc.bias (init.skip)")
    assert torch.equal(ours.fc.weight, kept)


def test_what_is_skipped_may_be_missing_or_more():
    saved(
        {"stem." + name: value for name, value in Net().stem.state_dict().items()}
        | {"aux.w": torch.ones(1)}
    )
    assert start(Net(), skip=["fc", "aux.*"]).endswith("(init.skip); left out: aux.w")


def test_names_are_changed_by_their_first_parts():
    weights = {
        name.replace("fc.", "head.out."): value for name, value in Net().state_dict().items()
    }
    saved(weights)
    assert "9 of 9" in start(Net(), rename={"head.out": "fc"})


def test_a_prefix_is_dropped_or_added():
    weights = Net().state_dict()
    saved({f"net.{name}": value for name, value in weights.items()})
    assert "9 of 9" in start(Net(), rename={"net": ""})
    saved(weights)
    assert "9 of 9" in start(nn.ModuleDict({"net": Net()}), rename={"*": "net"})


def test_weights_of_another_precision_are_cast():
    saved(
        {
            name: value.half() if value.is_floating_point() else value
            for name, value in Net().state_dict().items()
        }
    )
    start(ours := Net())
    assert ours.fc.weight.dtype == torch.float32


def test_tied_weights_may_be_in_the_file_once():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    weights = model.state_dict()
    del weights["b.weight"]
    saved(weights)
    assert "3 of 4" in start(model)


def test_counts_of_batches_may_be_missing():
    weights = Net().state_dict()
    del weights["stem.1.num_batches_tracked"]
    saved(weights)
    assert "8 of 9" in start(Net())


# ------------------------------------------------------------------------------ what is refused


def test_missing_tensors_are_named_with_the_option_that_leaves_them_new():
    weights = Net().state_dict()
    del weights["fc.weight"], weights["fc.bias"]
    saved(weights)
    line = refused("K114", Net())
    assert "lacks 2 of 9 tensors: fc.weight, fc.bias;" in line
    assert "'init.skip=[fc]' to leave them new" in line


def test_unexpected_tensors_are_named_with_the_option_that_leaves_them_out():
    saved({**Net().state_dict(), "aux.weight": torch.ones(1)})
    line = refused("K114", Net())
    assert "has 1 that the model lacks: aux.weight; " in line
    assert "'init.skip=[aux]' to leave them out" in line


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (lambda name: name.replace("fc.", "head."), '"init.rename={head: fc}"'),
        (lambda name: f"net.{name}", "\"init.rename={net: ''}\""),
        (lambda name: name.replace("stem.", ""), "give other names with 'init.rename={old: new}'"),
    ],
)
def test_the_rename_that_would_help_is_advised(change, advice):
    saved({change(name): value for name, value in Net().state_dict().items()})
    assert advice in refused("K114", Net())


def test_only_a_few_names_are_listed():
    saved({**Net().state_dict(), **{f"x{number}.w": torch.ones(1) for number in range(99)}})
    line = refused("K114", Net())
    assert "x3.w, ... (99 in all)" in line
    assert len(line) < 400


def test_a_whole_number_does_not_become_a_weight():
    saved({**Net().state_dict(), "fc.bias": torch.zeros(10, dtype=torch.int64)})
    assert "fc.bias is torch.int64 there" in refused("K115", Net())


def test_a_file_of_which_nothing_is_left_is_refused():
    saved(Net())
    assert "nothing is left to load" in refused("K116", Net(), skip=["*"])


@pytest.mark.parametrize("option", [{"skip": ["f"]}, {"rename": {"fcc": "head"}}])
def test_a_name_that_nothing_has_is_answered_with_the_nearest(option):
    saved(Net())
    assert "did you mean 'fc'?" in refused("C300", Net(), **option)


def test_two_tensors_may_not_get_one_name():
    saved({**Net().state_dict(), "head.bias": torch.zeros(10)})
    assert "gives two tensors the name fc.bias" in refused("C300", Net(), rename={"head": "fc"})


@pytest.mark.parametrize("shape", [(), (10, 4, 1), (0, 4), (10, 3)])
def test_a_tensor_of_any_other_shape_is_refused(shape):
    saved({**Net().state_dict(), "fc.weight": torch.zeros(shape)})
    assert f"fc.weight is {list(shape)} there" in refused("K115", Net(), num_classes=3)


# -------------------------------------------------------------------------------------- in a run


def parts_of(*words):
    with closing(assemble(config_of(*SYNTHETIC, *words), ())) as assembly:
        return assembly, training_parts(assembly)


def file_of(*words):
    """Save a model of this configuration with weights of its own."""
    model = parts_of("seed=7", *words)[1].model
    saved(model)
    return model.state_dict()


WRAPPED = {
    "none": [],
    "dp": ["parallel=dp"],
    "channels_last": ["channels_last=true"],
    "ema": ["ema_decay=0.9"],
}


@pytest.mark.parametrize("words", WRAPPED.values(), ids=WRAPPED)
def test_weights_are_loaded_before_the_model_is_wrapped(words):
    theirs = file_of()
    assembly, parts = parts_of("init.weights=x.pth", *words)
    own = assembly.parallel.unwrap(parts.model).state_dict()
    assert all(torch.equal(own[name], value) for name, value in theirs.items())


def test_an_average_starts_from_the_weights_that_were_loaded():
    theirs = file_of()
    average = parts_of("init.weights=x.pth", "ema_decay=0.9")[1].average
    assert torch.equal(average.state_dict()["head.weight"], theirs["head.weight"])


def test_what_is_learned_names_the_weights():
    file_of()
    plain = parts_of()[0].learns
    started = parts_of("init.weights=x.pth")[0].learns
    assert not any(key.startswith("init") for key in plain)
    Path("x.pth").write_bytes(Path("x.pth").read_bytes() + b"\0")
    assert started["init.digest"] != with_learns("x.pth")["init.digest"]


def with_learns(path):
    with closing(assemble(config_of(*SYNTHETIC, f"init.weights={path}"), ())) as assembly:
        return assembly.learns


def test_a_resumed_run_reads_no_file():
    config = {"init": {"weights": "gone.pth", "average": True, "skip": [], "rename": None}}
    config = with_saved_digest(config, {"init": "abc"})
    assert with_digest(config) == (config, None)
    assert config["init"]["digest"] == "abc"


def trained(*words):
    done = paceline("train", *SHORT, *words)
    assert done.code == 0, done.err
    return done


def test_a_run_starts_from_weights_and_is_resumed_without_them():
    file_of()
    done = trained("hydra.run.dir=run", "init=x.pth")
    assert "note: init: loaded 20 of 20 tensors from x.pth" in done.err
    facts = json.loads(Path("run/run.json").read_text())["init"]
    assert re.fullmatch("[0-9a-f]{64}", facts["digest"])
    Path("x.pth").unlink()
    trained("resume=run", "max_steps=3")
    assert json.loads(Path("run/run.json").read_text())["init"] == facts
    file_of()
    done = paceline("train", "resume=run", "init=./x.pth")
    assert is_one_error_line(done, "K105")
    assert "begin a new run, since a resumed one has its weights" in done.err


def test_a_missing_file_is_refused_before_the_run_has_a_directory():
    saved(Net(), "weights.pth")
    done = paceline("train", "hydra.run.dir=run", "init=weigths.pth")
    assert is_one_error_line(done, "K110")
    assert "did you mean 'weights.pth'?" in done.err
    assert not Path("run").exists()


def test_a_recipe_may_name_weights_and_words_add_to_it():
    Path("x.pth").touch()
    Path("recipes").mkdir()
    text = "# @package _global_\ndefaults: [digits]\ninit: x.pth\n"
    Path("recipes/mine.yaml").write_text(text)
    config = composed(["recipes=mine", "init.skip=[head]"], NOBODY, ".")[0]
    wanted = {"weights": "x.pth", "average": True, "skip": ["head"], "rename": None}
    assert config["init"] == wanted


def test_a_sweep_starts_each_job_from_its_own_weights():
    file_of()
    shutil.copy("x.pth", "y.pth")
    done = trained("-m", "init=x.pth,y.pth")
    assert "20 of 20 tensors from x.pth" in done.err
    assert "20 of 20 tensors from y.pth" in done.err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.parametrize(
    "words",
    [
        ["parallel=ddp", "parallel.num_processes=2"],
        ["parallel=fsdp", "parallel.num_processes=2", "ema_decay=0.9"],
        ["parallel=virtual", "parallel.virtual_ranks=2", "parallel.num_processes=2"],
        ["compile=true"],
    ],
    ids=lambda words: words[0],
)
def test_ranks_and_compiled_models_start_from_the_weights(words):
    theirs = file_of()
    trained("optim.lr=0", "hydra.run.dir=run", "init=x.pth", *words)
    last = torch.load("run/checkpoints/last.pt", weights_only=True)
    assert torch.equal(last["head.weight"], theirs["head.weight"])
