"""Compiles framework/data/gather.c while the package is built; where there is no compiler the package works without it, only slower."""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-O3", "-fPIC")
OPENMP = (["-fopenmp"], [])  # Apple's compiler has none


class CompileGather(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        source = Path(self.root, "framework", "data", "gather.c")
        library = source.with_name("_gather.so")
        if any(_compiled(source, library, openmp) for openmp in OPENMP):
            build_data["artifacts"].append(str(library.relative_to(self.root)))
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        else:
            self.app.display_warning("no C compiler: raw records will be gathered by torch, at half the speed")


def _compiled(source: Path, library: Path, openmp: list[str]) -> bool:
    """OpenMP is compiled for but not linked: torch brings its own, and two of them would fight for the cores."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    middle = library.with_suffix(".o")
    try:
        subprocess.run([*compiler, *FLAGS, *openmp, "-c", str(source), "-o", str(middle)], check=True, capture_output=True)
        subprocess.run([*compiler, "-shared", str(middle), "-o", str(library)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        middle.unlink(missing_ok=True)
    return True
