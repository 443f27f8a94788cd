"""A module imports strictly downwards, or inside its own folder; and one third-party library lives in one place."""

import ast
from pathlib import Path

import pytest

import framework

ROOT = Path(framework.__file__).parent
LAYERS = {
    7: {"__main__"},
    6: {"cli"},
    5: {"bench", "diagnose", "tune", "report"},
    4: {"run", "inspection", "probe"},
    3: {"assemble", "prepare"},
    2: {"trainer", "checkpoint", "pack", "build", "auto"},
    1: {
        *("data", "loader", "parallel", "precision", "model", "objective", "schedule", "transform", "augment", "sink", "measure"),
        "graph",
    },
    0: {
        "contracts",
        "batch",
        "errors",
        "heap",
        "native",
        "order",
        "durable",
        "handlers",
        "tally",
        "average",
        "scaling",
        "agreement",
        "lock",
        "finite",
        "generators",
        "resume",
        "evaluate",
        "passes",
        "stepper",
        "signature",
        "user_code",
        "targets",
        "settings",
        "span",
        "stopping",
        "__init__",
    },
}
LEVEL = {name: level for level, names in LAYERS.items() for name in names}
MODULES = sorted(ROOT.rglob("*.py"))
HOMES = {
    "h5py": {"data/hdf5.py"},
    "lmdb": {"data/lmdb.py"},
    "isal": {"checkpoint.py", "data/checksum.py", "data/lmdb.py", "data/manifest.py"},
    "nvidia": {"data/dali.py"},
    "simplejpeg": {"data/decode.py"},
    "hydra": {"build.py", "cli"},
    "omegaconf": {"cli"},
    "sklearn": {"pack/digits.py"},
    "scipy": {"measure/claim.py"},
    "kornia": {"augment/kornia.py"},
    "tfrecord": {"pack/tfrecord.py"},
    "crc32c": {"pack/tfrecord.py"},
    "albumentations": {"transform/albumentations.py"},
    "matplotlib": {"report/chart.py", "report/bars.py", "report/curves.py"},
    "jinja2": {"report/page.py"},
    "rich": {"sink/console.py", "cli"},
}


def imports(path: Path) -> list[str]:
    """Absolute names of everything a file imports, anywhere in it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def unit(path: Path) -> str:
    """The folder or module under framework/ that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path):
    mine = unit(path)
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("framework.")}
    wrong = {other for other in ours & set(LEVEL) if other != mine and LEVEL[other] >= LEVEL[mine] > 0}
    assert not wrong
    assert LEVEL[mine] > 0 or all(LEVEL.get(other, 0) == 0 for other in ours)


def test_every_module_has_a_layer():
    assert {unit(path) for path in MODULES} <= set(LEVEL)


@pytest.mark.parametrize("library", HOMES)
def test_a_library_is_used_in_one_place(library):
    users = {str(p.relative_to(ROOT)) for p in MODULES if any(name.split(".")[0] == library for name in imports(p))}
    assert users
    assert all(user in HOMES[library] or user.split("/")[0] in HOMES[library] for user in users)


def test_the_trainer_imports_contracts_only():
    allowed = {
        "contracts",
        "batch",
        "errors",
        "tally",
        "span",
        "average",
        "stepper",
        "passes",
        "graph",
        "finite",
        "generators",
        "evaluate",
    }
    assert {name.split(".")[1] for name in imports(ROOT / "trainer.py") if name.startswith("framework.")} <= allowed


def test_the_trainer_stays_short():
    assert len((ROOT / "trainer.py").read_text().splitlines()) < 250


def test_nothing_is_pickled_or_evaluated():
    text = {path: path.read_text() for path in MODULES}
    for word in ("pickle.load", "allow_pickle=True", "weights_only=False", "eval(", "exec(", "yaml.load", "shell=True"):
        users = [str(path) for path, code in text.items() if word in code.replace("model.eval(", "").replace(".eval()", "")]
        assert not users, word
