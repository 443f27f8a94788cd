"""Our words for those of other tools.

They are of Lightning, lightning-hydra-template, Hugging Face's Trainer, timm and mmengine, and
habits of scripts with argparse, such as ``--lr 0.1``.
"""

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress

from framework.config.schema import option_rules
from framework.config.targets import CONF
from framework.errors import ConfigError

# Our words for a value {}, and the names that other tools have for it.
THEIRS = {
    "accumulate={}": "accumulate_grad_batches gradient_accumulation_steps grad_accum_steps",
    "augment=cutmix augment.alpha={}": "cutmix cutmix_alpha",
    "augment=mixup augment.alpha={}": "mixup mixup_alpha",
    "batch_size={}": "train_batch_size bs b",
    "best.metric={}": "metric_for_best_model eval_metric",
    "checkpoint.every_epochs={}": "every_n_epochs default_hooks.checkpoint.interval",
    "checkpoint.every_steps={}": "save_steps every_n_train_steps",
    "checkpoint.keep={}": "save_top_k save_total_limit checkpoint_hist max_keep_ckpts",
    "clip_norm={}": "gradient_clip_val max_grad_norm clip_grad grad_clip",
    "compile={}": "torch_compile torchcompile",
    "ema_decay={}": "model_ema_decay ema",
    "epochs={}": "max_epochs num_train_epochs num_epochs n_epochs",
    "hydra.run.dir={}": "output_dir default_root_dir work_dir save_dir",
    "init={}": "load_from initial_checkpoint",
    "objective.label_smoothing={}": "label_smoothing label_smoothing_factor smoothing",
    "optim={}": "optimizer opt",
    "optim.lr={}": "lr learning_rate base_lr",
    "optim.momentum={}": "momentum",
    "optim.weight_decay={}": "weight_decay wd",
    "parallel=ddp parallel.find_unused={}": "find_unused_parameters ddp_find_unused_parameters",
    "parallel=ddp parallel.num_processes={}": "devices gpus num_gpus nproc_per_node",
    "parallel=ddp parallel.sync_batch_norm={}": "sync_batchnorm sync_bn",
    "rank_batch_size={}": "per_device_train_batch_size",
    "recipes={}": "experiment",
    "recipes=photos source={}": "data_dir data_path",
    "recipes=sweep_search hydra/sweeper=optuna -m": "hparams_search",
    "report_every={}": "log_every_n_steps logging_steps log_interval print_freq",
    "resume={}": "ckpt_path resume_from_checkpoint",
    "schedule={}": "scheduler sched lr_scheduler lr_scheduler_type",
    "schedule=plateau schedule.factor={}": "scheduler.factor",
    "schedule=plateau schedule.patience={}": "scheduler.patience",
    "schedule=cosine schedule.warmup_epochs={}": "warmup_epochs",
    "schedule=cosine schedule.warmup_steps={}": "warmup_steps",
    "seed={}": "seed_everything manual_seed",
    "stop.min_delta={}": "early_stopping.min_delta",
    "stop.patience={}": "early_stopping_patience patience",
    "validate_every={}": "val_check_interval eval_steps val_interval",
    "val_batch_size={}": "per_device_eval_batch_size eval_batch_size validation_batch_size",
    "workers.num={}": "num_workers dataloader_num_workers workers j",
}
FP16 = "precision=amp precision.dtype=fp16"
SINKS = {
    "none": "sink=[console,jsonl]",
    **{name: f"sink=[console,jsonl,{name}]" for name in ("csv", "mlflow", "tensorboard", "wandb")},
}
PRECISIONS = {
    **dict.fromkeys(("16", "fp16", "16-mixed"), FP16),
    **dict.fromkeys(("bf16", "bf16-mixed"), "precision=amp"),
    **dict.fromkeys(("32", "32-true"), "precision=fp32"),
}
# Their names whose values are words, too. An option without a value has the value true.
VALUES: dict[str, dict[str, str]] = {
    "accelerator": {
        "gpu": "device=cuda",
        "cuda": "device=cuda",
        **{name: f"device={name}" for name in ("auto", "cpu")},
    },
    "amp": {"true": "precision=amp", "false": "precision=fp32"},
    "bf16": {"true": "precision=amp", "false": "precision=fp32"},
    "callbacks": {
        "default": "checkpoint.every_epochs=1 stop.patience=100",
        "early_stopping": "stop.patience=100",
        "model_checkpoint": "checkpoint.every_epochs=1",
        "none": "stop.patience=null",
    },
    "check_val_every_n_epoch": {"1": "validate_every=null"},
    "dataloader_drop_last": {"true": "last=drop", "false": "last=short"},
    "debug": {
        **dict.fromkeys(("default", "fdr", "limit"), "debug=tiny"),
        "profiler": "debug=profile",
    },
    "devices": {"1": "parallel=none", "auto": "parallel=ddp"},
    "drop_last": {"true": "last=drop", "false": "last=short"},
    "early_stopping.monitor": {"val/acc": "stop.metric=accuracy", "val/loss": "stop.metric=loss"},
    "fast_dev_run": {"true": "debug=tiny", "1": "debug=tiny"},
    "fp16": {"true": FP16, "false": "precision=fp32"},
    "logger": SINKS,
    "model_checkpoint.monitor": {"val/acc": "best.metric=accuracy", "val/loss": "best.metric=loss"},
    "model_ema": {"true": "ema_decay=0.9998"},
    "no_cuda": {"true": "device=cpu"},
    "optimized_metric": {
        "val/acc_best": "search_metric=accuracy",
        "val/loss": "search_metric=loss",
    },
    "overfit_batches": {"1": "debug=overfit"},
    "mixed_precision": PRECISIONS,
    "precision": PRECISIONS,
    "profiler": {"pytorch": "debug=profile", "simple": "debug=profile"},
    "report_to": SINKS,
    "strategy": {
        **{name: f"parallel={name}" for name in ("ddp", "dp", "fsdp")},
        "auto": "parallel=none",
        "ddp_find_unused_parameters_true": "parallel=ddp parallel.find_unused=true",
    },
    "trainer": {
        "ddp": "parallel=ddp",
        "gpu": "device=cuda",
        "cpu": "device=cpu",
        "default": "device=auto",
    },
}
OURS = {theirs: ours for ours, names in THEIRS.items() for theirs in names.split()}
WEIGHTS = re.compile(r".*\.(bin|ckpt|pt|pth|safetensors)['\"]?")  # no directory of a run


