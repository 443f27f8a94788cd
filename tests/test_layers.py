"""A module imports only from lower layers; each third-party library is imported in one place."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import framework

ROOT = Path(framework.__file__).parent
# From the top to the bottom: a folder (or a loose module) imports only from rows below its own.
LAYERS = (
    *(("__main__", "__init__"), ("main",), ("commands",), ("trials", "diagnosis"), ("cli",)),
    *(("run",), ("config",), ("input",), ("pack", "data"), ("precision", "store")),
    (
        *("train", "loader", "parallel", "transform", "augment", "objective", "optim", "sink"),
        *("media", "measure"),
    ),
    *(("contracts",), ("order",), ("system", "model", "schedule"), ("errors",)),
)
LEVEL = {name: -row for row, names in enumerate(LAYERS) for name in names}
MODULES = sorted(ROOT.rglob("*.py"))
HOMES = {
    "h5py": {"store/hdf5_store.py"},
    "lmdb": {"store/lmdb_store.py"},
    "isal": {"train/checkpoint.py", "store/file_store.py", "store/lmdb_store.py"},
    "nvidia": {"data/dali.py"},
    "simplejpeg": {"media/decode.py"},
    "hydra": {"config/build.py", "cli", "commands"},
    "omegaconf": {"config/resume.py", "cli", "commands"},
    "psutil": {"measure", "parallel/start_ranks.py"},
    "scipy": {"measure/statistics.py"},
    "soundfile": {"media/sound_video.py"},
    "soxr": {"media/sound_video.py"},
    "av": {"media/sound_video.py"},
    "kornia": {"augment/kornia.py"},
    "tfrecord": {"input/tfrecord.py"},
    "pyarrow": {"store/column_files.py"},
    "mlflow": {"sink/mlflow.py"},
    "wandb": {"sink/wandb.py"},
    "onnxruntime": {"commands/export/export_model.py"},
    "torchmetrics": {"train/torch_metrics.py"},
    "triton": {"augment/pixel_kernel.py", "order/draw_kernel.py"},
    "timm": {"config/auto.py"},
    "torchvision": {"config/auto.py"},
    "transformers": {"config/build.py"},
    "safetensors": {"train/weights.py", "commands/export/export_model.py"},
    "crc32c": {"input/tfrecord.py"},
    "albumentations": {"transform/albumentations.py"},
    "matplotlib": {"cli/pages.py", "commands/report/charts.py", "commands/evaluate/evaluation.py"},
    "jinja2": {"cli/pages.py"},
    "rich": {"system/safe_text.py", "sink/console.py", "cli", "commands"},
}


@cache
def imports(path: Path) -> list[str]:
    """Return the absolute names of everything that a file imports, at any place in it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def unit(path: Path) -> str:
    """Return the folder or module under framework/ that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_imports_point_downwards():
    for path in MODULES:
        mine = unit(path)
        ours = {name.split(".")[1] for name in imports(path) if name.startswith("framework.")}
        wrong = {name for name in ours & set(LEVEL) if name != mine and LEVEL[name] >= LEVEL[mine]}
        assert not wrong, path


def test_every_module_has_a_layer():
    assert {unit(path) for path in MODULES} <= set(LEVEL)


@pytest.mark.parametrize("library", HOMES)
def test_a_library_is_used_in_one_place(library):
    users = {
        str(p.relative_to(ROOT))
        for p in MODULES
        if any(name.split(".")[0] == library for name in imports(p))
    }
    assert users
    assert all(user in HOMES[library] or user.split("/")[0] in HOMES[library] for user in users)


def test_the_trainer_imports_contracts_and_its_own_folder():
    allowed = {"contracts", "train", "errors", "system", "order"}
    used = [name for name in imports(ROOT / "train/trainer.py") if name.startswith("framework.")]
    assert {name.split(".")[1] for name in used} <= allowed


def test_at_most_three_modules_are_loose():
    assert {path.stem for path in ROOT.glob("[!_]*.py")} == {"errors", "main", "run"}


def test_nothing_is_pickled_or_evaluated():
    text = {path: path.read_text() for path in MODULES}
    for word in (
        *("pickle.load", "allow_pickle=True", "weights_only=False", "eval(", "exec(", "yaml.load"),
        "shell=True",
    ):
        users = [
            str(path)
            for path, code in text.items()
            if word in re.sub(r"model\.eval\(|\.eval\(\)|literal_eval\(", "", code)
        ]
        assert not users, word
