"""The audio oracle: held to transformers' Qwen2, to vLLM's codec, and to facts of its own."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import types

import pytest
import torch

from vllm_mimo.checkpoints.codec import TokenizerGeometry
from vllm_mimo.checkpoints.towers import AudioGeometry
from vllm_mimo.reference import audio
from vllm_mimo.reference.audio import AudioTower, LocalTransformer, TokenizerAttention
from vllm_mimo.tiny.checkpoints import bundled_tokenizer
from vllm_mimo.tiny.media import TOKENIZER_CONFIG
from vllm_mimo.tiny.shapes import random_config
from vllm_mimo.tiny.towers import random_tokenizer, random_towers

WINDOWS = {**TOKENIZER_CONFIG, "encoder_attn_window_size": [6, 0]}
"""A window that a hundred mel frames overfill."""


def geometry(segment_size: int = 6000) -> AudioGeometry:
    config = random_config("v2.5", bundled_tokenizer(), fp8=False, towers=True)
    geo = AudioGeometry.from_config(config)
    assert geo is not None
    return dataclasses.replace(geo, segment_size=segment_size)


def tower(segment_size: int = 6000, config: dict = WINDOWS) -> AudioTower:
    model = AudioTower(geometry(segment_size), TokenizerGeometry.from_config(config))
    whole = random_config("v2.5", bundled_tokenizer(), fp8=False, towers=True)
    state = random_towers(whole, scale=1.0, seed=2) | random_tokenizer(config, seed=2)
    names = model.state_dict().keys()
    model.load_state_dict({name: state[name] for name in names})
    return model.requires_grad_(False)


def mel(frames: int, seed: int = 0) -> torch.Tensor:
    """Noise with the offset that log-mel energies have."""
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(frames, 128, generator=generator) - 4


@pytest.mark.parametrize("post_norm", (True, False))
def test_the_local_transformer_is_qwen2_without_a_mask(post_norm: bool):
    from transformers import Qwen2Config, Qwen2Model

    geo = dataclasses.replace(geometry(), post_norm=post_norm, rope_theta=50.0)
    ours = LocalTransformer(geo)
    generator = torch.Generator().manual_seed(0)
    for weight in ours.parameters():
        weight.data = 0.3 * torch.randn(weight.shape, generator=generator)
    theirs = Qwen2Model(
        Qwen2Config(
            vocab_size=8,
            hidden_size=geo.hidden_size,
            intermediate_size=geo.intermediate_size,
            num_hidden_layers=geo.num_layers,
            num_attention_heads=geo.num_heads,
            num_key_value_heads=geo.num_heads,
            rope_parameters={"rope_type": "default", "rope_theta": 50.0},
            attn_implementation="eager",
        )
    ).eval()
    if not post_norm:
        theirs.norm = torch.nn.Identity()
    lacking, extra = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert (lacking, extra) == (["embed_tokens.weight"], [])
    x = torch.randn(3, 4, geo.hidden_size, generator=generator)
    for causal in (False, True):
        mask = torch.full((4, 4), float("-inf")).triu(1) if causal else torch.zeros(4, 4)
        with torch.no_grad():
            expected = theirs(
                inputs_embeds=x, attention_mask=mask.expand(3, 1, 4, 4), use_cache=False
            )
        other = LocalTransformer(dataclasses.replace(geo, causal=causal))
        other.load_state_dict(ours.state_dict())
        torch.testing.assert_close(
            other(x), expected.last_hidden_state, rtol=1e-4, atol=1e-4, msg=f"causal={causal}"
        )


def test_a_partial_rotary_factor_turns_the_first_dims_only():
    geo = dataclasses.replace(geometry(), rotary_factor=0.5, num_layers=1)
    layer = LocalTransformer(geo).layers[0].self_attn.requires_grad_(False)
    x = torch.randn(1, 4, geo.hidden_size, generator=torch.Generator().manual_seed(0))
    # Values that are all alike show nothing of attention; swapped frames show only the rotary part.
    swapped = x[:, [1, 0, 3, 2]]
    assert not torch.allclose(layer(x)[:, [1, 0, 3, 2]], layer(swapped), atol=1e-5)
    turned = geo.head_dim // 2
    for weight in (layer.q_proj, layer.k_proj):
        weight.weight.view(geo.num_heads, geo.head_dim, -1)[:, :turned] = 0
        weight.bias.view(geo.num_heads, geo.head_dim)[:, :turned] = 0
    torch.testing.assert_close(layer(x)[:, [1, 0, 3, 2]], layer(swapped))


def vllm_encoder(monkeypatch: pytest.MonkeyPatch, config: dict) -> torch.nn.Module:
    """vLLM's encoder, its FlashAttention call answered by what FlashAttention's manual says."""
    from vllm.model_executor.models import mimo_audio

    def attention(q, k, v, cu_seqlens_q, causal, window_size, **_):
        left, right = window_size
        if causal:
            right = 0
        out = torch.empty_like(q)
        bounds = cu_seqlens_q.tolist()
        for start, end in itertools.pairwise(bounds):
            for i in range(start, end):
                first = start if left < 0 else max(start, i - left)
                last = end if right < 0 else min(end, i + right + 1)
                weights = torch.einsum("hd,khd->hk", q[i], k[first:last]) * q.shape[-1] ** -0.5
                out[i] = torch.einsum("hk,khd->hd", weights.softmax(-1), v[first:last])
        return out

    fake = types.ModuleType("vllm.vllm_flash_attn")
    fake.flash_attn_varlen_func = attention  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn", fake)
    return mimo_audio.AudioEncoder(mimo_audio.MiMoAudioTokenizerConfig(**config)).eval()


@pytest.mark.parametrize("config", (WINDOWS, {**WINDOWS, "hybrid_attention": False}))
@pytest.mark.parametrize("frames", (1, 4, 43, 96, 64 + 1, 64 + 5, 64 + 30, 2 * 64 + 35, 64 + 63))
def test_codes_are_those_of_vllms_tokenizer(
    frames: int, config: dict, monkeypatch: pytest.MonkeyPatch
):
    from vllm.model_executor.models.mimo_audio import tokenize_audio_batch

    model = tower(segment_size=64, config=config)
    theirs = vllm_encoder(monkeypatch, config)
    lacking, extra = theirs.load_state_dict(model.encoder.state_dict(), strict=False)
    assert not extra and all("_codebook" in name for name in lacking)
    sound = mel(frames, seed=frames)
    expected = tokenize_audio_batch([sound], theirs, segment_size=64)[0]
    codes = model.codes(sound)
    assert codes.shape == expected.shape
    assert (codes == expected).all()


def test_segments_count_time_anew_and_do_not_hear_each_other():
    model = tower(segment_size=64)
    sound = mel(160)
    codes = model.codes(sound)
    parts = [model.codes(part) for part in sound.split(64)]
    assert (codes == torch.cat(parts)).all()
    assert len(codes) == 40


def test_an_odd_segment_sounds_different_in_a_batch_and_alone():
    """The reference's padding leaks: what makes codes depend on the batch that they are made in."""
    encoder = tower().encoder
    for frames, differs in ((60, False), (61, True), (62, True), (64, False)):
        sound = mel(frames)
        alone, padded = encoder.features(sound), encoder.features(sound, longest=64)
        assert alone.shape == padded.shape
        torch.testing.assert_close(alone[:-1], padded[:-1], rtol=1e-4, atol=1e-4)
        assert torch.allclose(alone[-1], padded[-1], atol=1e-3) is not differs, frames


