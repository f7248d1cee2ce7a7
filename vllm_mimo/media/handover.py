"""What of pictures goes from the process that decodes to the one with the model.

Patches in float32 are eight times the bytes of the pixels that they are made of. So pixels go, in
uint8, and `images.patches` makes patches of them on the model's device.
"""

from __future__ import annotations

from typing import Literal

import torch

from vllm_mimo.media.images import COLOURS, resized
from vllm_mimo.media.pages import empty

Arithmetic = Literal["exact", "uint8"]
"""How pictures are resized: in float32 as in the reference, or rounded to whole levels."""


def handed_over(
    frames: torch.Tensor, size: tuple[int, int], arithmetic: Arithmetic
) -> torch.Tensor:
    """Frames, uint8 (N, H, W, 3), as they go to the model, for `images.patches`.

    - exact: as they are, uint8. Where resizing to `size` makes them so much smaller that float32
      takes less memory, float32 (N, 3, *size).
    - uint8: resized by OpenCV, uint8 (N, *size, 3), each value within one level of the exact one.
    """
    if arithmetic == "uint8":
        return resized_uint8(frames, size)
    if frames.numel() > 4 * len(frames) * COLOURS * size[0] * size[1]:
        return resized(frames, size)
    return frames.contiguous()


def resized_uint8(frames: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Frames, uint8 (N, H, W, 3), as uint8 (N, *size, 3): bilinear, no antialiasing."""
    import cv2

    if tuple(frames.shape[1:3]) == size:
        return frames.contiguous()
    made = empty((len(frames), *size, COLOURS), torch.uint8)
    for source, target in zip(frames.cpu().contiguous().numpy(), made.numpy(), strict=True):
        cv2.resize(source, size[::-1], dst=target, interpolation=cv2.INTER_LINEAR)
    return made.to(frames.device)
