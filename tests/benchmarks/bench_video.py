"""One video decoded by several decoders beside vLLM's own loaders.

    python -m tests.benchmarks.bench_video --folder /tmp/clips --make h264-250 h264-30
    python -m tests.benchmarks.bench_video --folder /tmp/clips h264-250 [--rounds 3] [--at-once 8]

The first form encodes clips (with PyAV, minutes), the second measures them, one JSON line a clip:
wall and CPU seconds (medians of rounds in which all take turns), memory above what was there
before, frames decoded, and frames unlike those of a plain decode of the whole. Peers are vLLM's
`opencv` loader and its `torchcodec`, where that can be loaded. `--at-once` decodes as many copies
at a time, from as many threads. `projection` is no measurement: it divides the time of one decoder
by what the plan for so many says about its largest part.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import io
import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from vllm_mimo.media.decoders.budget import usable_cores
from vllm_mimo.media.decoders.plan import locate, split
from vllm_mimo.media.decoders.process import set_decoding
from vllm_mimo.media.sampling import frame_indices
from vllm_mimo.media.timeline import scan
from vllm_mimo.media.video import DecodedVideo, decode_video
from vllm_mimo.multimodal.video_loader import DEFAULTS

RATE = 30
CLIPS: dict[str, tuple[str, str, tuple[int, int], int, int, dict[str, str]]] = {
    # name: codec, container, size, seconds, frames between keyframes, the encoder's options
    "h264-250": ("libx264", "mp4", (1920, 1080), 60, 250, {"preset": "medium"}),
    "h264-30": ("libx264", "mp4", (1920, 1080), 60, 30, {"preset": "medium"}),
    "hevc": ("libx265", "mp4", (1280, 720), 30, 250, {"preset": "fast"}),
    "vp9": ("libvpx-vp9", "webm", (1280, 720), 30, 128, {"deadline": "realtime", "cpu-used": "6"}),
    "av1": ("libsvtav1", "mp4", (1280, 720), 30, 150, {"preset": "10"}),
    "h264-720p": ("libx264", "mp4", (1280, 720), 20, 250, {"preset": "medium"}),
}


def make(name: str, path: Path) -> None:
    """Encode a clip: a picture that is panned over, a patch of noise and the frame's number."""
    import cv2

    codec, container, (width, height), seconds, gop, options = CLIPS[name]
    rng = np.random.default_rng(0)
    ground = rng.integers(0, 256, (height + 400, width + 400, 3), np.uint8)
    ground = cv2.normalize(cv2.GaussianBlur(ground, (0, 0), 4), None, 0, 255, cv2.NORM_MINMAX)
    with av.open(str(path), "w", format=container) as out:
        stream: Any = out.add_stream(codec, rate=RATE)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.gop_size = gop
        stream.options = options
        for number in range(seconds * RATE):
            x, y = int(200 + 199 * np.sin(number / 90)), int(200 + 199 * np.cos(number / 70))
            picture = np.ascontiguousarray(ground[y : y + height, x : x + width])
            at = number * 7 % (height - 120), number * 11 % (width - 120)
            picture[at[0] :, at[1] :][:120, :120] = rng.integers(0, 256, (120, 120, 3), np.uint8)
            cv2.putText(picture, str(number), (width // 4, height // 2), 0, 5, (255,) * 3, 8)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def wanted(total: int, rate: float) -> list[int]:
    """A frame a second, as for MiMo-V2.5."""
    return frame_indices(total, rate, DEFAULTS)


def ours(data: bytes, threads: int) -> DecodedVideo:
    return decode_video(data, wanted, audio_rate=None, threads=threads)


def vllms(data: bytes, backend: str) -> np.ndarray:
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY

    loader = VIDEO_LOADER_REGISTRY.load("opencv")
    frames, _ = loader.load_bytes(data, num_frames=-1, fps=1, backend=backend)
    return np.asarray(frames)


def torchcodec_loads() -> bool:
    try:
        import vllm_mimo.media.decoders.torchcodec  # noqa: F401
    except ImportError:
        return False
    return True


class Usage:
    """Wall and CPU seconds and peak MiB of a call, above those before."""

    def __init__(self, call: Callable[[], Any]) -> None:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        cpu, start = time.process_time(), time.perf_counter()
        self.result = call()
        self.wall, self.cpu = time.perf_counter() - start, time.process_time() - cpu
        self.peak = (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    raise LookupError(key)


def in_full(data: bytes, indices: tuple[int, ...]) -> np.ndarray:
    """Frames of a plain decode of the whole file."""
    places = {index: place for place, index in enumerate(indices)}
    kept: list[np.ndarray] = []
    with av.open(io.BytesIO(data)) as container:
        container.streams.video[0].thread_type = "AUTO"
        for number, frame in enumerate(container.decode(video=0)):
            if number in places:
                kept.append(frame.to_ndarray(format="rgb24"))
    return np.stack(kept)


def wrong(frames: np.ndarray, truth: np.ndarray) -> int:
    """Frames that are not equal, or missing."""
    same = min(len(frames), len(truth))
    equal = sum(np.array_equal(frames[k], truth[k]) for k in range(same))
    return len(truth) - equal


def measure(name: str, data: bytes, rounds: int) -> dict[str, Any]:
    runs: dict[str, Callable[[], Any]] = {
        "vllm opencv": lambda: vllms(data, "opencv"),
        **{f"N={n}": (lambda n=n: ours(data, n)) for n in (1, 2, 4)},  # type: ignore[misc]
    }
    if torchcodec_loads():
        runs["vllm torchcodec"] = lambda: vllms(data, "torchcodec")
    first = ours(data, 1)
    truth = in_full(data, first.indices)
    found: dict[str, dict[str, Any]] = {}
    samples: dict[str, list[Usage]] = {key: [] for key in runs}
    for number in range(rounds):
        for key in list(runs)[:: 1 if number % 2 else -1]:
            usage = Usage(runs[key])
            result, usage.result = usage.result, None
            samples[key].append(usage)
            if number:
                continue
            found[key] = {}
            if isinstance(result, DecodedVideo):
                work = result.work
                found[key] = {
                    "parts": work.parts,
                    "decoded": work.decoded,
                    "planned": work.planned,
                    "wrong": wrong(result.frames, truth),
                    "output_mib": round(result.frames.nbytes / 2**20),
                }
            else:
                found[key]["frames"] = len(result)
    for key, taken in samples.items():
        found[key] |= {
            "wall_s": round(statistics.median(u.wall for u in taken), 3),
            "cpu_s": round(statistics.median(u.cpu for u in taken), 3),
            "peak_mib": round(max(u.peak for u in taken)),
        }
    peer, best = found["vllm opencv"], found["N=2"]
    costs = plan_costs(data)
    one = found["N=1"]["wall_s"]
    return {
        "clip": name,
        "cores": usable_cores(),
        "packets": len(scan(data).times),
        **found,
        "speed_of_opencv": round(peer["wall_s"] / best["wall_s"], 2),
        "cpu_of_opencv": round(best["cpu_s"] / peer["cpu_s"], 2),
        "N=2_speedup": round(one / best["wall_s"], 2),
        "N=2_limit": round(costs[1] / costs[2], 2),
        "projection": {
            f"N={n}": {
                "largest_part": costs[n],
                "speedup": round(costs[1] / costs[n], 2),
                "wall_s": round(one * costs[n] / costs[1], 3),
            }
            for n in (8, 16)
        },
    }


def plan_costs(data: bytes) -> dict[int, int]:
    """Packets in the largest part of the plans for 1 to 16 decoders."""
    look = scan(data)
    assert look.packets is not None
    indices = wanted(len(look.times), look.average_fps)
    frames = locate(look.packets, indices, [look.stamps[i] for i in indices])
    return {n: max(part.cost for part in split(frames, n)) for n in (1, 2, 4, 8, 16)}


def at_once(data: bytes, videos: int, rounds: int) -> dict[str, Any]:
    """As many copies at a time by both loaders, taking turns."""
    runs: dict[str, Callable[[], Any]] = {
        "vllm opencv": lambda: vllms(data, "opencv"),
        "ours": lambda: ours(data, 0),
    }
    if torchcodec_loads():
        runs["vllm torchcodec"] = lambda: vllms(data, "torchcodec")
    waits: dict[str, list[float]] = {key: [] for key in runs}
    walls: dict[str, list[float]] = {key: [] for key in runs}
    cpus: dict[str, list[float]] = {key: [] for key in runs}
    for number in range(rounds):
        for key in list(runs)[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            lock = threading.Lock()

            def one(_: int, key: str = key, start: float = start, lock: Any = lock) -> None:
                runs[key]()
                with lock:
                    waits[key].append(time.perf_counter() - start)

            with ThreadPoolExecutor(videos) as pool:
                usage = Usage(lambda pool=pool, one=one: list(pool.map(one, range(videos))))  # type: ignore[misc]
            walls[key].append(usage.wall)
            cpus[key].append(usage.cpu)
    return {
        key: {
            "videos_per_s": round(videos / statistics.median(walls[key]), 3),
            "p50_s": round(float(np.percentile(waits[key], 50)), 2),
            "p99_s": round(float(np.percentile(waits[key], 99)), 2),
            "cpu_s": round(statistics.median(cpus[key]), 1),
        }
        for key in runs
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clips", nargs="+", choices=list(CLIPS))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=0)
    options = parser.parse_args()
    set_decoding(threads=len(os.sched_getaffinity(0)))
    for name in options.clips:
        path = options.folder / name
        if options.make:
            make(name, path)
            continue
        data = path.read_bytes()
        if options.at_once:
            found = at_once(data, options.at_once, options.rounds)
            print(json.dumps({"clip": name, "at_once": options.at_once, **found}))
        else:
            print(json.dumps(measure(name, data, options.rounds)))


if __name__ == "__main__":
    main()
