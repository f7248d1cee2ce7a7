"""The vision oracle: held to Qwen2.5-VL where they are the same, elsewhere to facts."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vllm_mimo.checkpoints.towers import VisionGeometry
from vllm_mimo.reference.vision import Block, Merger, VisionTower, attend
from vllm_mimo.tiny.checkpoints import bundled_tokenizer
from vllm_mimo.tiny.shapes import random_config
from vllm_mimo.tiny.towers import random_towers


def geometry(**change: object) -> VisionGeometry:
    """One windowed block in row order, unless changed."""
    config = random_config("v2.5", bundled_tokenizer(), fp8=False, towers=True)
    config["vision_config"] |= {
        "depth": 1,
        "vit_window_attn_types": [0],
        "fullatt_block_indexes": [],
        "visual_token_window_size": 4,
    }
    geo = VisionGeometry.from_config(config)
    assert geo is not None
    return dataclasses.replace(geo, **change)


def tower(geo: VisionGeometry, seed: int = 0) -> VisionTower:
    """Random weights of which none is neutral."""
    model = VisionTower(geo)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("sinks"):
            weight.data = 2 * noise
        else:
            weight.data = noise * 0.1 + ("norm" in name or "ln_q" in name)
    return model.requires_grad_(False)


def patches(*grids: tuple[int, int, int], seed: int = 1) -> torch.Tensor:
    count = sum(t * h * w for t, h, w in grids)
    return torch.randn(count, 3 * 2 * 16 * 16, generator=torch.Generator().manual_seed(seed))


def run(model: VisionTower, pixels: torch.Tensor, *grids: tuple[int, int, int]) -> torch.Tensor:
    return model(pixels, torch.tensor(grids))


def changed_rows(a: torch.Tensor, b: torch.Tensor) -> list[int]:
    return ((a - b).abs().amax(-1) > 1e-4).nonzero()[:, 0].tolist()


def test_without_windows_sinks_and_groups_it_is_qwens_tower():
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
        Qwen2_5_VisionTransformerPretrainedModel,
    )

    theirs = Qwen2_5_VisionTransformerPretrainedModel(
        Qwen2_5_VLVisionConfig(
            depth=2,
            hidden_size=128,
            intermediate_size=96,
            num_heads=2,
            patch_size=16,
            out_hidden_size=48,
            fullatt_block_indexes=[0, 1],
        )
    ).eval()
    geo = geometry(
        hidden_size=128,
        intermediate_size=96,
        out_hidden_size=48,
        num_heads=2,
        num_kv_heads=2,
        full=(True, True),
        order=("row", "row"),
    )
    ours = tower(geo)
    # What differs: the merger's norm, and its biases, which our checkpoint does not have.
    theirs.merger.ln_q = nn.LayerNorm(128, eps=1e-6, bias=False)
    lacking, extra = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert (sorted(lacking), extra) == (["merger.mlp.0.bias", "merger.mlp.2.bias"], [])
    theirs.merger.mlp[0].bias.data.zero_()
    theirs.merger.mlp[2].bias.data.zero_()
    grids = torch.tensor([[1, 4, 6], [2, 8, 4]])
    pixels = patches(*grids.tolist())
    with torch.no_grad():
        expected = theirs(pixels, grids)
    expected = getattr(expected, "pooler_output", expected)
    torch.testing.assert_close(ours(pixels, grids), expected, rtol=1e-4, atol=1e-4)


def test_a_query_sees_the_window_on_either_side():
    geo = geometry(use_sink=False)
    block = tower(geo).blocks[0]
    x = torch.randn(20, geo.hidden_size, generator=torch.Generator().manual_seed(0))
    cos, sin = torch.ones(20, 32), torch.zeros(20, 32)
    moved = x.clone()
    moved[9] += 1
    assert changed_rows(block(x, cos, sin), block(moved, cos, sin)) == list(range(5, 14))
    for free in ({"full": (True,)}, {"window": 0}):
        other = Block(dataclasses.replace(geo, **free), 0)
        other.load_state_dict(block.state_dict())
        assert len(changed_rows(other(x, cos, sin), other(moved, cos, sin))) == 20


def test_a_window_in_column_order_goes_down_the_columns():
    # 6 x 4 merge units of 4 patches; the window of 4 patches reaches one unit up and down.
    model = tower(geometry(order=("column",), use_sink=False))
    grid = (1, 12, 8)
    pixels = patches(grid)
    moved = pixels.clone()
    unit = 2 * 4 + 1  # row 2, column 1
    moved[4 * unit : 4 * unit + 4] += 0.5
    up, down = unit - 4, unit + 4
    assert changed_rows(run(model, pixels, grid), run(model, moved, grid)) == [up, unit, down]
    # The foot of a column is followed by the head of the next one.
    moved = pixels.clone()
    moved[4 * 21 : 4 * 22] += 0.5  # row 5, column 1
    assert changed_rows(run(model, pixels, grid), run(model, moved, grid)) == [2, 17, 21]


def test_order_is_nothing_to_a_block_that_sees_everything():
    rows = tower(geometry(full=(True,)))
    columns = VisionTower(geometry(full=(True,), order=("column",)))
    columns.load_state_dict(rows.state_dict())
    grid = (1, 8, 6)
    torch.testing.assert_close(
        run(columns, patches(grid), grid), run(rows, patches(grid), grid), rtol=1e-4, atol=1e-4
    )


def test_column_order_by_hand():
    order = tower(geometry()).column_order(4, 6)
    units = [0, 3, 1, 4, 2, 5]  # of 2 x 3
    assert order.tolist() == [4 * unit + i for unit in units for i in range(4)]


def test_rotary_angles_are_those_of_the_patchs_row_and_column():
    rows, columns = 4, 6
    cos, sin = tower(geometry()).angles(rows, columns)
    places = [
        (2 * a + i, 2 * b + j)
        for a in range(rows // 2)
        for b in range(columns // 2)
        for i in range(2)
        for j in range(2)
    ]
    assert cos.shape == (rows * columns, 32)
    for place, (row, column) in enumerate(places):
        for step in (0, 5, 15):
            frequency = 10_000 ** (-step / 16)
            for angle, index in ((row * frequency, step), (column * frequency, 16 + step)):
                assert cos[place, index].item() == pytest.approx(math.cos(angle), abs=1e-5)
                assert sin[place, index].item() == pytest.approx(math.sin(angle), abs=1e-5)


def test_a_sink_raises_the_first_keys_logit_for_those_who_see_it():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 9, 8, generator=generator)
    k, v = (torch.randn(1, 9, 8, generator=generator) for _ in range(2))
    place = torch.arange(9)
    visible = (place[:, None] - place[None]).abs() <= 3
    plain = attend(q, k, v, visible)
    torch.testing.assert_close(attend(q, k, v, visible, torch.zeros(2)), plain)
    sunk = attend(q, k, v, visible, torch.tensor([50.0, 0.0]))
    # All the weight goes to key 0, whose value counts; queries that do not see it stay.
    torch.testing.assert_close(sunk[0, :4], v[0, 0].expand(4, 8))
    torch.testing.assert_close(sunk[0, 4:], plain[0, 4:])
    torch.testing.assert_close(sunk[1], plain[1])
    # A bias of log 2 is a second copy of the key.
    twice = attend(q[:, :1], *(torch.cat([x[:, :1], x], dim=1) for x in (k, v)))
    doubled = attend(q, k, v, None, torch.full((2,), 2.0).log())
    torch.testing.assert_close(doubled[:, :1], twice)


def test_only_blocks_that_do_not_see_everything_have_sinks():
    config = random_config("v2.5", bundled_tokenizer(), fp8=False, towers=True)
    geo = VisionGeometry.from_config(config)
    assert geo is not None
    sinks = [block.attn.sinks is not None for block in VisionTower(geo).blocks]
    assert sinks == [False, True, True, True, True, False]
    assert [b.attn.window for b in VisionTower(geo).blocks] == [None, 64, 64, 64, 64, None]


@pytest.mark.parametrize("order", ("row", "column"))
def test_pictures_and_temporal_patches_are_alone(order: str):
    model = tower(geometry(order=(order,)))
    grids = ((1, 4, 6), (3, 8, 4), (1, 2, 2))
    pixels = patches(*grids)
    parts = pixels.split([24, 32, 32, 32, 4])
    sizes = [(1, 4, 6), *[(1, 8, 4)] * 3, (1, 2, 2)]
    alone = [run(model, part, size) for part, size in zip(parts, sizes, strict=True)]
    torch.testing.assert_close(run(model, pixels, *grids), torch.cat(alone))


def test_the_mergers_norm_takes_the_mean_away():
    geo = geometry()
    merger = Merger(geo)
    x = torch.randn(8, geo.hidden_size, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(merger(x + 3), merger(x), rtol=1e-3, atol=1e-4)
    assert merger(x).shape == (2, geo.out_hidden_size)
    assert [name for name, _ in merger.named_parameters()] == [
        "ln_q.weight",
        "mlp.0.weight",
        "mlp.2.weight",
    ]


def test_a_patch_is_channels_then_frames_then_rows_then_columns():
    model = tower(geometry())
    pixels = torch.zeros(4, 3 * 2 * 16 * 16)
    pixels[0, ((1 * 2 + 1) * 16 + 5) * 16 + 7] = 1  # channel 1, frame 1, row 5, column 7
    embedded = model.patch_embed(pixels)
    torch.testing.assert_close(embedded[0], model.patch_embed.proj.weight[:, 1, 1, 5, 7])
    assert not embedded[1:].any()


def test_tiny_towers_tell_pictures_apart_and_speak_at_the_volume_of_text():
    config = random_config("v2.5", bundled_tokenizer(), fp8=False, towers=True)
    geo = VisionGeometry.from_config(config)
    assert geo is not None
    model = VisionTower(geo).requires_grad_(False)
    state = random_towers(config, scale=0.5, seed=3)
    model.load_state_dict(
        {n.removeprefix("visual."): t for n, t in state.items() if n.startswith("visual.")}
    )
    colours = [(1.9, -1.8, -1.5), (-1.8, -1.8, 2.1), (1.9, 2.0, 2.1), (-1.8, -1.7, -1.5)]
    pictures = torch.stack([torch.tensor(c).repeat_interleave(512) for c in colours])
    means = []
    for picture in pictures:
        out = run(model, picture.expand(64, -1), (1, 8, 8))
        assert 0.3 < out.std() < 0.75
        means.append(out.mean(0))
    likeness = F.cosine_similarity(torch.stack(means)[None], torch.stack(means)[:, None], dim=-1)
    assert (likeness - torch.eye(4)).abs().max() < 0.7
