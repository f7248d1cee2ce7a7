"""MiMo-V2.5's audio tower in plain torch, from the semantics of the hub's modelling code.

Log-mel spectrogram -> frames of the tokenizer's encoder -> residual codes -> summed embeddings ->
local transformer over groups of code frames -> projection. Parameter names are the checkpoint's:
those of `audio_tokenizer/` begin with `encoder.`, those of the main checkpoint with
`speech_embeddings.` and `audio_encoder.`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from vllm_mimo.checkpoints.codec import TokenizerGeometry
from vllm_mimo.checkpoints.towers import AudioGeometry
from vllm_mimo.reference.text import MLP, RMSNorm, rotary_tables, rotate
from vllm_mimo.reference.vision import attend

FRAMES_AT_ONCE = 256_000
"""Mel frames of the segments that the reference encodes in one padded batch."""
LOCAL_EPS = 1e-6


class TokenizerAttention(nn.Module):
    """Attention over the frames of one segment; keys have no bias."""

    def __init__(self, geo: TokenizerGeometry, layer: int) -> None:
        super().__init__()
        self.geo, self.window, hidden = geo, geo.windows[layer], geo.hidden_size
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden, bias=False)
        self.v_proj = nn.Linear(hidden, hidden)
        self.out_proj = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (frames, hidden) -> like x."""
        q, k, v = (
            project(x).unflatten(-1, (self.geo.num_heads, -1)).transpose(0, 1)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        place = torch.arange(len(x), device=x.device)
        cos, sin = (
            t.to(x.dtype) for t in rotary_tables(place, self.geo.head_dim, self.geo.rope_theta)
        )
        distance = place[:, None] - place[None, :]
        visible = torch.ones_like(distance, dtype=torch.bool)
        if self.geo.causal:
            visible &= distance >= 0
        if self.window is not None:
            visible &= distance.abs() <= self.window
        out = attend(rotate(q, cos, sin), rotate(k, cos, sin), v, visible)
        return self.out_proj(out.transpose(0, 1).flatten(1))


class TokenizerLayer(nn.Module):
    """Pre-norm attention and GELU MLP, each with a residual."""

    def __init__(self, geo: TokenizerGeometry, layer: int) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(geo.hidden_size)
        self.self_attn = TokenizerAttention(geo, layer)
        self.final_layer_norm = nn.LayerNorm(geo.hidden_size)
        self.fc1 = nn.Linear(geo.hidden_size, geo.intermediate_size)
        self.fc2 = nn.Linear(geo.intermediate_size, geo.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))


class Codebook(nn.Module):
    """Entries of which the nearest one stands for a vector."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("embed", torch.zeros(size, width))


class _Level(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self._codebook = Codebook(size, width)


class _Levels(nn.Module):
    def __init__(self, sizes: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Level(size, width) for size in sizes)


class Quantizer(nn.Module):
    """Residual quantisation: each codebook codes what the ones before it left, in float32."""

    def __init__(self, geo: TokenizerGeometry) -> None:
        super().__init__()
        self.vq = _Levels(geo.codebook_sizes, geo.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (frames, hidden) -> codes (frames, codebooks)."""
        rest, codes = x.float(), []
        for level in self.vq.layers:
            entries = level._codebook.embed.float()
            gap = rest.pow(2).sum(1, keepdim=True) - 2 * rest @ entries.t() + entries.pow(2).sum(1)
            codes.append(gap.argmin(dim=1))
            rest = rest - entries[codes[-1]]
        return torch.stack(codes, dim=1)


class TokenizerEncoder(nn.Module):
    """Mel frames to code frames, one segment at a time."""

    def __init__(self, geo: TokenizerGeometry) -> None:
        super().__init__()
        self.geo, hidden, kernel = geo, geo.hidden_size, geo.kernel_size
        self.conv1 = nn.Conv1d(geo.n_mels, hidden, kernel, padding=1)
        self.conv2 = nn.Conv1d(hidden, hidden, kernel, stride=geo.stride, padding=1)
        self.layers = nn.ModuleList(TokenizerLayer(geo, i) for i in range(geo.num_layers))
        self.layer_norm = nn.LayerNorm(hidden)
        if geo.pool != 1:
            pool = nn.Conv1d(hidden, hidden, geo.pool, stride=geo.pool, bias=False)
            self.down_sample_layer = nn.Sequential(pool, nn.GELU())
            self.down_sample_norm = nn.LayerNorm(hidden)
        self.quantizer = Quantizer(geo)

    def features(self, mel: torch.Tensor, longest: int | None = None) -> torch.Tensor:
        """What is quantised.

        Args:
            mel: (frames, n_mels) of one segment.
            longest: mel frames of the longest segment in the batch that the reference would encode
                this one in. It pads the others with zeros, and two layers look beyond a segment's
                end: the second convolution sees what the first made of the padding, and pooling
                takes a frame that lacks a partner together with itself, not with zeros.

        Returns:
            (code frames, hidden)
        """
        geo, longest = self.geo, longest or len(mel)
        x = F.pad(mel.to(self.conv1.weight.dtype).t(), (0, longest - len(mel)))[None]
        x = F.gelu(self.conv2(F.gelu(self.conv1(x))))[0].t()[: geo.frames(len(mel))]
        skipped: torch.Tensor | None = None
        for i, layer in enumerate(self.layers, start=1):
            x = layer(x)
            if i == geo.skip_layer:
                skipped = x
        x = self.layer_norm(x if skipped is None else x + skipped)
        if geo.pool == 1:
            return x
        lacking = -len(x) % geo.pool
        room = geo.frames(longest) - len(x)
        last = x[-1:].expand(min(lacking, room), -1)
        x = F.pad(torch.cat([x, last]), (0, 0, 0, lacking - len(last)))
        return self.down_sample_norm(self.down_sample_layer(x.t()[None])[0].t())

    def forward(self, mel: torch.Tensor, segment_size: int) -> torch.Tensor:
        """mel (frames, n_mels) of one recording -> codes (code frames, codebooks)."""
        codes = []
        for batch in batches(list(mel.split(segment_size))):
            longest = max(len(segment) for segment in batch)
            codes += [self.quantizer(self.features(segment, longest)) for segment in batch]
        return torch.cat(codes)


