"""Files that try to execute code or to follow a path, and leave a canary if they succeed."""

import io
import json
import os
import pickle
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from copy import copy
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import lmdb
import numpy as np
import torch

from framework.system.run_dir import read_json, write_object
from framework.train import checkpoint
from tests.cli.command import Done
from tests.conftest import edited_manifest, make_records, write_store
from tests.faults import forked, lanes
from tests.store import test_hdf5_store as plants

CANARY = "canary"
TOUCH = f"touch {CANARY}"
EVIL = (
    f"open({CANARY!r}, 'w').close()\n"
    "import torch\n"
    "class Net(torch.nn.Module):\n"
    "    pass\n"
    "def run(*_, **__):\n"
    "    return {}\n"
)
BOX = "box"  # where the command stands; what is beside it must stay as it was


class Payload(NamedTuple):
    """A hostile input for the command."""

    name: str  # what the reports call it
    plant: Callable[[], list[str]]  # writes it into the working directory; returns the command line
    codes: tuple[int, ...]  # the exit codes that the command may end with


def payload(name: str, code: int, plant: Callable[..., list[str]], *arguments: Any) -> Payload:
    return Payload(name, partial(plant, *arguments), (code,))


# -------------------------------------------------------------------------------------- checkpoints


class Reduced:
    """Calls ``function`` when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


def nested_bytes() -> bytes:
    """Return a pickle that runs a command, to be loaded by another pickle."""
    file = io.BytesIO()
    torch.save(Reduced(os.system, TOUCH), file)
    return file.getvalue()


CALLS: dict[str, Callable[[], Any]] = {
    "os.system": lambda: Reduced(os.system, TOUCH),
    "exec": lambda: Reduced(exec, f"open({CANARY!r}, 'w').close()"),
    "eval": lambda: Reduced(eval, f"open({CANARY!r}, 'w').close()"),
    "open": lambda: Reduced(open, CANARY, "w"),
    "Popen": lambda: Reduced(__import__("subprocess").Popen, ["touch", CANARY]),
    "import_module": lambda: Reduced(__import__("importlib").import_module, "evil"),
    "Path.touch": lambda: Reduced(Path.touch, Path(CANARY)),
    "copy": lambda: Reduced(shutil.copy, "evil.py", CANARY),
    "run_path": lambda: Reduced(__import__("runpy").run_path, "evil.py"),
    "torch.load inside": lambda: Reduced(torch.storage._load_from_bytes, nested_bytes()),
    "pickle.loads inside": lambda: Reduced(pickle.loads, pickle.dumps(Reduced(os.system, TOUCH))),
    "numpy": lambda: Reduced(np.save, f"{CANARY}.npy", np.zeros(1)),
}
PLACES = ("model", "progress", "optimizer", "learned", "generators")
STRANGERS = ("../../x", -1, 1 << 70, float("nan"), None, [], {"x": 1}, torch.zeros(2))


@cache
def template() -> tempfile.TemporaryDirectory:
    """Return a folder with a run of three steps, which is made once and kept until its cleanup."""
    folder = tempfile.TemporaryDirectory()
    here = os.getcwd()
    os.chdir(folder.name)
    try:
        words = ["limit=64", "max_steps=3", "batch_size=16", "recipes=digits", "dataset=data"]
        done = forked.paceline("train", *words, "hydra.run.dir=run", "sink=[jsonl]")
    finally:
        os.chdir(here)
    assert done.code == 0, done.err
    return folder


def a_run() -> Path:
    """Copy the run into the working directory and return the path of its newest state."""
    for name in ("run", "data"):
        shutil.copytree(Path(template().name, name), name)
    return next(Path("run/checkpoints").glob("step-*.pt"))


RESUME = ["train", "resume=run", "max_steps=5"]


def state_with(place: str, make: Callable[[], Any]) -> list[str]:
    """Plant a state with another object in one place, or in place of the whole ("")."""
    path = a_run()
    state = checkpoint.read_state(path)
    planted = make()
    checkpoint.save_state(path, {**state, place: planted} if place else planted, 3, 99)
    return RESUME


def nested() -> list[str]:
    path = a_run()
    state = checkpoint.read_state(path)
    state["progress"]["step"] = [{"x": ({"y": Reduced(os.system, TOUCH)},)}]
    checkpoint.save_state(path, state, 3, 99)
    return RESUME


def other_bytes(make: Callable[[], bytes], with_end: bool = True) -> list[str]:
    """Replace a state by bytes that are no zip of torch's, but have a valid end of ours."""
    path = a_run()
    data = make()
    end = checkpoint._END.pack(checkpoint._MAGIC, checkpoint.VERSION, 3, 99, len(data), crc32(data))
    path.write_bytes(data + (end + checkpoint._CRC.pack(crc32(end)) if with_end else b""))
    return RESUME


