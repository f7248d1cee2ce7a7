"""Builds the native extension; all metadata is in pyproject.toml.

`python setup.py build_ext --inplace` builds it for the torch of this Python. Where torch, cmake or
a compiler is missing (as in pip's isolated builds, unless --no-build-isolation is given), the
package is installed without it and uses torch in its place; VLLM_MIMO_BUILD_NATIVE=1 makes that an
error.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
NAME = "vllm_mimo.native._C"
# For source distributions.
SOURCES = ["CMakeLists.txt", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/*"))]


def find_program(name: str) -> str | None:
    """A program beside this Python, where the wheels of cmake and ninja put it, or on PATH."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


class CMakeBuild(build_ext):
    """Runs CMake in place of setuptools' own compiler calls."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        torch = importlib.util.find_spec("torch")
        if torch is None or torch.origin is None:
            self.skip("torch is missing")
            return
        cmake = find_program("cmake")
        if cmake is None:
            self.skip("cmake is missing")
            return
        ninja = find_program("ninja")
        build = Path(self.build_temp).resolve()
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        configure = [
            cmake,
            *["-S", str(ROOT), "-B", str(build)],
            *(["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []),
            f"-DTORCH_DIR={Path(torch.origin).parent}",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target.parent}",
        ]
        # An nvcc that does not work must not cost the operations on the CPU.
        for cuda in ("ON", "OFF"):
            # Anew each time: CMake refuses a folder that was configured elsewhere.
            shutil.rmtree(build, ignore_errors=True)
            try:
                subprocess.run([*configure, f"-DMIMO_CUDA={cuda}"], check=True)
                subprocess.run([cmake, "--build", str(build)], check=True)
                return
            except (subprocess.CalledProcessError, OSError):
                continue
        self.skip("cmake or the compiler failed, see above")

    def skip(self, why: str) -> None:
        """Go on without the extension."""
        if os.environ.get("VLLM_MIMO_BUILD_NATIVE") == "1":
            sys.exit(f"vllm-mimo: the native extension was not built: {why}")
        print(f"vllm-mimo: the native extension was not built ({why}); torch does its work")


setup(
    ext_modules=[Extension(NAME, sources=[], depends=SOURCES, optional=True)],
    cmdclass={"build_ext": CMakeBuild},
)
