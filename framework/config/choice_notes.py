"""Notes on what the choices of a run mean together, when that is not plain to see."""

import json
from typing import Any

import torch
from torch import nn

from framework.augment.pixels import pixel_kernel
from framework.config.assemble import Assembly, fuses
from framework.config.declared_inputs import contradictions
from framework.config.targets import Config
from framework.contracts.records import notes_of
from framework.data.source import StoreSource, WorkerSource
from framework.order.draws import draw_kernel
from framework.system import native
from framework.train.freeze import Freeze
from framework.train.parameter_groups import GROUP, NAME

NOT_COMPILED = (
    "the C functions are not compiled: images are scaled by other libraries, up to one level off, "
    "beside Python's lock; stored values are gathered at half the speed, and changed on the CPU at "
    "a quarter; install a C compiler, then Paceline again"
)
MOST_CHARACTERS = 160  # of a value in a note, such as the weights of a thousand classes
HEADINGS = ("group", "tensors", "parameters", "lr", "weight decay", "thaws at")


def first_line(assembly: Assembly, model: nn.Module) -> str:
    """Return what a run begins with: the choices that decide what is learned, and how fast."""
    config, source = assembly.config, assembly.train_source
    name = {
        key: _name(config[key]) for key in ("model", "optim", "schedule", "precision", "loader")
    }
    count = sum(parameter.numel() for parameter in model.parameters())
    ranks = workers = ""
    if assembly.parallel.world_size > 1:
        ranks = f" over {assembly.parallel.world_size} ranks"
    if isinstance(source, WorkerSource):
        num = source.workers.num
        workers = f" with {num} worker{'s' if num != 1 else ''}"
    rate = assembly.effective.get("lr", config["optim"].get("lr"))
    with_rate = "" if rate is None else f" with lr {rate:g}"
    words = {
        "model": f"{name['model']} with {count:,} parameters",
        "optim": f"{name['optim']}{with_rate}",
        "schedule": name["schedule"],
        "precision": name["precision"],
        "batch_size": f"{source.order.batch_size}{ranks}",
        "loader": f"{name['loader']}{workers}",
        "device": str(assembly.device),
    }
    return "training: " + ", ".join(f"{key} {value}" for key, value in words.items())


def _name(block: Config) -> str:
    """Return the name of a choice: that of its file for our own, that of its class for others."""
    *package, module, name = block["_target_"].split(".")
    return module if package[:1] == ["framework"] else name


def choice_notes(assembly: Assembly) -> list[str]:
    """Return the notes on the choices, data, ranks and loader of a run."""
    config, scaling, notes = assembly.config, assembly.scaling, [*assembly.notes]
    declared = {
        name: value
        for name, value in assembly.from_data.items()
        if value is not None and value == assembly.declared.value(name.rpartition(".")[2])
    }
    if declared:
        notes.append(f"from the model: {_typed(declared)}")
    if len(declared) < len(assembly.from_data):
        rest = {key: assembly.from_data[key] for key in assembly.from_data if key not in declared}
        notes.append(f"from the data: {_typed(rest)}")
    notes += contradictions(config, assembly.declared, assembly.from_data)
    for source in assembly.sources.values():
        notes += notes_of(source)
    store = assembly.train_source
    if config["collate"] != "pad" and isinstance(store, StoreSource) and not store.read.ragged:
        notes.append(f"collate={config['collate']}: no field has a length of its own")
    if config["folds"] is not None:
        together = f", with equal {config['fold_by']} in one fold" if config["fold_by"] else ""
        fold = f"fold {config['fold']} of {config['folds']} of data.train"
        notes.append(f"{fold} validates{together}")
    if config["rank_batch_size"] is not None:
        notes.append(
            f"rank_batch_size={config['rank_batch_size']} makes batch_size {scaling.batch_size}, "
            "over all ranks and accumulation"
        )
    if scaling.rule != "none":
        effective = ", ".join(f"{key} {value:g}" for key, value in assembly.effective.items())
        notes.append(f"optim.scaling={scaling.rule}: {effective}")
    if config["cuda_graph"] and not assembly.captures:
        notes.append(f"cuda_graph=true: {assembly.graph_refusal}; steps run kernel by kernel")
    on_gpu = assembly.device.type != "cpu"
    if config["compile"] and on_gpu and not fuses(config, assembly.augment, assembly.device):
        notes.append(
            "compile=true: the augmentation is not said to be exact, and runs kernel by kernel"
        )
    if not native.are_compiled():
        notes.append(NOT_COMPILED)
    kernels = {
        "cuts and normalizes pixels at once": pixel_kernel.failure,
        "makes random numbers": draw_kernel.failure,
    }
    for what, failure in kernels.items() if on_gpu else ():
        if failure:
            notes.append(f"augment: no kernel {what} ({failure}); torch's operators do it")
    return [*notes, *assembly.parallel.notes, *assembly.train.notes]


def _typed(values: Config) -> str:
    """Return values by dotted name as they would be typed. Long lists are cut."""
    typed: list[str] = []
    for name, value in values.items():
        text = json.dumps(value, separators=(",", ":"))
        if len(text) > MOST_CHARACTERS:
            text = f"{text[:MOST_CHARACTERS]}..."
        typed.append(f"{name}={text}")
    return ", ".join(typed)


def group_table(
    model: nn.Module, optimizer: torch.optim.Optimizer, freeze: Freeze | None
) -> str | None:
    """Return a table with a line for each group and each time of thawing.

    Return None if there is one group, and nothing is frozen.
    """
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    rows: list[list[str]] = []
    for group in optimizer.param_groups:
        by_thaw: dict[str, list[Any]] = {}
        for parameter in group["params"]:
            name = name_of.get(id(parameter), GROUP)  # what an objective owns is never frozen
            thaw = ""
            if freeze is not None and freeze.is_frozen(name):
                step = freeze.thaws[name]
                thaw = "never" if step is None else f"step {step}"
            by_thaw.setdefault(thaw, []).append(parameter)
        for thaw, parameters in by_thaw.items():
            size = sum(parameter.numel() for parameter in parameters)
            decay = group.get("weight_decay")
            cells = [group.get(NAME, "all"), f"{len(parameters):,}", f"{size:,}"]
            cells += [f"{group['lr']:.4g}", "" if decay is None else f"{decay:.4g}", thaw]
            rows.append(cells)
    if len(rows) == 1 and freeze is None:
        return None
    has_decay = any("weight_decay" in group for group in optimizer.param_groups)
    shown = [*range(4), *([4] if has_decay else []), *([5] if freeze is not None else [])]
    lines = [[line[column] for column in shown] for line in (HEADINGS, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts: list[str] = []
    for (first, *others), (width, *more) in ((line, widths) for line in lines):
        cells = [cell.rjust(size) for cell, size in zip(others, more, strict=True)]
        texts.append("  ".join([first.ljust(width), *cells]).rstrip())
    return "\n".join(texts)
