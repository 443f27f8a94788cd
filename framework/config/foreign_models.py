"""Models of timm, torchvision and transformers, which a configuration may name as they are.

Such a model is built without a download, and nothing that is executed is read from a file or a
folder. Whoever allows the package on the command line may do anything with it.
"""

import os
import re
from collections.abc import Sequence
from typing import Any

from framework.errors import ConfigError, PacelineError
from framework.system.extras import pip_install

Config = dict[str, Any]

# What may be named without ``allow_targets``: functions and classes that only build a model.
ENTRIES = re.compile(
    r"timm\.create_model"
    r"|torchvision\.models\.((segmentation|detection|video)\.)?(?!get_|list_)[a-z]\w*"
    r"|transformers\.[A-Z]\w*(Config|Model|For[A-Z]\w*)(\.from_pretrained|\.from_config)?"
)
EXTRAS = {"timm": "timm", "torchvision": "timm", "transformers": "huggingface"}
FOLDER = "pretrained_model_name_or_path"
# Keys of timm and torchvision that read weights. What stands in a list depends on the version.
LOADING = ("weights", "weights_backbone", "checkpoint_path", "cache_dir", "_args_")
# Keys of transformers whose other values download, unpickle or execute something.
SAFE = {"local_files_only": True, "trust_remote_code": False, "weights_only": True}
LOADS = "output_loading_info"


def is_foreign(target: Any) -> bool:
    """Return whether a name is one of another library's models."""
    return isinstance(target, str) and ENTRIES.fullmatch(target) is not None


def is_from_folder(target: Any) -> bool:
    """Return whether a name is that of a model of transformers with the weights in a folder."""
    return is_foreign(target) and target.endswith(".from_pretrained") and "Config." not in target


def secured(where: str, block: Config, allowed: Sequence[str]) -> Config:
    """Return the arguments of a model of another library, with those that make it safe.

    Args:
        where: The block's name in the configuration, for messages.
        block: ``_target_`` and its arguments; any other block stays as it is.
        allowed: Prefixes of the user's packages.

    Raises:
        ConfigError: C302 for an argument that downloads, unpickles or executes something, C303 for
            a folder that is not there.
    """
    target = block.get("_target_")
    if not is_foreign(target):
        return block
    package = str(target).partition(".")[0]
    is_allowed = f"{package}.".startswith(tuple(allowed)) if allowed else False
    if package == "transformers":
        return _of_transformers(where, block, is_allowed)
    if is_allowed:
        return block
    if package == "timm" and (arguments := list(block.get("_args_") or [])):
        block = {**block, "model_name": arguments[0], "_args_": arguments[1:]}
    _check_safe(where, block, package)
    if re.match(r"torchvision\.models\.(segmentation|detection)\.", str(target)):
        return {"weights_backbone": None, **block}  # its default is downloaded
    return block


def _check_safe(where: str, block: Config, package: str) -> None:
    """Raise ConfigError C302 for an argument of timm or torchvision that reads weights."""
    for key, value in block.items():
        loads = key.startswith("pretrained") or key in LOADING
        is_elsewhere = key == "model_name" and ":" in str(value)
        if (loads and value) or is_elsewhere:
            raise _unsafe(where, key, value, package)


def _of_transformers(where: str, block: Config, is_allowed: bool) -> Config:
    target = str(block["_target_"])
    if not target.endswith((".from_pretrained", ".from_config")):
        return block
    safe = dict(SAFE)
    if target.endswith(".from_config") or "Config." in target:
        del safe["weights_only"]
    if target.endswith(".from_config"):
        del safe["local_files_only"]
    if not is_allowed:
        for key, value in safe.items():
            if block.get(key, value) != value:
                raise _unsafe(where, key, block[key], "transformers")
        if "/" in str(block.get("attn_implementation", "")):
            key = "attn_implementation"
            raise _unsafe(where, key, block[key], "transformers")
    if target.endswith(".from_pretrained"):
        _check_folder(where, block)
    if is_from_folder(target):
        safe["ignore_mismatched_sizes"] = True  # a head for other classes; all else is refused
    return {**safe, **block}


def _check_folder(where: str, block: Config) -> None:
    path = block.get(FOLDER)
    if path is None:
        path = next(iter(block.get("_args_") or []), None)
    if path is None or not os.path.isdir(str(path)):
        what = "is no folder here, and Paceline downloads no model"
        fix = "download it before, with 'hf download NAME --local-dir FOLDER', and give the folder"
        raise ConfigError(303, f"{where}.{FOLDER} = {path}"[:200], what, fix)


def _unsafe(where: str, key: str, value: Any, package: str) -> PacelineError:
    what = "would download, unpickle or execute something"
    fix = (
        "give the weights as init=FILE, or if you trust it, "
        f"add 'allow_targets=[{package}]' on the command line"
    )
    return ConfigError(302, f"{where}.{key} = {value}"[:200], what, fix)


def prepare(target: Any) -> None:
    """Keep transformers off the network and quiet, before it is imported."""
    if is_foreign(target) and str(target).startswith("transformers."):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from transformers.utils import logging  # noqa: PLC0415

        logging.set_verbosity_error()
        logging.disable_progress_bar()


def advice(target: str) -> str:
    """Return how to install what a name needs, or to correct the name."""
    if not is_foreign(target):
        return "correct the name"
    return f"{pip_install(EXTRAS[target.partition('.')[0]])}, or correct the name"
