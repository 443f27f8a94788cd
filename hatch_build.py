"""Compile framework/system/native/ while the package is built.

Without a compiler the package works, only slower.

python hatch_build.py    # compile in place, on a machine that cannot install the package
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # this file runs as a script
    BuildHookInterface = object

# -ffp-contract=off keeps numbers as torch's operators round them. -fno-trapping-math changes none,
# and lets more loops be vectorized.
FLAGS = ("-O3", "-fPIC", "-ffp-contract=off", "-fno-trapping-math")
OPENMP = (["-fopenmp"], [])  # Apple's compiler has none


class CompileNative(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        library = _library(Path(self.root))
        if not _compile(library):
            build_data["artifacts"].append(str(library.relative_to(self.root)))
            build_data["pure_python"] = False
            build_data["tag"] = (
                f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            )
        else:
            self.app.display_warning(
                "no C compiler: torch and OpenCV will scale images, up to one level off, gather "
                "raw records, at half the speed, and augment on the CPU, at a quarter or less"
            )


def _library(root: Path) -> Path:
    return root / "framework" / "system" / "native" / "_native.so"


def _compile(library: Path) -> str:
    """Compile the C files beside ``library`` into it. Return "", or what the compiler said."""
    sources = sorted(library.parent.glob("*.c"))
    said = ""
    for openmp in OPENMP:
        said = _compile_with(sources, library, openmp)
        if not said:
            break
    return said


def _compile_with(sources: list[Path], library: Path, openmp: list[str]) -> str:
    """Compile ``sources`` into ``library``. Return "", or what the compiler said.

    OpenMP is compiled for but not linked, since torch brings its own. Two would compete for the
    cores.
    """
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    middles = [library.with_name(f"{source.stem}.o") for source in sources]
    try:
        for source, middle in zip(sources, middles, strict=True):
            subprocess.run(
                [*compiler, *FLAGS, *openmp, "-c", str(source), "-o", str(middle)],
                check=True,
                capture_output=True,
                text=True,
            )
        subprocess.run(
            [*compiler, "-shared", *map(str, middles), "-o", str(library)],
            check=True,
            capture_output=True,
            text=True,
        )
    except OSError as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        return error.stderr or str(error)
    finally:
        for middle in middles:
            middle.unlink(missing_ok=True)
    return ""


if __name__ == "__main__":
    sys.exit(_compile(_library(Path(__file__).parent)) or 0)