def legacy() -> bytes:
    file = io.BytesIO()
    torch.save({"model": Reduced(os.system, TOUCH)}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def zipped(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def good_and_bad() -> bytes:
    """Return an archive with two members of one name, of which readers read either."""
    evil = pickle.dumps(Reduced(os.system, TOUCH), 2)
    whole = (("x/data.pkl", pickle.dumps({}, 2)), ("x/data.pkl", evil))
    return zipped(*whole, ("x/version", b"3\n"), ("x/byteorder", b"little"))


def tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            data = pickle.dumps(Reduced(os.system, TOUCH), 2)
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def numpy_objects() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Reduced(os.system, TOUCH)], dtype=object), allow_pickle=True)
    return file.getvalue()


BYTES: dict[str, Callable[[], bytes]] = {
    "legacy": legacy,
    "two data.pkl": good_and_bad,
    "tar": tarred,
    "pickle": lambda: pickle.dumps(Reduced(os.system, TOUCH)),
    "pickle of protocol 0": lambda: pickle.dumps(Reduced(os.system, TOUCH), 0),
    "npy of objects": numpy_objects,
    "zip of nothing": zipped,
    "zip with code": lambda: zipped(
        ("x/data.pkl", pickle.dumps({}, 2)), ("x/code/__torch__.py", EVIL.encode())
    ),
    "TorchScript": lambda: zipped(
        ("x/constants.pkl", pickle.dumps(Reduced(os.system, TOUCH), 2)),
        ("x/data.pkl", b"\x80\x02N."),
    ),
    "names that lead out": lambda: zipped(("../../x/data.pkl", pickle.dumps({}, 2))),
}


def checkpoints() -> list[Payload]:
    system, files = CALLS["os.system"], list(BYTES.items())
    parts = ("model", "progress", "optimizer", "generators")
    kinds = [(part, value) for part in parts for value in STRANGERS[:4]]
    return [
        *(payload(f"state is {name}", 4, state_with, "", make) for name, make in CALLS.items()),
        *(payload(f"{place} is os.system", 4, state_with, place, system) for place in PLACES),
        payload("nested deep", 4, nested),
        *(payload(f"file is {name}", 4, other_bytes, make) for name, make in files),
        *(
            payload(f"file is {name}, bare", 4, other_bytes, make, False)
            for name, make in files[:4]
        ),
        *(payload(f"{p} = {v!r}", 4, state_with, p, partial(copy, v)) for p, v in kinds),
    ]


# ---------------------------------------------------------------------------- files of weights


def start_from(name: str, make: Callable[[], bytes]) -> list[str]:
    """Write a file that ``init`` reads, beside real data, and return words that train from it."""
    a_run()
    evil_files()
    Path(name).write_bytes(make())
    return ["train", "recipes=digits", "dataset=data", "limit=64", "max_steps=1", f"init={name}"]


def weights_with(place: str, make: Callable[[], Any]) -> bytes:
    """Return a ``state_dict`` with another object in one place, or in place of it all ("")."""
    state = torch.load("run/checkpoints/last.pt", weights_only=True)
    file = io.BytesIO()
    torch.save({**state, place: make()} if place else make(), file)
    return file.getvalue()