def test_segments_are_padded_together_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(audio, "FRAMES_AT_ONCE", 20)
    pieces = list(torch.zeros(45, 1).split(6))
    assert [[len(x) for x in b] for b in audio.batches(pieces)] == [[6] * 3, [6] * 3, [6, 3]]
    assert [[len(x) for x in b] for b in audio.batches(pieces[-3:])] == [[6, 6, 3]]


def test_frames_see_earlier_ones_within_their_layers_window():
    geo = TokenizerGeometry.from_config(WINDOWS)
    assert geo.windows == (6, None, 6, None)
    x = torch.randn(30, geo.hidden_size, generator=torch.Generator().manual_seed(0))
    moved = x.clone()
    moved[10] += 1
    for layer, last in ((0, 16), (1, 29)):
        attention = TokenizerAttention(geo, layer).requires_grad_(False)
        gap = (attention(x) - attention(moved)).abs().amax(-1)
        assert (gap > 1e-6).nonzero()[:, 0].tolist() == list(range(10, last + 1))


def test_the_skip_connection_adds_what_the_named_layer_gave():
    model = tower()
    for layer in model.encoder.layers[3:]:  # a last layer that adds nothing
        layer.self_attn.out_proj.weight.zero_(), layer.self_attn.out_proj.bias.zero_()
        layer.fc2.weight.zero_(), layer.fc2.bias.zero_()
    features = model.encoder.features(mel(40))
    # Its input is then the skipped value itself: twice that, which the norm behind takes out.
    model.encoder.geo = dataclasses.replace(model.encoder.geo, skip_layer=None)
    torch.testing.assert_close(model.encoder.features(mel(40)), features, rtol=1e-3, atol=1e-3)
    model.encoder.geo = dataclasses.replace(model.encoder.geo, skip_layer=1)
    assert not torch.allclose(model.encoder.features(mel(40)), features, atol=1e-2)


