"""Every combination of options trains two steps, or is refused by a rule that says what to do."""

import itertools
import random
import re
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.cli.command import Done
from tests.faults import forked, lanes

DATA = ("hdf5", "lmdb", "folder", "dali", "synthetic")
LOADERS = ("plain", "prefetch", "stream")
PARALLEL = ("none", "dp")
PRECISIONS = (("precision=fp32",), ("precision=amp",), ("precision=amp", "precision.dtype=fp16"))
WORKERS = ((0, "thread"), (2, "thread"), (2, "process"))
COMBINATIONS = list(itertools.product(DATA, LOADERS, PARALLEL, PRECISIONS, WORKERS))
SHORT = ["max_steps=2", "limit=48", "batch_size=16", "epochs=2"]
SMALL = "transform.size=[8,8]"
# Groups of choices. One choice is drawn from a group. An empty choice keeps the default.
# A semicolon separates choices, a blank the words of one choice.
MORE = [
    [choice.split() for choice in group.split(";")]
    for group in (
        (
            f";;transform=flip;transform=opencv;transform=resize {SMALL};transform=albumentations;"
            f"transform=random_crop transform.size=[6,6];transform=random_resized_crop {SMALL};"
            f"transform=center_crop {SMALL} transform.resize=9"
        ),
        (
            ";;augment=none;augment=flip;augment=crop_flip;augment=mixup;augment=cutmix;"
            "augment=compose;augment=random_erasing;augment=color_jitter;augment=kornia;"
            "augment=compose +augment@augment.parts.a=normalize +augment@augment.parts.b=mixup"
        ),
        ";order=block;order=block order.block_records=3 order.window_blocks=2;shuffle=false",
        ";data.stage=ram;data.stage=device;data.stage=cold",
        ";verify=off;verify=always",
        (
            ";workers.start_method=fork;workers.start_method=spawn;workers.num=null;"
            "workers.timeout_s=20"
        ),
        ";ema_decay=0.9;clip_norm=1.0;ema_decay=0.5 clip_norm=0.1",
        ";on_nan=skip;on_nan=skip max_skips=0",
        ";accumulate=3;rank_batch_size=8;rank_batch_size=5 accumulate=2",
        ";channels_last=true;clock=false;report_every=1;validate_every=1",
        ";model=resnet9 model.width=4 model.in_channels=1;model=resnet9;model=unet model.width=4",
        ";objective=regress;objective=restore",
        ";optim=adam;optim=adamw;schedule=constant;schedule=cosine;optim=adamw schedule=cosine",
        ";sink=[];sink=[jsonl];sink=[console,tensorboard]",
        ";checkpoint.every_steps=1;checkpoint.keep=1 checkpoint.every_s=0.001",
        ";seed=7;device=cpu;device=cuda;loader.depth=1",
    )
]
MOST_MORE = 4  # groups drawn from at once: with more, nearly every draw would be refused


def rows(times: int, seed: int) -> Iterator[lanes.Row]:
    """Yield a row for each choice of data, and one for ddp, with about ``times`` runs in all."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = make_dataset(folder)
        each = max(1, round(times / len(COMBINATIONS)))
        for data in DATA:
            mine = [combination for combination in COMBINATIONS if combination[0] == data]
            parts: list[lanes.Row] = []
            for number, combination in enumerate(mine):
                attempt = partial(is_refused_or_runs, dataset, combination)
                parts.append(lanes.repeat("", attempt, each, seed + number * each))
            yield joined(f"data={data}: every loader, dp, precision, workers, other keys", parts)
        attempt = partial(drawn_ddp, dataset)
        yield lanes.repeat("parallel=ddp: the same, drawn", attempt, max(1, times // 40), seed)


def make_dataset(folder: str) -> str:
    """Pack the digits in every format, so that no run has to pack them. Return their path."""
    dataset = str(Path(folder, "digits"))
    for data in ("hdf5", "lmdb", "folder"):
        words = [f"data={data}", "recipes=digits", f"dataset={dataset}", "max_steps=1"]
        done = forked.paceline("train", *words, f"hydra.run.dir={folder}/{data}")
        assert done.code == 0, done.err
    return dataset


def joined(fault: str, parts: list[lanes.Row]) -> lanes.Row:
    failed = [line for part in parts for line in part.failed]
    seconds = sum(part.seconds for part in parts)
    return lanes.Row(fault, sum(part.tried for part in parts), failed, seconds)


def is_refused_or_runs(dataset: str, combination: tuple, draw: random.Random, *more: str) -> str:
    """Try one combination, with other keys drawn beside it."""
    data, loader, parallel, precision, (num, kind) = combination
    chosen = [f"data={data}", f"loader={loader}", f"parallel={parallel}", *precision]
    chosen += [f"workers.num={num}", f"workers.kind={kind}"]
    groups = draw.sample(MORE, draw.randint(0, MOST_MORE))
    others = [word for group in groups for word in draw.choice(group)]
    words = list({word.split("=")[0]: word for word in (*SHORT, *chosen, *others, *more)}.values())
    done = forked.paceline("train", "recipes=digits", f"dataset={dataset}", *words)
    return wrong(words, done)


def wrong(words: list[str], done: Done) -> str:
    """Return what is wrong with a command's end, or "" if it trained or was well refused."""
    lines = done.err.splitlines()
    refusals = [line for line in lines if re.match(r"error\[[CDR]\d+\]: .+: .+; .+", line)]
    if "Traceback" in done.err + done.out:
        return f"{' '.join(words)}: {done.err[-1500:]}"
    if done.code == 0 or (done.code in (2, 3, 5) and refusals == lines[-1:]):
        return ""
    return f"{' '.join(words)}: exit code {done.code}: {' '.join(done.err.split())[-700:]}"


def drawn(dataset: str, draw: random.Random) -> str:
    return is_refused_or_runs(dataset, draw.choice(COMBINATIONS), draw)


def drawn_ddp(dataset: str, draw: random.Random) -> str:
    data, loader, _, precision, workers = draw.choice(COMBINATIONS)
    combination = (data, loader, "ddp", precision, workers)
    return is_refused_or_runs(dataset, combination, draw, "parallel.num_processes=2")