def bomb() -> bytes:
    """Return an archive that unpacks to far more than it is long."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", bytes(1 << 24))
    return file.getvalue()


def safetensors(header: bytes, length: int | None = None) -> bytes:
    size = len(header) if length is None else length
    return size.to_bytes(8, "little") + header + bytes(8)


STRANGE_WEIGHTS: dict[str, Callable[[], Any]] = {
    "a shape without numbers": lambda: torch.zeros(1).expand(1 << 40),
    "a meta tensor": lambda: torch.empty(1 << 50, device="meta"),
    "a sparse tensor": lambda: torch.zeros(3).to_sparse(),
    "another shape": lambda: torch.zeros(3, 3, 3, 3, 3),
    "a text": lambda: "../../x",
}
HEADERS = {
    "beyond the end": b'{"head.bias":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
    "terabytes": b'{"head.bias":{"dtype":"F32","shape":[4000000000000],"data_offsets":[0,8]}}',
    "a negative shape": b'{"head.bias":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}',
    "another shape": b'{"head.bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "nested deep": b'{"x":' * 5000,
}


def weight_files() -> list[Payload]:
    def of_part(place: str, make: Callable[[], Any]) -> list[str]:
        return start_from("x.pth", partial(weights_with, place, make))

    def of_header(*header: Any) -> list[str]:
        return start_from("x.safetensors", partial(safetensors, *header))

    places = [
        (n, make, place) for n, make in CALLS.items() for place in ("", "head.bias", "state_dict")
    ]
    strange = STRANGE_WEIGHTS.items()
    return [
        *(payload(f"init {n} at {place!r}", 4, of_part, place, make) for n, make, place in places),
        *(payload(f"init head.bias is {n}", 4, of_part, "head.bias", make) for n, make in strange),
        *(payload(f"init file is {n}", 4, start_from, "x.pth", make) for n, make in BYTES.items()),
        *(payload(f"init header of {n}", 4, of_header, header) for n, header in HEADERS.items()),
        payload("init header without end", 4, of_header, b"{}", 1 << 60),
        payload("init zip bomb", 4, start_from, "x.pth", bomb),
    ]


# ----------------------------------------------------------------------------------- configurations

SYSTEM = {"_target_": "os.system", "_args_": [TOUCH]}
TARGETS: dict[str, dict[str, Any]] = {
    "os.system": {"_args_": [TOUCH]},
    "posix.system": {"_args_": [TOUCH]},
    "logging.os.system": {"_args_": [TOUCH]},
    "subprocess.call": {"_args_": [["touch", CANARY]]},
    "subprocess.Popen": {"args": ["touch", CANARY]},
    "builtins.exec": {"_args_": [f"open('{CANARY}', 'w')"]},
    "builtins.eval": {"_args_": [f"open('{CANARY}', 'w')"]},
    "builtins.open": {"file": CANARY, "mode": "w"},
    "importlib.import_module": {"name": "evil"},
    "evil.Net": {},
    "runpy.run_path": {"path_name": "evil.py"},
    "pathlib.Path.write_text": {"_args_": [CANARY, "x"]},
    "pathlib.Path.touch": {"_args_": [{"_target_": "pathlib.Path", "_args_": [CANARY]}]},
    "code.InteractiveInterpreter": {"locals": {}},
    "multiprocessing.Process": {"target": {"_target_": "evil.run", "_partial_": True}},
    "torch.load": {"f": "evil.pt", "weights_only": False},
    "torch.hub.load": {"repo_or_dir": ".", "model": "run", "source": "local"},
    "torch.jit.load": {"f": "evil.pt"},
    "pickle.load": {"file": "evil.pt"},
    "shutil.copy": {"src": "evil.py", "dst": CANARY},
    "hydra.utils.instantiate": {"config": SYSTEM},
    "hydra.utils.call": {"config": SYSTEM},
    "framework.main.os.system": {"_args_": [TOUCH]},
    "framework.run.subprocess.call": {"_args_": [["touch", CANARY]]},
    "framework.train.checkpoint.torch.load": {"_args_": ["evil.pt"], "weights_only": False},
    "framework.system.durable.write_text": {"_args_": [CANARY, "x"]},
    "framework.parallel.start_ranks.launch": {"_args_": [1, "evil", [], {}]},
    "framework.main.run": {
        "_args_": [["train", "model={_target_: evil.Net}", "allow_targets=[evil]"]]
    },
    "framework.model.digits_net.nn.modules.module.warnings.sys.modules": {},
    "framework.input.list.csv.csv.sys.exit": {},
    "torch.nn.modules.module.functools.partial": {"_args_": ["evil.run"]},
    "torch.nn.Module.__init__.__globals__": {},
    "torch.nn.parallel.distributed.os.system": {"_args_": [TOUCH]},
    "torch.optim.optimizer.torch.load": {"_args_": ["evil.pt"]},
    "torch.nn.Sequential": {"_args_": [SYSTEM]},
    "transformers.AutoModel.from_pretrained": {"_args_": ["."], "trust_remote_code": True},
    "transformers.AutoModelForImageClassification.from_pretrained": {
        "_args_": ["."],
        "weights_only": False,
    },
    "transformers.ViTModel.from_pretrained": {"_args_": [".", SYSTEM]},
    "transformers.ViTForImageClassification.from_pretrained": {"_args_": ["someone/model"]},
    "transformers.AutoConfig.from_pretrained": {"_args_": ["."], "trust_remote_code": True},
    "transformers.pipeline": {"_args_": ["image-classification", "."]},
    "transformers.utils.import_utils.os.system": {"_args_": [TOUCH]},
    "timm.create_model": {"model_name": "resnet18", "checkpoint_path": "evil.pt"},
    "timm.models.load_checkpoint": {"_args_": ["evil.pt"]},
    "torchvision.models.resnet18": {"weights": "DEFAULT"},
    "torchvision.models.get_model": {"_args_": ["fcn_resnet50"]},
    "torch.nn.Linear": {
        "in_features": {"_target_": "posix.system", "_args_": [TOUCH], "_partial_": False},
        "out_features": 1,
    },
}


def logging_by(handler: dict[str, str]) -> dict[str, Any]:
    return {"handlers": {"x": handler}, "root": {"handlers": ["x"]}}


def swept(**params: str) -> dict[str, Any]:
    return {"mode": "MULTIRUN", "sweeper": {"params": params}}


HYDRA: dict[str, Any] = {
    "callbacks": {"callbacks": {"x": SYSTEM}},
    "env_set": {"job": {"env_set": {"PATH": ".", "PACELINE_ALLOW_TARGETS": "evil"}}},
    "env_set of a library": {"job": {"env_set": {"LD_PRELOAD": "./evil.so"}}},
    "job_logging file": {
        "job_logging": logging_by({"class": "logging.FileHandler", "filename": CANARY})
    },
    "job_logging factory": {"job_logging": logging_by({"()": "evil.run"})},
    "job_logging ext": {
        "job_logging": {"formatters": {"x": {"format": "ext://evil.run"}}, "root": {"handlers": []}}
    },
    "hydra_logging": {"hydra_logging": logging_by({"class": "evil.Net"})},
    "launcher": {**swept(seed="1,2"), "launcher": {"_target_": "evil.Net"}},
    "sweeper": {"mode": "MULTIRUN", "sweeper": {"_target_": "evil.Net", "params": {"seed": "1,2"}}},
    "sweep of targets": swept(**{"model._target_": "evil.Net"}),
    "sweep allows": swept(**{"allow_targets": "[evil]", "model._target_": "evil.Net"}),
    "run.dir": {"run": {"dir": "../outside"}},
    "sweep.subdir": {**swept(seed="1,2"), "sweep": {"subdir": "../../../outside"}},
    "output_subdir": {"output_subdir": "../../../outside"},
    "overrides": {"overrides": {"task": ["allow_targets=[evil]", "model._target_=evil.Net"]}},
    "searchpath": {"searchpath": ["pkg://evil"]},
}


def evil_files() -> None:
    """Write the files that a payload would call."""
    Path("evil.py").write_text(EVIL)
    Path("evil.pt").write_bytes(nested_bytes())
    Path("hubconf.py").write_text(EVIL)


def recipe(body: dict[str, Any], folder: str = "mine/recipes") -> None:
    evil_files()
    Path(folder).mkdir(parents=True)
    text = json.dumps({"defaults": ["digits"], **body}, indent=1)  # YAML, too
    Path(folder, "sent.yaml").write_text(f"# @package _global_\n{text}\n")


def by_recipe(body: dict[str, Any]) -> list[str]:
    recipe(body)
    return ["train", "--config-dir", "mine", "recipes=sent"]


def by_recipe_here(body: dict[str, Any]) -> list[str]:
    recipe(body, "recipes")
    return ["train", "--config-dir", ".", "recipes=sent"]


def by_choice(group: str, block: dict[str, Any]) -> list[str]:
    """Write a file of a group into somebody's folder, and return the words that choose it."""
    evil_files()
    Path("mine", group).mkdir(parents=True)
    Path("mine", group, "sent.yaml").write_text(json.dumps(block))
    return ["train", "--config-dir", "mine", f"{group}=sent"]


