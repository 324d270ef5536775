import pytest
import torch
from torch import nn

from moga.study.models import FAMILIES, build_model, heads_of, next_token_logits, next_token_loss


def build(family: str, width: int = 32, seed: int = 0) -> nn.Module:
    return build_model(family, width, layers=2, head_size=16, context=8, seed=seed)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_logits_depend_on_earlier_tokens_only(family: str) -> None:
    model = build(family)
    nn.init.normal_(model.get_output_embeddings().weight)  # type: ignore[operator]
    tokens = torch.arange(8)[None]
    changed = tokens.clone()
    changed[0, 5] = 99
    before, after = next_token_logits(model, tokens), next_token_logits(model, changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5], after[:, 5])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_input_and_output_are_two_tensors_and_there_is_no_dropout(family: str) -> None:
    model = build(family)
    assert model.get_input_embeddings().weight is not model.get_output_embeddings().weight  # type: ignore[operator]
    assert all(module.p == 0 for module in model.modules() if isinstance(module, nn.Dropout))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_axis_is_fixed_or_grows_with_the_width(family: str) -> None:
    small, large = build(family, 32), build(family, 64)
    shapes = {name: parameter.shape for name, parameter in large.named_parameters()}
    for name, parameter in small.named_parameters():
        ratios = {b / a for a, b in zip(parameter.shape, shapes[name], strict=True)}
        assert ratios <= {1.0, 2.0}, name


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_initial_weights_depend_on_the_seed_alone_and_leave_the_global_state(family: str) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first = build(family).state_dict()
    assert torch.equal(torch.rand(3), expected)
    second, third = build(family).state_dict(), build(family, seed=1).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], third[name]) for name in first)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_first_loss_is_that_of_a_uniform_guess(family: str) -> None:
    windows = torch.arange(18).reshape(2, 9)
    assert next_token_loss(build(family), windows).item() == pytest.approx(torch.tensor(256.0).log().item())


def test_a_width_between_heads_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"width 40 is not a multiple of the head size 16: .* such as 16, 32, 64"):
        heads_of(40, 16)


def test_an_unknown_family_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown model family 'mamba'; known: gpt2, llama"):
        build("mamba")
