"""Words of other tools are answered with ours, as they have to be typed."""

import pytest
import yaml

from framework.cli.other_words import OURS, VALUES, our_words
from framework.config.targets import CONF
from framework.system.run_dir import flat
from tests.cli.command import is_one_error_line, paceline, refusal_of

SAMPLES = {  # a value that our option may have; 2 for the others
    **dict.fromkeys(("scheduler", "sched", "lr_scheduler", "lr_scheduler_type"), "cosine"),
    **dict.fromkeys(("optimizer", "opt"), "adamw"),
    **dict.fromkeys(("ckpt_path", "resume_from_checkpoint"), "runs/last"),
    **dict.fromkeys(("experiment",), "digits"),
    **dict.fromkeys(("torch_compile", "torchcompile", "sync_batchnorm", "sync_bn"), "True"),
    **dict.fromkeys(("find_unused_parameters", "ddp_find_unused_parameters"), "true"),
    **dict.fromkeys(("model_ema_decay", "ema"), "0.99"),
}


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("trainer.max_epochs=5", "epochs=5"),
        ("trainer.max_steps=5", "max_steps=5"),
        ("lr=0.1", "optim.lr=0.1"),
        ("model.optimizer.lr=0.1", "optim.lr=0.1"),
        ("data.batch_size=64", "batch_size=64"),
        ("gradient_clip_val=0.5", "clip_norm=0.5"),
        ("devices=2", "parallel=ddp parallel.num_processes=2"),
        ("strategy=ddp", "parallel=ddp"),
        ("logger=wandb", "'sink=[console,jsonl,wandb]'"),
        ("callbacks=early_stopping", "stop.patience=100"),
        ("ckpt_path=logs/last.ckpt", "init=logs/last.ckpt"),
        ("hparams_search=optuna", "recipes=sweep_search hydra/sweeper=optuna -m"),
        ("model.scheduler.patience=3", "schedule=plateau schedule.patience=3"),
        ("callbacks.early_stopping.patience=3", "stop.patience=3"),
        ("callbacks.model_checkpoint.monitor=val/acc", "best.metric=accuracy"),
        ("optimized_metric=val/acc_best", "search_metric=accuracy"),
        ("trainer.precision=16-mixed", "precision=amp precision.dtype=fp16"),
    ],
    ids=lambda value: value.partition("=")[0],
)
def test_a_key_of_another_tool_is_answered_with_ours(word, ours):
    line = refusal_of(word)
    key, _, value = word.partition("=")
    assert line == f"error[C102]: {key} = {value}: is called differently here; write {ours}"


def test_a_choice_of_another_tool_is_answered_with_ours():
    assert refusal_of("precision=bf16-mixed").endswith("here; write precision=amp")
    assert refusal_of("precision=32").endswith("here; write precision=fp32")
    assert refusal_of("callbacks=none").endswith("here; write stop.patience=null")
    assert refusal_of("debug=fdr").endswith("here; write debug=tiny")


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["--lr", "0.1"], "--lr 0.1: no such option; write optim.lr=0.1"),
        (["--epochs=5"], "--epochs=5: no such option; write epochs=5"),
        (["--batch-size", "64"], "--batch-size 64: no such option; write batch_size=64"),
        (["--amp", "epochs=1"], "--amp: no such option; write precision=amp"),
        (["-j", "4"], "-j 4: no such option; write workers.num=4"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_option_of_argparse_is_answered_with_our_word(words, ours):
    done = paceline("train", *words)
    assert is_one_error_line(done, "C124")
    assert done.last_line == f"error[C124]: {ours}"


@pytest.mark.parametrize("command", ["bench", "tune", "diagnose"])
def test_commands_like_train_answer_so_too(command):
    done = paceline(command, "--lr", "0.1")
    assert done.last_line == "error[C124]: --lr 0.1: no such option; write optim.lr=0.1"


def test_a_value_that_ours_may_not_have_is_not_advised():
    assert our_words("max_epochs", "many") == our_words("scheduler", "nonsense") == []
    assert our_words("nonsense", "1") == our_words("trainer.nonsense") == []


def test_every_advised_word_is_an_option():
    known = {"-m", "recipes", "resume", "init", "hydra.run.dir", "hydra/sweeper"}
    known |= set(flat(yaml.safe_load((CONF / "train.yaml").read_text())))
    for path in CONF.glob("*/*.yaml"):
        group = path.parent.name
        known |= {group, *flat({group: yaml.safe_load(path.read_text())})}
    for theirs in {*OURS, *VALUES}:
        values = [SAMPLES.get(theirs, "2")] * (theirs in OURS)
        for value in [*values, *VALUES.get(theirs, ())]:
            words = our_words(theirs, value)
            assert words, theirs
            assert {word.partition("=")[0] for word in words} <= known, theirs
