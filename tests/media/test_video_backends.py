"""Decoders other than PyAV: chosen by name, checked by time, and left for PyAV when in doubt."""

from __future__ import annotations

import importlib
import io
import sys
import types
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
import torch

from tests.media.files import Recipe, moving, read_numbers
from vllm_mimo.media.decoders import registry
from vllm_mimo.media.video import decode_video

PACKAGE = "vllm_mimo.media.decoders."
OTHERS = ("torchcodec", "decord", "nvdec")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Decoders are imported anew by each test, and by what comes after."""

    def forget() -> None:
        for name in OTHERS:
            sys.modules.pop(PACKAGE + name, None)

    forget()
    yield
    forget()


@pytest.fixture(scope="module")
def data() -> bytes:
    times = [Fraction(k, 30) for k in range(90)]
    return Recipe(times, ticks=30_000, fps=30, gop=20, size=(96, 64), picture=moving).make()


def tenth(total: int, _: float) -> list[int]:
    return list(range(4, total, 10))


def whole(data: bytes) -> tuple[np.ndarray, list[float]]:
    """All pictures and their times, by PyAV."""
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(video=0))
    pictures = np.stack([frame.to_ndarray(format="rgb24") for frame in frames])
    return pictures, [float(frame.pts * frame.time_base) for frame in frames]


class Library:
    """Stands for torchcodec's decoder; wrong in the ways that are asked for."""

    late = 0.0
    missing = 0
    cpu_fallback = False
    devices: list[str]
    error: Exception | None = None

    def __call__(self, source: bytes, device: str = "cpu", **options: Any) -> Library:
        if options.get("num_ffmpeg_threads") != 1:
            raise ValueError("no video")  # as the probe at import expects
        self.pictures, self.times = whole(source)
        self.devices.append(device)
        return self

    def __len__(self) -> int:
        return len(self.times) - self.missing

    def get_frames_at(self, indices: list[int]) -> types.SimpleNamespace:
        if self.error is not None:
            raise self.error
        times = torch.tensor(self.times, dtype=torch.float64)[indices] + self.late
        return types.SimpleNamespace(
            data=torch.from_numpy(self.pictures)[indices], pts_seconds=times
        )


@pytest.fixture
def torchcodec(monkeypatch: pytest.MonkeyPatch) -> Library:
    library = Library()
    library.devices = []
    module: Any = types.ModuleType("torchcodec.decoders")
    module.VideoDecoder = library
    monkeypatch.setitem(sys.modules, "torchcodec", types.ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", module)
    return library


def decode(data: bytes, backend: str, threads: int = 2) -> tuple[str, list[int]]:
    found = decode_video(data, tenth, audio_rate=None, threads=threads, backend=backend)
    pictures, _ = whole(data)
    assert np.array_equal(found.frames, pictures[list(found.indices)])
    return found.work.backend, read_numbers(found.frames)


NUMBERS = list(range(4, 90, 10))


def test_torchcodec_has_a_decoder_for_each_part(data: bytes, torchcodec: Library) -> None:
    assert decode(data, "torchcodec") == ("torchcodec", NUMBERS)
    assert torchcodec.devices == ["cpu", "cpu"]


@pytest.mark.parametrize(
    "fault", [{"late": 1 / 30}, {"missing": 1}, {"error": RuntimeError("lost")}]
)
def test_what_torchcodec_has_wrong_is_decoded_again(
    data: bytes, torchcodec: Library, fault: dict[str, Any]
) -> None:
    for name, value in fault.items():
        setattr(torchcodec, name, value)
    assert decode(data, "torchcodec") == ("pyav", NUMBERS)


def test_a_turned_video_is_left_to_pyav(torchcodec: Library) -> None:
    times = [Fraction(k, 10) for k in range(30)]
    turned = Recipe(times, rotation=90, gop=10).make()
    found = decode_video(turned, tenth, audio_rate=None, backend="torchcodec")
    assert found.work.backend == "pyav"
    assert found.frames.shape[1:] == (64, 48, 3)


def test_nvdec_does_not_fall_back_to_the_cpu_in_silence(
    data: bytes, torchcodec: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert decode(data, "nvdec") == ("nvdec", NUMBERS)
    assert set(torchcodec.devices) == {"cuda"}
    torchcodec.cpu_fallback = True
    assert decode(data, "nvdec") == ("pyav", NUMBERS)


def test_nvdec_without_a_device(torchcodec: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ImportError, match=r"'nvdec' needs a CUDA device.*choose 'pyav'"):
        registry.decoder("nvdec")


@pytest.mark.parametrize("name", ["torchcodec", "decord"])
def test_a_library_that_is_absent_is_named(
    data: bytes, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, name + ".decoders", None)
    with pytest.raises(ImportError, match=rf"decoder '{name}' needs the package.*choose 'pyav'"):
        decode_video(data, tenth, audio_rate=None, backend=name)


def test_decord(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader:
        def __init__(self, source: io.BytesIO, ctx: str, num_threads: int) -> None:
            assert (ctx, num_threads) == ("cpu", 1)
            self.pictures, self.times = whole(source.read())

        def __len__(self) -> int:
            return len(self.times)

        def get_frame_timestamp(self, numbers: list[int]) -> np.ndarray:
            return np.array([(self.times[k] + late, self.times[k] + 1 / 30) for k in numbers])

        def get_batch(self, numbers: list[int]) -> types.SimpleNamespace:
            return types.SimpleNamespace(asnumpy=lambda: self.pictures[numbers])

    late = 0.0
    fake: Any = types.ModuleType("decord")
    fake.VideoReader, fake.cpu, fake.DECORDError = Reader, lambda _: "cpu", RuntimeError
    monkeypatch.setitem(sys.modules, "decord", fake)
    assert decode(data, "decord") == ("decord", NUMBERS)
    late = 0.1
    assert decode(data, "decord") == ("pyav", NUMBERS)


def test_no_library_is_imported_before_it_is_used() -> None:
    import subprocess

    code = "import sys, vllm_mimo.media.video; print({'torchcodec', 'decord'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_the_real_torchcodec(data: bytes) -> None:
    try:
        importlib.import_module(PACKAGE + "torchcodec")
    except ImportError as error:
        pytest.skip(f"torchcodec needs FFmpeg's shared libraries of the machine: {error}")
    found = decode_video(data, tenth, audio_rate=None, threads=2, backend="torchcodec")
    pictures, _ = whole(data)
    assert found.work.backend == "torchcodec"
    assert read_numbers(found.frames) == NUMBERS
    # Another release of FFmpeg may round colours otherwise.
    assert np.abs(found.frames.astype(int) - pictures[list(found.indices)]).max() <= 2
