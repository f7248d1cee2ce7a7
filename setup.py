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


class CMakeBuild(build_ext):
    """Runs CMake in place of setuptools' own compiler calls."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        torch = importlib.util.find_spec("torch")
        if torch is None or torch.origin is None:
            self.skip("torch is missing")
            return
        cmake = shutil.which("cmake")
        if cmake is None:
            self.skip("cmake is missing")
            return
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        build = Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        folder = Path(torch.origin).parent
        configure = [
            cmake,
            *["-S", str(ROOT), "-B", str(build), *generator],
            f"-DTORCH_DIR={folder}",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target.parent}",
        ]
        try:
            subprocess.run(configure, check=True)
            subprocess.run([cmake, "--build", str(build)], check=True)
        except (subprocess.CalledProcessError, OSError) as error:
            self.skip(str(error))

    def skip(self, why: str) -> None:
        """Go on without the extension."""
        if os.environ.get("VLLM_MIMO_BUILD_NATIVE") == "1":
            sys.exit(f"vllm-mimo: the native extension was not built: {why}")
        print(f"vllm-mimo: the native extension was not built ({why}); torch does its work")


setup(
    ext_modules=[Extension(NAME, sources=[], optional=True)],
    cmdclass={"build_ext": CMakeBuild},
)
