"""From pictures to the vision tower's patches: resizing, normalising, cutting up.

Source: `smart_resize`, `get_visual_transform` and `_flatten_visual_inputs` of SGLang's MiMo-V2
processor; `reference/pictures.py` has them in plain torch, and what is made here equals that bit by
bit. A few planes pass through all steps at a time, in buffers that are used again, so that memory
beside the result does not grow with the video. Everything runs on the device that is asked for, in
float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from vllm_mimo.media.pages import empty
from vllm_mimo.media.picture_size import (
    grid_tokens,
    image_tokens,
    patch_counts,
    target_size,
    video_grid,
    video_size,
)
from vllm_mimo.media.pictures import picture_tensor
from vllm_mimo.media.settings import MediaError, VisionSettings

__all__ = [
    "check_frames",
    "frames_of",
    "grid_tokens",
    "image_tokens",
    "patch_counts",
    "patches",
    "picture_patches",
    "picture_tensor",
    "resized",
    "target_size",
    "video_grid",
    "video_patches",
    "video_size",
]

CPU_BYTES = 8 << 20
"""Of float32 that pass through the steps at once on a CPU, in whole planes of one colour."""
DEVICE_BYTES = 64 << 20
"""The same on other devices, in whole pictures (planes where a picture is larger)."""
COLOURS = 3

Grid = tuple[int, int, int]
"""Patches in time, height and width."""


def patches(
    frames: torch.Tensor,
    grid: Grid,
    settings: VisionSettings,
    first: int = 0,
    last: int | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """The patches of some temporal patches of a picture or video.

    Args:
        frames: uint8 (N, H, W, 3), of any size; or what `resized` made of them.
        grid: of the whole item; frames are resized to its size, and the last one is repeated to
            fill its last temporal patch.
        settings: the checkpoint's.
        first, last: temporal patches, `last` not among them; all by default.
        device: where to work; by default where the frames are.

    Returns float32 (temporal patches * rows * columns, 3 * temporal * patch * patch). A row goes by
    channel, time, height, width; patches of one token stand together.
    """
    last = grid[0] if last is None else last
    where = torch.device(device) if device is not None else frames.device
    patch, merge, temporal = settings.patch_size, settings.merge_size, settings.temporal_patch_size
    rows, columns = grid[1] // merge, grid[2] // merge
    shape = (last - first, rows, columns, merge, merge, COLOURS, temporal, patch, patch)
    made = empty(shape, torch.float32, where)
    shift, scale = (
        (torch.tensor(values, dtype=torch.float32) * 255.0).to(where).view(-1, 1, 1)
        for values in (settings.mean, settings.std)
    )
    size = (grid[1] * patch, grid[2] * patch)
    begin, end = first * temporal, min(last * temporal, len(frames))
    planes = _Planes(frames, size, where)
    for at, colours, ready in planes.walk(begin, end):
        ready.sub_(shift[colours]).div_(scale[colours])
        for frame, picture in enumerate(ready, at - begin):
            cut = picture.view(-1, rows, merge, patch, columns, merge, patch)
            time, slot = divmod(frame, temporal)
            target = made[time, :, :, :, :, colours, slot]
            target.copy_(cut.permute(1, 4, 2, 5, 0, 3, 6))
    for missing in range(end - begin, (last - first) * temporal):
        slot = missing % temporal
        made[-1, :, :, :, :, :, slot] = made[-1, :, :, :, :, :, slot - 1]
    return made.view((last - first) * grid[1] * grid[2], -1)


def resized(frames: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Frames, uint8 (N, H, W, 3), in float32 (N, 3, *size), still with white at 255."""
    made = empty((len(frames), COLOURS, *size), torch.float32, frames.device)
    for at, colours, ready in _Planes(frames, size, frames.device).walk(0, len(frames)):
        made[at : at + len(ready), colours] = ready
    return made


