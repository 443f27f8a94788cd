"""The model card: where a model comes from, what it takes, and how good it is."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from framework import __version__
from framework.commands.export.exportable import Exportable, form_of_tensor
from framework.config.saved_run import SavedRun, chosen_file
from framework.system.json_values import flat, mapping, numbers, shown, words
from framework.system.run_dir import FACTS, SUMMARY, newest_config, read_object

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


@dataclass(frozen=True)
class CardFacts:
    """What is known of a run, read from the files in its directory.

    Attributes:
        name: The name of its directory.
        weights: Which weights were exported, and their file's digest.
        data: What was trained and validated on, by split: source, records, digest, classes.
        best: Metrics of the best validation.
        summary: The run's summary.
        facts: The run's ``run.json``.
        config: The configuration, in which secrets of the environment are only named.
    """

    name: str
    weights: str
    data: Mapping[str, Mapping[str, Any]]
    best: Mapping[str, float]
    summary: Mapping[str, Any]
    facts: Mapping[str, Any]
    config: Mapping[str, Any]

    @classmethod
    def of_run(cls, run: SavedRun) -> "CardFacts":
        facts = read_object(run.run_dir / FACTS)
        summary = read_object(run.run_dir / SUMMARY)
        best = numbers(flat(summary.get("best") or summary.get("val")))
        data = {split: mapping(known) for split, known in mapping(facts.get("data")).items()}
        path = chosen_file(run.run_dir, run.weights)
        return cls(
            name=shown(run.run_dir.resolve().name),
            weights=f"{run.weights} (sha256 {digest_of(path)})",
            data=data,
            best=best,
            summary=summary,
            facts=facts,
            config=read_object(newest_config(run.run_dir)),
        )


def model_card(
    facts: CardFacts,
    exportable: Exportable,
    compared: Sequence[str],
    to: str,
    preprocess: bool,
    model: Path,
) -> str:
    """Return the card of a model that was exported to the file ``model``, in Markdown."""
    inputs = ", ".join(exportable.input_names)
    feed = ", ".join(f'"{name}": {name}' for name in exportable.input_names)
    use = USE[to].format(name=model.name, inputs=inputs, feed=feed, run_dir=facts.name)
    takes = "what the model itself takes: normalized values"
    if preprocess:
        takes = "what the loader reads, such as uint8 pixels; preprocessing is inside"
    steps = facts.summary.get("steps")
    parts = [
        f"# {facts.name}",
        f"Exported by Paceline {__version__} to `{to}`. It takes {takes}.",
        "## Use",
        use,
        _table(("tensor", "type and shape"), _tensors(exportable)),
        "## Metrics",
        _table(("metric of the best validation", "value"), _metrics(facts.best)),
        f"Weights: {facts.weights}. Steps: {shown(steps)}.",
        "## Data",
        _table(("split", "records", "source", "digest"), _data(facts.data)),
        f"Classes: {_classes(facts.data)}.",
        "## Compared with the model",
        "\n".join(f"- {line}" for line in compared),
        f"SHA-256 of `{model.name}`: `{digest_of(model)}`.",
        "## Training",
        _started(facts.facts),
        "## Configuration",
        _fenced(yaml.safe_dump(dict(facts.config), sort_keys=False, allow_unicode=True)),
    ]
    return USER.sub("://", "\n\n".join(part for part in parts if part)) + "\n"


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, or "unknown" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "unknown"


def _tensors(exportable: Exportable) -> list[tuple[str, str]]:
    pairs = [
        *zip(exportable.input_names, exportable.inputs, strict=True),
        *zip(exportable.output_names, exportable.expected, strict=True),
    ]
    return [(name, form_of_tensor(tensor, exportable.batch_size)) for name, tensor in pairs]


def _metrics(best: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(shown(name), f"{value:.6g}") for name, value in best.items() if name != "step"]


def _data(data: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    keys = ("num_records", "source", "digest")
    return [
        (shown(split), *(shown(known.get(key) or "unknown") for key in keys))
        for split, known in data.items()
    ]


def _classes(data: Mapping[str, Mapping[str, Any]]) -> str:
    names = words(data.get("train", {}).get("classes"))
    return shown(", ".join(names)) or "none are named"


def _started(facts: Mapping[str, Any]) -> str:
    versions = mapping(facts.get("versions"))
    rows = {
        "command": " ".join(words(facts.get("command"))),
        "started": facts.get("started"),
        "git": facts.get("git"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return _table(("fact", "value"), [(name, shown(value)) for name, value in rows.items()])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    cells = [[cell.replace("|", r"\|") for cell in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], f"| {' | '.join('---' for _ in head)} |", *lines[1:]])


def _fenced(text: str) -> str:
    """Return text as a block of code, whatever back-ticks it has."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}yaml\n{text.rstrip()}\n{fence}"


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
