"""The model card: where a model comes from, what it takes, how good it is; and the Hub's files."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from framework import __version__
from framework.commands.export.exportable import Exportable
from framework.config.saved_run import SavedRun, chosen_file
from framework.config.targets import targets
from framework.system.durable import write_json, write_text
from framework.system.run_dir import (
    FACTS,
    SUMMARY,
    flat,
    mapping,
    newest_config,
    numbers,
    read_object,
    shown,
    words,
)

USER = re.compile(r"://[^/@\s]+@")  # a name and a password in an address, which nobody publishes
USE = {
    "safetensors": """```python
from framework import load

run = load("{run_dir}")             # the run's own directory, or
state = safetensors.torch.load_file("{name}")  # the weights alone
```""",
    "huggingface": """```python
from safetensors.torch import load_file

model.load_state_dict(load_file("model.safetensors"))  # the model that config.json describes
```

Or start a training of Paceline from it: `paceline train init=FOLDER ...`.""",
    "onnx": """```python
import onnxruntime

session = onnxruntime.InferenceSession("{name}")
outputs = session.run(None, {{{feed}}})
```""",
    "torch_export": """```python
import torch

outputs = torch.export.load("{name}").module()({inputs})
```""",
    "aoti": """```python
import torch

outputs = torch._inductor.aoti_load_package("{name}")({inputs})
```""",
}
# What the Hub calls the task of an objective of ours.
TASKS = {
    "framework.objective.classify.Classify": "image-classification",
    "framework.objective.segment.Segment": "image-segmentation",
    "framework.objective.restore.Restore": "image-to-image",
}
RESIZE = "framework.transform.resize.Resize"


@dataclass(frozen=True)
class CardFacts:
    """What is known of a run, read from the files in its directory.

    Attributes:
        name: The name of its directory.
        weights: Which weights were exported, and their file's digest.
        data: What was trained and validated on, by split: source, records, digest, classes.
        best: Metrics of the best validation.
        steps: The steps of the run.
        facts: The run's ``run.json``.
        config: The configuration, in which secrets of the environment are only named.
    """

    name: str
    weights: str
    data: Mapping[str, Mapping[str, Any]]
    best: Mapping[str, float]
    steps: int | None
    facts: Mapping[str, Any]
    config: Mapping[str, Any]

    @classmethod
    def of_run(cls, run: SavedRun) -> "CardFacts":
        facts = read_object(run.run_dir / FACTS)
        summary = read_object(run.run_dir / SUMMARY)
        best = numbers(flat(summary.get("best") or summary.get("val")))
        path = chosen_file(run.run_dir, run.weights)
        return cls(
            name=shown(run.run_dir.resolve().name),
            weights=f"{run.weights} (sha256 {digest_of(path)})",
            data={split: mapping(known) for split, known in mapping(facts.get("data")).items()},
            best={name: value for name, value in best.items() if name != "step"},
            steps=summary.get("steps"),
            facts=facts,
            config=read_object(newest_config(run.run_dir)),
        )


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_card(
    facts: CardFacts,
    exportable: Exportable,
    compared: Sequence[str],
    to: str,
    preprocess: bool,
    model: Path,
) -> str:
    """Return the card of a model that was exported to the file ``model``, in Markdown."""
    takes = "what the model itself takes: normalized values"
    if preprocess:
        takes = "what the loader reads, such as uint8 pixels; preprocessing is inside"
    names = exportable.input_names
    use = USE[to].format(
        name=model.name,
        inputs=", ".join(names),
        feed=", ".join(f'"{name}": {name}' for name in names),
        run_dir=facts.name,
    )
    keys = ("num_records", "source", "digest")
    data = [
        (shown(split), *(shown(known.get(key) or "unknown") for key in keys))
        for split, known in facts.data.items()
    ]
    classes = ", ".join(words(facts.data.get("train", {}).get("classes")))
    versions = mapping(facts.facts.get("versions"))
    started = {
        "command": " ".join(words(facts.facts.get("command"))),
        "started": facts.facts.get("started"),
        "git": facts.facts.get("git"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    config = yaml.safe_dump(dict(facts.config), sort_keys=False, allow_unicode=True)
    fence = "```"
    while fence in config:
        fence += "`"
    parts = [
        f"# {facts.name}",
        f"Exported by Paceline {__version__} to `{to}`. It takes {takes}.",
        "## Use",
        use,
        _table(("tensor", "type and shape"), [form[1:] for form in exportable.forms]),
        "## Metrics",
        _table(
            ("metric of the best validation", "value"),
            [(shown(name), f"{value:.6g}") for name, value in facts.best.items()],
        ),
        f"Weights: {facts.weights}. Steps: {shown(facts.steps)}.",
        "## Data",
        _table(("split", "records", "source", "digest"), data),
        f"Classes: {shown(classes) or 'none are named'}.",
        "## Compared with the model",
        "\n".join(f"- {line}" for line in compared),
        f"SHA-256 of `{model.name}`: `{digest_of(model)}`.",
        "## Training",
        _table(("fact", "value"), [(name, shown(value)) for name, value in started.items()]),
        "## Configuration",
        f"{fence}yaml\n{config.rstrip()}\n{fence}",
    ]
    return USER.sub("://", "\n\n".join(part for part in parts if part)) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], f"| {' | '.join('---' for _ in head)} |", *lines[1:]])


def write_hub_files(
    run: SavedRun, facts: CardFacts, exportable: Exportable, card: str, folder: Path
) -> None:
    """Write ``config.json``, ``preprocessor_config.json`` and ``README.md`` with its metadata."""
    config: dict[str, Any] = {
        "architectures": [type(run.model).__name__],
        "model_type": "paceline",
        "torch_dtype": str(next(run.model.parameters()).dtype).removeprefix("torch."),
        "paceline_version": __version__,
        "model": facts.config.get("model"),
        "objective": facts.config.get("objective"),
    }
    names = [str(name) for name in run.classes]
    if names:
        config["id2label"] = {str(number): name for number, name in enumerate(names)}
        config["label2id"] = {name: number for number, name in enumerate(names)}
    # Validation has the transform of training unless it has its own.
    own = mapping(mapping(facts.config.get("data")).get("val_transform"))
    transform = own or mapping(facts.config.get("transform"))
    blocks = [block for _, block in targets(facts.config.get("augment"), "augment")]
    normalize = next((block for block in blocks if block.get("mean") and block.get("std")), None)
    preprocessor: dict[str, Any] = {
        "do_rescale": normalize is not None,
        "rescale_factor": 1 / 255,
        "do_normalize": normalize is not None,
        "do_resize": transform.get("_target_") == RESIZE,
        "transform": transform,
    }
    if normalize is not None:
        preprocessor |= {"image_mean": normalize["mean"], "image_std": normalize["std"]}
    shape = exportable.inputs[0].shape
    if len(shape) == 4:
        config |= {"num_channels": shape[1], "image_size": list(shape[2:])}
        preprocessor["size"] = {"height": shape[2], "width": shape[3]}
    write_json(folder / "config.json", config)
    write_json(folder / "preprocessor_config.json", preprocessor)
    metadata: dict[str, Any] = {"library_name": "pytorch", "tags": ["paceline"]}
    task = TASKS.get(run.config["objective"]["_target_"])
    if task is not None:
        metadata["pipeline_tag"] = task
    if task is not None and facts.best:
        data = facts.data.get("val", facts.data.get("train", {}))
        dataset = {
            "type": "custom",
            "name": shown(data.get("source") or "unknown"),
            "revision": shown(data.get("digest") or ""),
        }
        metrics = [{"type": name, "name": name, "value": v} for name, v in facts.best.items()]
        result = {"task": {"type": task}, "dataset": dataset, "metrics": metrics}
        metadata["model-index"] = [{"name": facts.name, "results": [result]}]
    head = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    write_text(folder / "README.md", f"---\n{head}---\n\n{card}")