def by_word(*words: str) -> list[str]:
    evil_files()
    return ["train", *words]


def by_run(change: dict[str, Any]) -> list[str]:
    """Write a run's directory that somebody sent, and return the words that resume it."""
    a_run()
    evil_files()
    path = Path("run/run.json")
    write_object(path, {**read_json(path), **change}, redact=False)  # as an attacker signs it
    return RESUME


def flow(block: Any) -> str:
    """Return a block as Hydra's grammar takes it."""
    if isinstance(block, dict):
        return "{" + ",".join(f"{key}:{flow(value)}" for key, value in block.items()) + "}"
    if isinstance(block, list):
        return "[" + ",".join(map(flow, block)) + "]"
    return "'" + block.replace("'", "\\'") + "'" if isinstance(block, str) else str(block).lower()


RUNS: dict[str, dict[str, Any]] = {
    "searchpath": {"overrides": ["hydra.searchpath=[pkg://evil]"]},
    "launcher": {"overrides": ["hydra/launcher=evil"]},
    "option": {"overrides": ["--experimental-rerun=evil.pt"]},
    "target": {"overrides": ["model._target_=evil.Net"]},
    "allow": {"overrides": ["allow_targets=[evil]", "model._target_=evil.Net"]},
    "run dir": {"overrides": ["hydra.run.dir=../outside"]},
    "config dir": {"config_dir": "--experimental-rerun=evil.pt"},
    "config dir of another kind": {"config_dir": 5},
    "no words": {"overrides": 5},
    "words of another kind": {"overrides": [{"x": 1}]},
}
WORDS = {
    "searchpath": ["hydra.searchpath=[pkg://evil]"],
    "rerun": ["--experimental-rerun", "evil.pt"],
    "launcher": ["-m", "hydra.launcher._target_=evil.Net", "seed=1,2"],
    "env_set": ["+hydra.job.env_set.PATH=."],
    "out": ["recipes=../../outside"],
    "subdir": ["-m", "seed=1,2", "hydra.sweep.subdir=../../outside"],
    "sweep": ["-m", "model._target_=os.system", "seed=1"],
    "transform function": ["transform=function", "transform.function=evil.run"],
    "tune out": ["tune", "name=../../outside"],
    "tune absolute": ["tune", f"name=/tmp/{CANARY}"],
}