def batches(segments: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Neighbouring segments, as many as `FRAMES_AT_ONCE` allows, that are padded together."""
    out: list[list[torch.Tensor]] = [[]]
    for segment in segments:
        if out[-1] and sum(map(len, out[-1])) + len(segment) > FRAMES_AT_ONCE:
            out.append([])
        out[-1].append(segment)
    return out


class LocalAttention(nn.Module):
    """Attention among the code frames of one group."""

    def __init__(self, geo: AudioGeometry) -> None:
        super().__init__()
        self.geo, hidden = geo, geo.hidden_size
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (groups, group_size, hidden) -> like x."""
        geo = self.geo
        q, k, v = (
            project(x).unflatten(-1, (geo.num_heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        place = torch.arange(x.shape[1], device=x.device)
        rotary_dim = int(geo.head_dim * geo.rotary_factor)
        cos, sin = (t.to(x.dtype) for t in rotary_tables(place, rotary_dim, geo.rope_theta))
        visible = place[:, None] >= place[None, :] if geo.causal else None
        out = attend(rotate(q, cos, sin), rotate(k, cos, sin), v, visible)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class LocalLayer(nn.Module):
    """Pre-norm attention and SwiGLU MLP, each with a residual: a Qwen2 layer."""

    def __init__(self, geo: AudioGeometry) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(geo.hidden_size, LOCAL_EPS)
        self.self_attn = LocalAttention(geo)
        self.post_attention_layernorm = RMSNorm(geo.hidden_size, LOCAL_EPS)
        self.mlp = MLP(geo.hidden_size, geo.intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class LocalTransformer(nn.Module):
    """Layers and, where the checkpoint has it, a norm behind them."""

    def __init__(self, geo: AudioGeometry) -> None:
        super().__init__()
        self.layers = nn.ModuleList(LocalLayer(geo) for _ in range(geo.num_layers))
        self.norm = RMSNorm(geo.hidden_size, LOCAL_EPS) if geo.post_norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Projection(nn.Module):
    """Two matrices with GELU between."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, out, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(x)


class AudioEncoder(nn.Module):
    """Summed embeddings of a group's code frames to one token."""

    def __init__(self, geo: AudioGeometry) -> None:
        super().__init__()
        width, out = geo.group_size * geo.hidden_size, geo.out_hidden_size
        self.input_local_transformer = LocalTransformer(geo)
        self.projection: nn.Module = (
            nn.Linear(width, out, bias=False)
            if geo.projection_layers == 1
            else Projection(width, out)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (groups, group_size, hidden) -> (groups, out_hidden_size)."""
        return self.projection(self.input_local_transformer(x).flatten(1))


class AudioTower(nn.Module):
    """The whole way of one recording, the audio tokenizer included."""

    def __init__(self, geometry: AudioGeometry, tokenizer: TokenizerGeometry) -> None:
        super().__init__()
        self.geometry = geometry
        self.encoder = TokenizerEncoder(tokenizer)
        self.speech_embeddings = nn.ModuleList(
            nn.Embedding(size, geometry.hidden_size) for size in geometry.vocab_sizes
        )
        self.audio_encoder = AudioEncoder(geometry)

    def codes(self, mel: torch.Tensor) -> torch.Tensor:
        """mel (frames, n_mels) -> codes (code frames, channels)."""
        return self.encoder(mel, self.geometry.segment_size)[:, : self.geometry.channels]

    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        """codes (code frames, channels) -> (tokens, out_hidden_size), the last frame repeated."""
        lacking = -len(codes) % self.geometry.group_size
        codes = torch.cat([codes, codes[-1:].expand(lacking, -1)])
        summed = sum(table(codes[:, i]) for i, table in enumerate(self.speech_embeddings))
        return self.audio_encoder(summed.unflatten(0, (-1, self.geometry.group_size)))

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """mel (frames, n_mels) of one recording -> (tokens, out_hidden_size)."""
        return self.embed(self.codes(mel))
