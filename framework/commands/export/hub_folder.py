"""The files of a folder of the Hugging Face Hub beside its weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from framework import __version__
from framework.commands.export.exportable import Exportable
from framework.commands.export.model_card import CardFacts, as_json
from framework.config.saved_run import SavedRun
from framework.config.targets import targets
from framework.system.durable import write_text
from framework.system.json_values import mapping, shown

# What the Hub calls the task of an objective of ours.
TASKS = {
    "framework.objective.classify.Classify": "image-classification",
    "framework.objective.segment.Segment": "image-segmentation",
    "framework.objective.restore.Restore": "image-to-image",
}
RESIZE = "framework.transform.resize.Resize"


def write_hub_files(
    run: SavedRun, facts: CardFacts, exportable: Exportable, card: str, folder: Path
) -> None:
    """Write ``config.json``, ``preprocessor_config.json`` and ``README.md`` with its metadata."""
    write_text(folder / "config.json", as_json(_config(run, facts, exportable)))
    write_text(folder / "preprocessor_config.json", as_json(_preprocessor(facts, exportable)))
    metadata = yaml.safe_dump(_metadata(run, facts), sort_keys=False, allow_unicode=True)
    write_text(folder / "README.md", f"---\n{metadata}---\n\n{card}")


def _config(run: SavedRun, facts: CardFacts, exportable: Exportable) -> dict[str, Any]:
    """Return what describes the model: its class and arguments, its classes and its input."""
    names = [str(name) for name in run.classes]
    first = exportable.inputs[0]
    config: dict[str, Any] = {
        "architectures": [type(run.model).__name__],
        "model_type": "paceline",
        "torch_dtype": str(next(run.model.parameters()).dtype).removeprefix("torch."),
        "paceline_version": __version__,
        "model": facts.config.get("model"),
        "objective": facts.config.get("objective"),
    }
    if names:
        config["id2label"] = {str(number): name for number, name in enumerate(names)}
        config["label2id"] = {name: number for number, name in enumerate(names)}
    if first.dim() == 4:
        config["num_channels"] = first.shape[1]
        config["image_size"] = list(first.shape[2:])
    return config


def _preprocessor(facts: CardFacts, exportable: Exportable) -> dict[str, Any]:
    """Return how pixels become what the model takes, in the words of the Hub."""
    normalize = _normalization(facts.config)
    transform = _transform(facts.config)
    known: dict[str, Any] = {
        "do_rescale": normalize is not None,
        "rescale_factor": 1 / 255,
        "do_normalize": normalize is not None,
        "do_resize": transform.get("_target_") == RESIZE,
        "transform": transform,
    }
    if normalize is not None:
        known |= {"image_mean": normalize["mean"], "image_std": normalize["std"]}
    first = exportable.inputs[0]
    if first.dim() == 4:
        height, width = first.shape[2:]
        known["size"] = {"height": height, "width": width}
    return known


def _normalization(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the part of the augmentation that has a mean and a deviation."""
    for _, block in targets(config.get("augment"), "augment"):
        if block.get("mean") is not None and block.get("std") is not None:
            return block
    return None


def _transform(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the transform of validation, which is that of training unless it has its own."""
    own = mapping(mapping(config.get("data")).get("val_transform"))
    return own or mapping(config.get("transform"))


def _metadata(run: SavedRun, facts: CardFacts) -> dict[str, Any]:
    """Return the metadata of the card: library, task, tags and results."""
    task = TASKS.get(run.config["objective"]["_target_"])
    metadata: dict[str, Any] = {"library_name": "pytorch", "tags": ["paceline"]}
    if task is None:
        return metadata
    metadata["pipeline_tag"] = task
    metrics = [
        {"type": metric, "name": metric, "value": value}
        for metric, value in facts.best.items()
        if metric != "step"
    ]
    if metrics:
        result = {"task": {"type": task}, "dataset": _dataset(facts), "metrics": metrics}
        metadata["model-index"] = [{"name": facts.name, "results": [result]}]
    return metadata


def _dataset(facts: CardFacts) -> dict[str, str]:
    """Return what the model was validated on, or else trained on."""
    data = facts.data.get("val", facts.data.get("train", {}))
    name = shown(data.get("source") or "unknown")
    return {"type": "custom", "name": name, "revision": shown(data.get("digest") or "")}