def configurations() -> list[Payload]:
    payloads: list[Payload] = []
    ways: tuple[Callable[[dict[str, Any]], list[str]], ...] = (
        lambda block: by_word("~model", f"+model={flow(block)}"),
        lambda block: by_recipe({"model": block}),
        lambda block: by_recipe_here(
            {"objective": {"_target_": "torch.nn.Sequential", "_args_": [block]}}
        ),
        lambda block: by_choice("loader", block),
        lambda block: by_choice("sink", {"x": block}),
    )
    for number, (target, rest) in enumerate(TARGETS.items()):
        block = {"_target_": target, **rest}
        partially = {"optim": {**block, "_partial_": True, "_convert_": "all"}}
        payloads.append(payload(f"{target}, way {number % 5}", 2, ways[number % 5], block))
        payloads.append(payload(f"{target}, partial", 2, by_recipe, partially))
    return [
        *payloads,
        *(payload(f"hydra {n}", 2, by_recipe, {"hydra": block}) for n, block in HYDRA.items()),
        *(Payload(f"run.json {n}", partial(by_run, change), (2, 4)) for n, change in RUNS.items()),
        *(Payload(f"words {n}", partial(typed, words), (2, 3)) for n, words in WORDS.items()),
    ]


def typed(words: list[str]) -> list[str]:
    Path("../outside.yaml").write_text("seed: 1\n")
    evil_files()
    return words if words[0] == "tune" else ["train", *words]


