"""Properties of the plain-torch model that no other implementation is needed for."""

from __future__ import annotations

import torch

from vllm_mimo.checkpoints.geometry import TextGeometry
from vllm_mimo.reference.attention import attend_blocked
from vllm_mimo.reference.text import MiMoV2Reference
from vllm_mimo.tiny.checkpoints import bundled_tokenizer
from vllm_mimo.tiny.initial import lay_out
from vllm_mimo.tiny.shapes import random_config, trained_config
from vllm_mimo.tiny.write import random_state


def random_model() -> MiMoV2Reference:
    geometry = TextGeometry.from_config(random_config("flash", bundled_tokenizer(), fp8=False))
    model = MiMoV2Reference(geometry)
    model.load_state_dict(random_state(geometry, seed=2))
    return model


@torch.no_grad()
def test_mtp_layers_see_the_tokens_up_to_the_one_before_their_target():
    model = random_model()
    tokens = torch.randint(0, 2000, (1, 20), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 12] = (changed[0, 12] + 1) % 2000
    before = model.mtp_hidden(tokens, model.hidden(tokens))
    after = model.mtp_hidden(changed, model.hidden(changed))
    for k, (a, b) in enumerate(zip(before, after, strict=True)):
        assert a.shape[1] == 20 - k - 1
        # State t of layer k reads token t + k + 1 and predicts the next one.
        # (Beyond rounding: other tokens share the experts' products.)
        first = ((a - b).abs() > 1e-3).any(-1)[0].nonzero()[0].item()
        assert first == 12 - k - 1


@torch.no_grad()
def test_all_experts_at_once_is_the_same_mixture():
    model = random_model()
    moe = model.model.layers[1].mlp
    x = torch.randn(3, 7, model.geometry.hidden_size, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(moe.forward_all_experts(x), moe(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_initial_weights_of_the_trained_model_copy():
    generator = torch.Generator().manual_seed(0)
    model = MiMoV2Reference(
        TextGeometry.from_config(trained_config(bundled_tokenizer())), attend_blocked
    )
    untrained = _copies(model)
    lay_out(model, generator)
    assert untrained < 0.05
    assert _copies(model) > 0.9


def _copies(model: MiMoV2Reference) -> float:
    """Share of the second half of repeated noise that is predicted right."""
    piece = torch.randint(0, 2000, (4, 200), generator=torch.Generator().manual_seed(3))
    guess = model(torch.cat([piece, piece], dim=1))[:, 200:-1].argmax(-1)
    return float((guess == piece[:, 1:]).float().mean())
