"""The check on a stream of tensors: what guards checkpoints that are not in a local folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.checkpoints.schema import TensorSpec, ignored_modules, text_tensors
from vllm_mimo.checkpoints.weights import CheckpointError, checked
from vllm_mimo.tiny.checkpoints import bundled_tokenizer
from vllm_mimo.tiny.shapes import random_config

Pairs = list[tuple[str, torch.Tensor]]
ROUTER = "model.layers.1.mlp.gate.weight"


@pytest.fixture(scope="module", params=["v2.5", "flash", "v2.5-fp8"])
def specs(request: pytest.FixtureRequest) -> dict[str, TensorSpec]:
    layout, _, fp8 = request.param.partition("-")
    config = random_config(layout, bundled_tokenizer(), fp8=bool(fp8))
    geometry = TextGeometry.from_config(config)
    return {spec.name: spec for spec in text_tensors(geometry, ignored_modules(config))}


def tensors(specs: dict[str, TensorSpec]) -> Pairs:
    """One tensor without memory for each spec."""
    return [(name, torch.empty(spec.shape, device="meta")) for name, spec in specs.items()]


def drain(pairs: Pairs, specs: dict[str, TensorSpec], complete: bool = True) -> list[str]:
    return [name for name, _ in checked(pairs, specs, complete)]


def test_a_whole_checkpoint_passes_unchanged(specs: dict[str, TensorSpec]) -> None:
    pairs = tensors(specs)
    out = list(checked(pairs, specs, complete=True))
    assert [name for name, _ in out] == list(specs)
    assert all(given is taken for (_, given), (_, taken) in zip(pairs, out, strict=True))


@pytest.mark.parametrize("name", ["lm_head.weight", ROUTER, "model.layers.0.mlp.up_proj.weight"])
def test_a_missing_tensor_is_named_at_the_end(specs: dict[str, TensorSpec], name: str) -> None:
    pairs = [pair for pair in tensors(specs) if pair[0] != name]
    with pytest.raises(CheckpointError, match=f"lacks 1 tensor.*'{name}'"):
        drain(pairs, specs)
    # A part of a checkpoint, as in a later update of weights, may lack any.
    assert drain(pairs, specs, complete=False) == [n for n in specs if n != name]


def test_many_missing_tensors_are_counted(specs: dict[str, TensorSpec]) -> None:
    pairs = [pair for pair in tensors(specs) if not pair[0].startswith("model.layers.5.")]
    lost = [name for name in specs if name.startswith("model.layers.5.")]
    with pytest.raises(CheckpointError) as caught:
        drain(pairs, specs)
    assert f"lacks {len(lost)} tensor(s)" in str(caught.value)
    assert str(caught.value).endswith(f"and {len(lost) - 5} more")


def test_an_extra_tensor_is_refused_before_anything_behind_it_is_read(
    specs: dict[str, TensorSpec],
) -> None:
    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        yield "model.layers.1.mlp.gate.weigth", torch.empty(1)
        pytest.fail("the stream was read on")

    with pytest.raises(CheckpointError) as caught:
        list(checked(stream(), specs, complete=False))
    assert "extra tensor 'model.layers.1.mlp.gate.weigth'" in str(caught.value)
    assert f"nearest known: '{ROUTER}'" in str(caught.value)


@pytest.mark.parametrize("shape", [(), (4,), (128, 4), (4, 128, 1), (4, 127)])
def test_a_misshapen_tensor_is_named_with_both_shapes(
    specs: dict[str, TensorSpec], shape: tuple[int, ...]
) -> None:
    pairs = [
        (name, torch.empty(shape, device="meta") if name == ROUTER else tensor)
        for name, tensor in tensors(specs)
    ]
    with pytest.raises(CheckpointError) as caught:
        drain(pairs, specs, complete=False)
    assert f"tensor '{ROUTER}' has shape {list(shape)}, expected [4, 128]" in str(caught.value)


def test_mtp_layers_may_be_missing_as_a_whole_but_not_in_part(
    specs: dict[str, TensorSpec],
) -> None:
    without = [pair for pair in tensors(specs) if not pair[0].startswith("model.mtp.")]
    assert len(without) < len(specs)
    assert drain(without, specs) == [name for name, _ in without]
    name = "model.mtp.layers.1.eh_proj.weight"
    with pytest.raises(CheckpointError, match=f"lacks 1 tensor.*'{name}'"):
        drain([pair for pair in tensors(specs) if pair[0] != name], specs)


def test_tensors_of_the_towers_are_left_alone(specs: dict[str, TensorSpec]) -> None:
    towers = [
        ("visual.blocks.0.attn.qkv.weight", torch.empty(1)),
        ("audio_encoder.x", torch.empty(1)),
    ]
    assert drain([*tensors(specs), *towers], specs) == [*specs, *(name for name, _ in towers)]
