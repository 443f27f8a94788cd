"""Compiles framework/system/native/ while the package is built; where there is no compiler the package works without it, only slower."""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# of the last two one keeps numbers as torch's operators round them; the other changes none, and lets more loops be vectorized
FLAGS = ("-O3", "-fPIC", "-ffp-contract=off", "-fno-trapping-math")
OPENMP = (["-fopenmp"], [])  # Apple's compiler has none


class CompileNative(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        folder = Path(self.root, "framework", "system", "native")
        library = folder / "_native.so"
        if any(_compiled(sorted(folder.glob("*.c")), library, openmp) for openmp in OPENMP):
            build_data["artifacts"].append(str(library.relative_to(self.root)))
            build_data["pure_python"] = False
            build_data["tag"] = (
                f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            )
        else:
            self.app.display_warning(
                "no C compiler: torch will gather raw records, at half the speed, and augment on the CPU, at a quarter or less"
            )


def _compiled(sources: list[Path], library: Path, openmp: list[str]) -> bool:
    """OpenMP is compiled for but not linked: torch brings its own, and two of them would fight for the cores."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    middles = [library.with_name(f"{source.stem}.o") for source in sources]
    try:
        for source, middle in zip(sources, middles, strict=True):
            subprocess.run(
                [*compiler, *FLAGS, *openmp, "-c", str(source), "-o", str(middle)],
                check=True,
                capture_output=True,
            )
        subprocess.run(
            [*compiler, "-shared", *map(str, middles), "-o", str(library)],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        for middle in middles:
            middle.unlink(missing_ok=True)
    return True
