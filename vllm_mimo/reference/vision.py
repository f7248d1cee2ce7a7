"""MiMo-V2.5's vision tower in plain torch, from the semantics of the hub's modelling code.

Parameter names are the checkpoint's without `visual.`. Attention is dense and pictures are computed
one by one: an oracle, not a tower to serve with.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from vllm_mimo.checkpoints.towers import VisionGeometry
from vllm_mimo.reference.text import RMSNorm, rotary_tables, rotate

ROTARY_THETA = 10_000.0
MERGER_EPS = 1e-6


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor | None = None,
    first_key_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention by its definition.

    Args:
        q: (..., heads, tokens, head_dim).
        k: (..., kv_heads, tokens, head_dim).
        v: like k.
        visible: (tokens, tokens), true where a query (row) sees a key; None for everywhere.
        first_key_bias: (heads,), added to the logit of key 0 where a query sees it. Unlike the text
            model's sinks it takes no weight away from the keys: it gives more to one of them.

    Returns:
        Like q.
    """
    group = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(group, dim=-3) for x in (k, v))
    logits = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    if first_key_bias is not None:
        logits[..., 0] += first_key_bias[:, None]
    if visible is not None:
        logits = logits.masked_fill(~visible, float("-inf"))
    return logits.softmax(dim=-1) @ v


class PatchEmbed(nn.Module):
    """One embedding per patch: a convolution whose kernel covers a patch exactly."""

    def __init__(self, geo: VisionGeometry) -> None:
        super().__init__()
        self.size = (geo.temporal_patch_size, geo.patch_size, geo.patch_size)
        self.proj = nn.Conv3d(geo.in_channels, geo.hidden_size, self.size, self.size, bias=False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """pixels (patches, channels * temporal * patch * patch) -> (patches, hidden)."""
        return self.proj(pixels.unflatten(1, (-1, *self.size))).flatten(1)


class Attention(nn.Module):
    """Grouped-query attention within one sequence of patches."""

    def __init__(self, geo: VisionGeometry, block: int) -> None:
        super().__init__()
        self.geo, width = geo, geo.num_heads * geo.head_dim
        self.window = None if geo.full[block] or geo.window <= 0 else geo.window
        self.qkv = nn.Linear(geo.hidden_size, width + 2 * geo.num_kv_heads * geo.head_dim)
        self.proj = nn.Linear(width, geo.hidden_size)
        self.sinks = nn.Parameter(torch.zeros(geo.num_heads)) if geo.has_sink(block) else None

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x (patches, hidden); cos, sin (patches, head_dim / 2) -> like x."""
        geo = self.geo
        heads = self.qkv(x).unflatten(1, (-1, geo.head_dim)).transpose(0, 1)
        q, k, v = heads.split([geo.num_heads, geo.num_kv_heads, geo.num_kv_heads])
        q, k = (rotate(part.float(), cos, sin).to(x.dtype) for part in (q, k))
        visible = None
        if self.window is not None:
            place = torch.arange(len(x), device=x.device)
            visible = (place[:, None] - place[None, :]).abs() <= self.window
        return self.proj(attend(q, k, v, visible, self.sinks).transpose(0, 1).flatten(1))


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)), with biases."""

    def __init__(self, geo: VisionGeometry) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(geo.hidden_size, geo.intermediate_size)
        self.up_proj = nn.Linear(geo.hidden_size, geo.intermediate_size)
        self.down_proj = nn.Linear(geo.intermediate_size, geo.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Pre-norm attention and MLP, each with a residual."""

    def __init__(self, geo: VisionGeometry, block: int) -> None:
        super().__init__()
        self.norm1 = RMSNorm(geo.hidden_size, geo.norm_eps)
        self.attn = Attention(geo, block)
        self.norm2 = RMSNorm(geo.hidden_size, geo.norm_eps)
        self.mlp = MLP(geo)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Merger(nn.Module):
    """Joins the patches of a merge unit to one token of the language model's width.

    The norm is LayerNorm, per patch. Its bias, and those of the linear layers, are not in the
    checkpoint: they are zero.
    """

    def __init__(self, geo: VisionGeometry) -> None:
        super().__init__()
        width = geo.hidden_size * geo.merge_size**2
        self.ln_q = nn.LayerNorm(geo.hidden_size, eps=MERGER_EPS, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, width, bias=False),
            nn.GELU(),
            nn.Linear(width, geo.out_hidden_size, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.ln_q(x).reshape(-1, self.mlp[0].in_features))


class VisionTower(nn.Module):
    """Flattened patches to embeddings."""

    def __init__(self, geometry: VisionGeometry) -> None:
        super().__init__()
        self.geometry = geometry
        self.patch_embed = PatchEmbed(geometry)
        self.blocks = nn.ModuleList(Block(geometry, i) for i in range(geometry.depth))
        self.merger = Merger(geometry)

    def forward(self, pixels: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        """Embed pictures and videos.

        Args:
            pixels: (patches, channels * temporal * patch * patch), the patches of one merge unit
                next to each other, merge units in row order.
            grid: (items, 3), temporal patches, rows and columns of patches.

        Returns:
            (tokens, out_hidden_size)
        """
        pictures = [(int(h), int(w)) for t, h, w in grid.tolist() for _ in range(int(t))]
        parts = pixels.to(self.patch_embed.proj.weight.dtype).split([h * w for h, w in pictures])
        return torch.cat([self._picture(x, *size) for x, size in zip(parts, pictures, strict=True)])

    def _picture(self, pixels: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """One temporal patch: a sequence of its own."""
        cos, sin = self.angles(rows, columns, pixels.device)
        by_column = self.column_order(rows, columns).to(pixels.device)
        back = by_column.argsort()
        x = self.patch_embed(pixels)
        for block, order in zip(self.blocks, self.geometry.order, strict=True):
            if order == "column":
                x = block(x[by_column], cos[by_column], sin[by_column])[back]
            else:
                x = block(x, cos, sin)
        return self.merger(x)

    def angles(
        self, rows: int, columns: int, device: torch.device | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin (patches, head_dim / 2): one half by the row, the other by the column."""
        merge, rotary_dim = self.geometry.merge_size, self.geometry.head_dim // 2
        place = torch.arange(rows * columns, device=device)
        unit, inside = place // merge**2, place % merge**2
        row = unit // (columns // merge) * merge + inside // merge
        column = unit % (columns // merge) * merge + inside % merge
        by_row, by_column = (rotary_tables(p, rotary_dim, ROTARY_THETA) for p in (row, column))
        cos, sin = (torch.cat(pair, dim=-1) for pair in zip(by_row, by_column, strict=True))
        return cos, sin

    def column_order(self, rows: int, columns: int) -> torch.Tensor:
        """Places of the patches when merge units are read column by column: (patches,)."""
        merge = self.geometry.merge_size
        units = torch.arange(rows * columns).view(rows // merge, columns // merge, merge**2)
        return units.transpose(0, 1).flatten()