class _Planes:
    """Resizes frames a few planes at a time: float32 bilinear, no antialiasing.

    The result is the reference's whatever is worked on together: each value of a resized picture
    comes from four of its own plane.
    """

    def __init__(self, frames: torch.Tensor, size: tuple[int, int], device: torch.device) -> None:
        self.frames, self.size, self.device = frames, size, device
        self.done = frames.dtype == torch.float32
        height, width = frames.shape[2:] if self.done else frames.shape[1:3]
        self.same = (height, width) == size
        plane = 4 * max(height * width, size[0] * size[1])
        most = CPU_BYTES if device.type == "cpu" else DEVICE_BYTES
        whole = device.type != "cpu" and COLOURS * plane <= most
        self.colours = COLOURS if whole else 1
        self.count = max(1, min(len(frames), most // (plane * self.colours)))
        shape = (self.count, self.colours)
        self.target = empty((*shape, *size), torch.float32, device)
        self.source = (
            self.target if self.same else empty((*shape, height, width), torch.float32, device)
        )

    def walk(self, begin: int, end: int) -> Iterator[tuple[int, slice, torch.Tensor]]:
        """Yields the first frame, a slice of colours, and these resized: (frames, colours, h, w),
        in memory that the next step writes again.
        """
        for at in range(begin, end, self.count):
            some = self.frames[at : min(at + self.count, end)].to(self.device)
            stood = some if self.done else some.permute(0, 3, 1, 2)
            for colour in range(0, COLOURS, self.colours):
                colours = slice(colour, colour + self.colours)
                source, target = self.source[: len(some)], self.target[: len(some)]
                source.copy_(stood[:, colours])
                if not self.same:
                    torch.ops.aten.upsample_bilinear2d.out(
                        source, list(self.size), False, None, None, out=target
                    )
                yield at, colours, target


def picture_patches(
    picture: torch.Tensor,
    settings: VisionSettings,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> tuple[torch.Tensor, Grid]:
    """A still image, uint8 (3, H, W), as patches in float32 and their grid.

    It is repeated to fill a temporal patch. The limits are on the pixels after resizing, in place
    of the checkpoint's. Raises MediaError as `picture_size.target_size` does.
    """
    frames = frames_of(picture)
    _, height, width, _ = frames.shape
    grid = patch_counts(height, width, settings, min_pixels, max_pixels)
    return patches(frames, grid, settings), grid


def video_patches(
    frames: torch.Tensor | np.ndarray,
    settings: VisionSettings,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    total_max_pixels: int | None = None,
) -> tuple[torch.Tensor, Grid]:
    """A video's frames, uint8 (N, H, W, 3), as patches in float32 and their grid.

    The last frame is repeated to fill a temporal patch. Limits as in `sampling.frame_pixel_limits`.
    Raises MediaError as `picture_size.target_size` does.
    """
    pixels = check_frames(frames)
    count, height, width, _ = pixels.shape
    limits = (min_pixels, max_pixels, total_max_pixels)
    grid = video_grid(count, height, width, settings, *limits)
    return patches(pixels, grid, settings), grid


def frames_of(picture: torch.Tensor) -> torch.Tensor:
    """A picture, uint8 (3, H, W), as frames (1, H, W, 3). Raises MediaError for another form."""
    _check(picture, (3, None, None), "a picture", "(3, height, width)")
    return picture.permute(1, 2, 0)[None]


def check_frames(frames: torch.Tensor | np.ndarray) -> torch.Tensor:
    """Frames as a tensor, which shares an array's memory. Raises MediaError unless they are uint8
    (N, H, W, 3).
    """
    pixels = torch.from_numpy(frames) if isinstance(frames, np.ndarray) else frames
    _check(pixels, (None, None, None, 3), "the frames", "(frames, height, width, 3)")
    return pixels


def _check(pixels: torch.Tensor, shape: tuple[int | None, ...], what: str, form: str) -> None:
    fits = pixels.ndim == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, pixels.shape, strict=True)
    )
    if not fits or pixels.dtype != torch.uint8 or not pixels.numel():
        raise MediaError(f"{what} must be uint8 {form}, not {pixels.dtype} {tuple(pixels.shape)}")