def our_words(key: str, value: str = "true") -> list[str]:
    """Return our words for a key of another tool and its value; none if we know of none."""
    parts = key.lower().replace("-", "_").split(".")
    names = [".".join(parts[start:]) for start in range(len(parts))]  # the most precise is first
    value = {"True": "true", "False": "false", "None": "null"}.get(value, value)
    known = (VALUES.get(each, {}).get(value) or OURS.get(each) for each in names)
    text = next(filter(None, known), "")
    if text == "resume={}" and WEIGHTS.fullmatch(value):
        text = "init={}"
    if not text:
        text = next((f"{each}={{}}" for each in names if _is_ours(each)), "")
    words = [word.replace("{}", value) for word in text.split()]
    return words if words and all(map(_is_valid, words)) else []


def advice(words: Sequence[str]) -> str:
    """Return what an error advises: to write these words."""
    return f"write {' '.join(map(shlex.quote, words))}"


def refuse_options(arguments: Sequence[str]) -> None:
    """Raise ConfigError C124 for a first ``--key value`` that has words of ours, without dashes."""
    for number, word in enumerate(arguments):
        key, sign, value = word.partition("=")
        if not re.match(r"--?[a-z]", key):
            continue
        after = arguments[number + 1 : number + 2]
        if not sign and after and not re.match(r"--?[a-z]", after[0]) and "=" not in after[0]:
            value = after[0]
        if words := our_words(key.lstrip("-"), value or "true"):
            where = word if sign or not value else f"{word} {value}"
            raise ConfigError(124, where, "no such option", advice(words))


def _is_ours(key: str) -> bool:
    rules = option_rules(key.partition(".")[0])
    is_group = (CONF / key).is_dir() or key in ("recipes", "resume", "init")
    return bool(key) and (is_group or key in option_rules("train") or key in rules)


def _is_valid(word: str) -> bool:
    """Return whether a word is an option of ours with a value that it may have."""
    key, _, value = word.partition("=")
    if not value:
        return word == "-m"
    if (CONF / key).is_dir():
        choices = {path.stem for path in (CONF / key).glob("*.yaml")}
        return {*re.findall(r"[\w-]+", value)} <= choices
    rule = option_rules("train").get(key) or option_rules(key.partition(".")[0]).get(key)
    if rule is None:  # an option without a type, or a block's short word
        return True
    with suppress(ConfigError):
        for part in [value] if value.startswith("[") else value.split(","):
            rule.read(key, part)
        return True
    return False
