"""MiMo-V2.5's vision tower for vLLM: vLLM's class, with what departs from the reference replaced.

Replaced are the merger's norm (LayerNorm, not RMSNorm), the rotary tables (any picture size, kept
in float32) and, where the Triton kernel cannot run, the windowed attention. `docs/model.md` has the
comparison in full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn
from transformers import PreTrainedConfig
from vllm.model_executor.layers.rotary_embedding.common import ApplyRotaryEmb
from vllm.model_executor.models.mimo_v2_omni import (
    MiMoVisionAttention,
    MiMoVisionTransformer,
)
from vllm.platforms import current_platform

from vllm_mimo.attention.window import window_attention
from vllm_mimo.media.images import patches
from vllm_mimo.media.settings import VisionSettings
from vllm_mimo.models.limits import PATCHES_AT_ONCE

ROTARY_THETA = 10_000.0
"""Base of the rotary angles of patch rows and columns."""


class ScaleOnlyLayerNorm(nn.LayerNorm):
    """LayerNorm whose bias the checkpoint does not hold (it is zero)."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__(size, eps=eps, bias=False)


class MimoVisionAttention(MiMoVisionAttention):
    """vLLM's attention, with a windowed path for devices without its Triton kernel."""

    def _forward_window_attn(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens: torch.Tensor,
        max_seqlen: torch.Tensor,
    ) -> torch.Tensor:
        """q, k, v (patches, heads, head_dim) of sequences one after the other -> like q."""
        if current_platform.is_cuda_alike():
            return super()._forward_window_attn(q, k, v, cu_seqlens, max_seqlen)
        sinks = self.sinks
        if sinks is not None:
            first = self.tp_rank * self.num_heads_per_partition
            sinks = sinks[first : first + self.num_heads_per_partition]
        window = self.visual_token_window_size
        lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
        return window_attention(q, k, v, lengths, window, window, self.scale, sinks)


class MimoVisionTower(MiMoVisionTransformer):
    """Pictures, as flattened patches, to embeddings of the language model's width."""

    def __init__(
        self, vision_config: PreTrainedConfig, *, settings: VisionSettings, prefix: str = ""
    ) -> None:
        super().__init__(vision_config, norm_eps=1e-6, quant_config=None, prefix=prefix)
        self.settings = settings
        self.merger.ln_q = ScaleOnlyLayerNorm(vision_config.hidden_size)
        self.head_dim = vision_config.qk_channels
        for block in self.blocks:
            # A block makes its attention itself and takes no class for it.
            block.attn.__class__ = MimoVisionAttention
            if block.attn.tp_size == 1:  # also where each rank runs the whole tower on its own data
                block.attn.tp_rank = 0
            block.attn.apply_rotary_emb = ApplyRotaryEmb(
                enforce_enable=True, enable_fp32_compute=True
            )

    def rot_pos_emb(self, grid_thw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotary tables of all patches in their order, rows first, then columns.

        Args:
            grid_thw: (items, 3), temporal patches, rows and columns of patches.

        Returns:
            cos, sin: each (patches, head_dim / 2), float32.
        """
        angles = torch.cat([self._angles(*grid) for grid in grid_thw.tolist()])
        return angles.cos(), angles.sin()

    def _angles(self, times: int, rows: int, columns: int) -> torch.Tensor:
        merge, quarter = self.spatial_merge_size, self.head_dim // 4
        steps = torch.arange(quarter, dtype=torch.float32, device=self.device) / quarter
        frequencies = ROTARY_THETA**-steps
        row = torch.arange(rows, device=self.device)[:, None].expand(rows, columns)
        column = torch.arange(columns, device=self.device)[None, :].expand(rows, columns)
        positions = torch.stack([row, column], dim=-1)
        positions = positions.unflatten(0, (-1, merge)).unflatten(2, (-1, merge))
        positions = positions.transpose(1, 2).reshape(-1, 2)
        angles = (positions[:, :, None].float() * frequencies).flatten(1)
        return angles.repeat(times, 1)

    def embed(
        self, pixels: torch.Tensor | Sequence[torch.Tensor], grids: list[list[int]]
    ) -> torch.Tensor:
        """Embed pictures and videos in slices of bounded size, made of their pixels on the tower's
        device.

        Each temporal patch attends to itself alone, so slices between them change nothing.

        Args:
            pixels: the frames of each item (`media.handover`), on any device.
            grids: [temporal patches, rows, columns] of each item.

        Returns:
            (tokens, out_hidden_size)
        """
        embedded, item, done = [], 0, 0
        for _, _, part in slices(grids, PATCHES_AT_ONCE):
            made = []
            for times, rows, columns in part:
                grid = (grids[item][0], rows, columns)
                some = (done, done + times)
                made.append(patches(pixels[item], grid, self.settings, *some, device=self.device))
                item, done = (item, done + times) if done + times < grid[0] else (item + 1, 0)
            together = made[0] if len(made) == 1 else torch.cat(made)
            embedded.append(self(together, grid_thw=part))
        return torch.cat(embedded)


def slices(grids: list[list[int]], limit: int) -> Iterator[tuple[int, int, list[list[int]]]]:
    """Cut items into runs of at most `limit` patches (or one temporal patch, if that is larger).

    Yields:
        First patch, last patch + 1, and the grids of the run.
    """
    start = end = 0
    part: list[list[int]] = []
    for times, rows, columns in grids:
        area = rows * columns
        while times:
            fitting = min(times, (limit - (end - start)) // area)
            if fitting < 1 and part:
                yield start, end, part
                start, part = end, []
                continue
            fitting = max(fitting, 1)
            part.append([fitting, rows, columns])
            end += fitting * area
            times -= fitting
    if part:
        yield start, end, part