# ------------------------------------------------------------------------------------------- stores


def read_by(path: str) -> list[str]:
    data = "lmdb" if path.endswith(".lmdb") else "hdf5"
    few = ["data.val=null", "prepare=null", "batch_size=3", "max_steps=1"]
    return ["train", f"data={data}", f"data.train={path}", *few]


def hdf5(plant: Callable[..., Any], name: str, command: str) -> list[str]:
    """Write a store with something else in a dataset's place, and return words that read it."""
    records = {"image": [b"abc", b"def", b"ghi"], "label": np.arange(3)}
    write_store("x.h5", records, plants.IMAGE_FIELDS)
    plants._edit("x.h5", plants._replace(name, plant))
    return read_by("x.h5") if command == "train" else [command, "x.h5"]


def lmdb_value(key: bytes, make: Callable[[], bytes]) -> list[str]:
    path = write_store("x.lmdb", make_records(3))
    with (
        lmdb.open(path, subdir=False, lock=False, lib_version=0) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(key, make())
    return ["verify", path]


def shard_named(name: str) -> list[str]:
    """Write a folder whose manifest names a file elsewhere, and return words that inspect it."""
    write_store("../outside.h5", make_records(3))
    os.mkdir("x")
    path = write_store("part.h5", make_records(3))
    import h5py

    with h5py.File(path) as file:
        text = file.attrs["manifest"]
    shard = {"name": name, "num_records": 3, "size_bytes": os.path.getsize(path)}
    text = edited_manifest(text, shards=[{**shard, "sha256": "", "digest": ""}])
    Path("x/manifest.json").write_text(text)
    return ["inspect", "x"]


OUTSIDE = (
    *("../../outside.h5", "/etc/hostname", "..", ".", "", "a/../../../outside.h5", "a\0b.h5"),
    *("~/x.h5", "$HOME/x", "..\\..\\x"),
)
PICKLED = {
    "pickle": lambda: pickle.dumps(Reduced(os.system, TOUCH)),
    "pickle of protocol 0": lambda: pickle.dumps(Reduced(os.system, TOUCH), 0),
    "torch": nested_bytes,
    "npy of objects": numpy_objects,
}


def stores() -> list[Payload]:
    payloads: list[Payload] = []
    for number, plant in enumerate(plants.PLANTS):
        for place in ("records/label", "records/image/data", "crc32"):
            name, command = f"HDF5 {plant.__name__} {place}", ("train", "verify")[number % 2]
            payloads.append(payload(name, 3, hdf5, plant, place, command))
    for name, make in PICKLED.items():
        record = (1).to_bytes(8, "big")
        payloads.append(payload(f"LMDB record {name}", 3, lmdb_value, record, make))
        payloads.append(payload(f"LMDB manifest {name}", 3, lmdb_value, b"manifest", make))
    return payloads + [payload(f"shard {name!r}", 3, shard_named, name) for name in OUTSIDE]


# ----------------------------------------------------------------------------------------- archives


def tar(name: str, data: bytes) -> list[str]:
    """Write a shard of one file, and return the words that pack it."""
    with tarfile.open("x.tar", "w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return ["pack", "input=tar", "input.path=x.tar", "output.path=x.h5"]


def arrays(name: str, make: Callable[[], bytes]) -> list[str]:
    Path(name).write_bytes(make())
    return ["pack", "input=arrays", f"input.path={name}", "output.path=x.h5"]


def link_in_folder() -> list[str]:
    """Write a folder that holds only a link to a file elsewhere. Return the words that pack it."""
    Path("../outside.jpg").write_bytes(b"secret")
    Path("images/a").mkdir(parents=True)
    Path("images/a/x.jpg").symlink_to("../../../outside.jpg")
    return ["pack", "input.path=images", "output.path=x.h5"]


def listed(path: str) -> list[str]:
    Path("../outside.jpg").write_bytes(b"secret")
    Path("x.csv").write_text(f"image,label\n{path},1\n")
    return ["pack", "input=list", "input.path=x.csv", "output.path=x.h5"]


def archives() -> list[Payload]:
    lists = (
        *("../outside.jpg", "/etc/hostname", "a/../../outside.jpg", "file:///etc/hostname"),
        *("|touch canary", "$(touch canary).jpg"),
    )
    return [
        Payload("tar of pickles", partial(tar, "a.npy", numpy_objects()), (2, 3)),
        payload("npy of objects", 3, arrays, "x.npy", numpy_objects),
        payload(
            "npz of objects", 3, arrays, "x.npz", lambda: zipped(("image.npy", numpy_objects()))
        ),
        payload("a pickle called npy", 3, arrays, "x.npy", PICKLED["pickle"]),
        payload("names that lead out", 3, arrays, "x.npz", lambda: zipped(("../../x.npy", b"x"))),
        payload("a link in a folder", 3, link_in_folder),
        *(payload(f"list {name!r}", 3, listed, name) for name in lists),
    ]


# ----------------------------------------------------------------------------------------- attempts


KINDS: dict[str, Callable[[], list[Payload]]] = {
    "checkpoints": checkpoints,
    "files of weights": weight_files,
    "configurations": configurations,
    "stores": stores,
    "archives": archives,
}


@cache
def attempts() -> list[Payload]:
    """Return all payloads. The index of a payload is its number."""
    return [payload for payloads in KINDS.values() for payload in payloads()]


def attempt(number: int) -> str:
    """Plant a payload, give it to the command, and return what went wrong, or ""."""
    tried = attempts()[number]
    os.mkdir(BOX)
    os.chdir(BOX)
    words = tried.plant()
    around = outside()
    wrong = verdict(tried, forked.paceline(*words, limit_s=60), around)
    return f"{tried.name}: {wrong}" if wrong else ""


def outside() -> dict[str, bytes]:
    """Return the files beside the box."""
    files = [path for path in Path("..").iterdir() if path.is_file() or path.name != BOX]
    return {path.name: path.read_bytes() for path in files}


def verdict(tried: Payload, done: Done, around: dict[str, bytes]) -> str:
    """Return what went wrong, or ""."""
    if canaries := [str(path) for path in Path("..").rglob(f"{CANARY}*")]:
        return f"EXECUTED: {canaries}"
    if outside() != around:
        return f"FOLLOWED: {sorted(outside())} are around it now"
    if "Traceback" in done.out + done.err:
        return f"a traceback: {done.err[-300:]}"
    lines = [line for line in done.err.splitlines() if line.startswith("error[")]
    if done.code not in tried.codes or len(lines) != 1:
        return f"exit code {done.code}, {len(lines)} error lines: {done.err[-300:]}"
    return ""


def rows(times: int, seed: int) -> Iterator[lanes.Row]:
    """Try about ``times`` payloads, spread evenly over the kinds, each at most once."""
    template()
    start = 0
    for kind, payloads in KINDS.items():
        count = max(1, min(len(payloads()), round(len(payloads()) * times / len(attempts()))))
        fault = f"hostile {kind}: refused in one line, nothing executed or followed"
        yield lanes.repeat_numbered(fault, attempt, range(start, start + count), seed)
        start += len(payloads())
    template().cleanup()
    template.cache_clear()