def test_each_code_is_the_entry_nearest_to_what_the_ones_before_left():
    quantizer = tower().encoder.quantizer
    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(0))
    codes = quantizer(x)
    for frame in range(len(x)):
        rest = x[frame]
        for level, code in zip(quantizer.vq.layers, codes[frame].tolist(), strict=True):
            entries = level._codebook.embed
            assert int((entries - rest).norm(dim=1).argmin()) == code
            rest = rest - entries[code]


def test_a_group_that_is_not_full_repeats_its_last_code():
    model = tower()
    codes = model.codes(mel(100))[:6]
    out = model.embed(codes)
    assert out.shape == (2, 128)
    full = torch.cat([codes, codes[-1:], codes[-1:]])
    torch.testing.assert_close(model.embed(full), out)
    torch.testing.assert_close(model.embed(codes[:4]), out[:1])
    other = codes.clone()
    other[0, 19] = (other[0, 19] + 1) % 16
    assert (model.embed(other)[0] - out[0]).abs().max() > 1e-3
    torch.testing.assert_close(model.embed(other)[1], out[1])


@pytest.mark.parametrize("frames", (1, 15, 16, 17, 6000, 6001))
def test_one_token_for_sixteen_mel_frames(frames: int):
    assert len(tower(config=TOKENIZER_CONFIG)(mel(frames))) == -(-frames // 16)


def test_tiny_towers_tell_sounds_apart_and_speak_at_the_volume_of_text():
    model = tower(config=TOKENIZER_CONFIG)
    frame = torch.arange(200)[:, None]
    band = torch.arange(128)[None]
    sounds = [
        -8 + 10 * (-(((band - 20) / 3) ** 2)).exp() + 0 * frame,  # a low tone
        -8 + 10 * (-(((band - 90) / 3) ** 2)).exp() + 0 * frame,  # a high one
        -8 + 10 * (-(((band - frame / 2) / 3) ** 2)).exp(),  # a rising one
        mel(200) / 2,
    ]
    outs = [model(sound) for sound in sounds]
    for out in outs:
        assert 0.6 < out.std() < 1.5
    for a, b in itertools.combinations(outs, 2):
        # Unrelated vectors would be 1.4 times as far apart as they are long.
        assert ((a - b).norm(dim=1) / a.norm(dim=1)).mean() > 0.7
