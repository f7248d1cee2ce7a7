"""Bytes of weights: against the real tables, and over all ranks against the checkpoint."""

from __future__ import annotations

import pytest

from tests.paths import real_config
from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.planner.placement import Placement, place, stage_layers
from vllm_mimo.planner.weights import PARTS, checkpoint_bytes, classify, largest_rank, rank_weights

# Tensors and bytes of the real checkpoints: rows of their public weight tables, counts times
# shapes times bytes per element (bf16 2, f32 4, f8e4m3 1).
REAL = {
    "MiMo-V2.5": (73_081, 315_031_102_208),
    "MiMo-V2.5-Pro": (159_581, 1_033_369_538_304),
}
V25 = real_config("MiMo-V2.5")
PRO = real_config("MiMo-V2.5-Pro")
HIDDEN, VOCAB = 4096, 152_576


def of_all_ranks(config: dict, placement: Placement, part: str, mtp: int = 0) -> int:
    """Bytes of a part on all ranks of one instance together."""
    ranks = [rank_weights(config, placement, rank, mtp) for rank in range(placement.tp)]
    return placement.dp * sum(stage[part] for rank in ranks for stage in rank)


@pytest.mark.parametrize("name", REAL)
def test_the_parts_add_up_to_the_real_weight_table(name: str):
    count, parts = checkpoint_bytes(real_config(name))
    assert (count, sum(parts.values())) == REAL[name]
    assert tuple(parts) == PARTS


def test_parts_of_v25_by_hand():
    _, parts = checkpoint_bytes(V25)
    expert = 3 * (2048 * HIDDEN + 16 * 32 * 4)  # three FP8 matrices and their scales
    assert parts["routed experts"] == 47 * 256 * expert
    assert parts["embeddings"] == 2 * VOCAB * HIDDEN * 2
    assert parts["norms and routers"] == 47 * 256 * (HIDDEN + 1) * 4 + (2 * 48 + 1) * HIDDEN * 2
    assert parts["dense MLP"] == 3 * (16_384 * HIDDEN + 128 * 32 * 4)


@pytest.mark.parametrize("tp, ep, pp", [(8, 8, 1), (4, 8, 1), (2, 4, 2), (8, 1, 1), (1, 8, 1)])
def test_experts_lie_on_exactly_one_rank_or_slice(tp: int, ep: int, pp: int):
    placement = place(TextGeometry.from_config(V25), 16, tp, ep, pp)
    _, parts = checkpoint_bytes(V25)
    assert of_all_ranks(V25, placement, "routed experts") == parts["routed experts"]


@pytest.mark.parametrize("tp, ep", [(8, 8), (4, 8), (1, 1)])
def test_what_ranks_share_and_what_they_copy(tp: int, ep: int):
    placement = place(TextGeometry.from_config(V25), 8, tp, ep)
    _, parts = checkpoint_bytes(V25)
    replicas, ranks = placement.dp, placement.dp * tp
    for part in ("dense MLP", "embeddings"):  # split over TP, copied to each attention replica
        assert of_all_ranks(V25, placement, part) == replicas * parts[part]
    assert of_all_ranks(V25, placement, "norms and routers") == ranks * parts["norms and routers"]
    assert of_all_ranks(V25, placement, "MTP") == 0


def test_attention_at_tp8_is_split_but_for_replicated_kv_heads_and_shared_blocks():
    placement = place(TextGeometry.from_config(V25), 8, 8, 8)
    _, parts = checkpoint_bytes(V25)
    # Full layers have 4 chunks of 3,392 rows in 27 blocks (the last half full), 3,072 of them Q.
    # A rank keeps half of a chunk's Q (12 blocks) and all of its K and V (3 blocks). SWA layers
    # have 4 chunks of 3,712 rows in 29 blocks; a rank keeps half of Q, one of two K heads of 192
    # rows (2 blocks, of which the other rank needs one as well) and one V head (1 block).
    full, swa = 12 + 3, 12 + 2 + 1
    block = 128 * HIDDEN + 32 * 4
    output = HIDDEN * 8192 * 2 // 8
    expected = 9 * full * block + 39 * (swa * block + 64 * 2 // 8) + 48 * output
    for rank in range(8):
        assert rank_weights(V25, placement, rank)[0]["attention"] == expected
    kept = of_all_ranks(V25, placement, "attention")
    copies = (9 * 4 * 3 + 39 * 4) * block  # what two ranks keep
    padding = 9 * 4 * 64 * HIDDEN  # the last block of a full layer's chunk is filled up
    assert kept == parts["attention"] + copies + padding


def test_one_rank_holds_the_checkpoint_and_the_padding_of_its_blocks():
    placement = place(TextGeometry.from_config(PRO), 1)
    _, parts = checkpoint_bytes(PRO)
    (kept,) = rank_weights(PRO, placement, 0, mtp=3)
    padding = 8 * (216 // 8 * 128 - 27_136 // 8) * 6144  # of the chunks of a layer
    assert kept["attention"] == parts["attention"] + 70 * padding
    assert kept["MTP"] == parts["MTP"] + 3 * padding
    for part in ("dense MLP", "routed experts", "norms and routers", "embeddings", "towers"):
        assert kept[part] == parts[part]


def test_only_the_mtp_layers_in_use_are_counted():
    placement = place(TextGeometry.from_config(V25), 8)
    sizes = [largest_rank(V25, placement, mtp)[0]["MTP"] for mtp in range(4)]
    assert sizes[0] == 0
    assert sizes[2] == 2 * sizes[1]
    assert sizes[3] == 3 * sizes[1]


def test_stages_hold_all_layers_and_the_ends_their_embeddings():
    placement = place(TextGeometry.from_config(V25), 8, 4, 4, 2)
    first, last = rank_weights(V25, placement)
    _, parts = checkpoint_bytes(V25)
    assert first["embeddings"] == last["embeddings"] == parts["embeddings"] // 2 // 4
    assert first["towers"] == last["towers"] > 0
    assert rank_weights(V25, placement, mtp=1)[1]["embeddings"] == 2 * last["embeddings"]
    assert (first["dense MLP"], last["dense MLP"]) == (parts["dense MLP"] // 4, 0)


def test_layers_that_do_not_divide_go_to_the_stages_before_the_last():
    assert [len(stage) for stage in stage_layers(70, 4)] == [17, 18, 18, 17]
    assert [len(stage) for stage in stage_layers(48, 5)] == [9, 10, 10, 10, 9]
    assert [layer for stage in stage_layers(70, 4) for layer in stage] == list(range(70))


def test_classification_of_names_that_look_alike():
    assert classify("model.layers.3.mlp.gate.weight").part == "norms and routers"
    assert classify("model.layers.0.mlp.gate_proj.weight").part == "dense MLP"
    assert classify("model.layers.3.mlp.experts.7.gate_proj.weight").rule == "experts"
    assert classify("model.mtp.layers.1.self_attn.qkv_proj.weight").part == "MTP"
    assert classify("visual.blocks.0.attn.proj.bias").rule == "copy"
    assert classify("model.norm.weight").layer is None
