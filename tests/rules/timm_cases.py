"""The models of timm: run by test_vision.py in a process of its own, with an empty module for torchvision.

Expected rows are written from the modules' code; channels are in the numbers of :mod:`models.vision`.
"""

import pytest
import torch
from models.checks import check_starts, check_step_size
from models.rows import affine, beside, head, hidden, inputs, layers_of, packed, table, vectors, with_bias
from models.vision import IMAGE, PATCH, VISION, load_timm
from torch import nn

import moga
from moga.geometry.layout import logical_matrices
from moga.rules.init import initialize_
from moga.rules.roles import find_roles
from moga.rules.widths import roles_from_widths

STEM = 64  # of every ResNet of timm


def convolution(out, in_, size):
    return hidden(out, in_ * size**2, layout="out,in,k")


def depthwise(channels, size):
    return hidden(1, size**2, "depthwise", f"{channels}*out,in,k")


def resnet18(n):
    """One block per stage, of n, 2n, 4n and 8n channels; each has a shortcut of 1 x 1, as its input has others."""
    rows = {"conv1.weight": inputs(STEM, 3 * 7**2), **affine("bn1"), **with_bias({"fc": head(8 * n)})}
    for stage, in_ in enumerate([STEM, n, 2 * n, 4 * n]):
        out, block = n * 2**stage, f"layer{stage + 1}.0"
        rows |= {
            f"{block}.conv1.weight": convolution(out, in_, 3),
            f"{block}.conv2.weight": convolution(out, out, 3),
            f"{block}.downsample.0.weight": convolution(out, in_, 1),
            **affine(f"{block}.bn1", f"{block}.bn2", f"{block}.downsample.1"),
        }
    return rows


def convnext_tiny(n):
    channels = [n, 3 * n // 2, 2 * n, 3 * n]
    rows = with_bias({"stem.0": inputs(n, 3 * 4**2), "head.fc": head(3 * n)}) | affine("stem.1", "head.norm")
    for stage, d in enumerate(channels):
        block = f"stages.{stage}.blocks.0"
        rows |= vectors(f"{block}.gamma") | affine(f"{block}.norm")
        maps = {"conv_dw": depthwise(d, 7), "mlp.fc1": hidden(4 * d, d), "mlp.fc2": hidden(d, 4 * d)}
        rows |= with_bias({f"{block}.{name}": row for name, row in maps.items()})
        if stage:
            down = f"stages.{stage}.downsample"
            rows |= affine(f"{down}.0") | with_bias({f"{down}.1": convolution(d, channels[stage - 1], 2)})
    return rows


def vit_tiny(n):
    layer = affine("norm1", "norm2") | with_bias(
        {
            "attn.qkv": packed((n, n, n), n),
            "attn.proj": hidden(n, n),
            "mlp.fc1": hidden(4 * n, n),
            "mlp.fc2": hidden(n, 4 * n),
        }
    )
    return {
        "cls_token": beside(n, "token"),
        "pos_embed": beside(n),
        **with_bias({"patch_embed.proj": inputs(n, 3 * PATCH**2), "head": head(n)}),
        **layers_of("blocks", layer, layer),
        **affine("norm"),
    }


def efficientnet_b0(n):
    """One block per stage. (in, kernel, expansion, out) of EfficientNet's paper, Table 1; n = 64 is the paper's width.

    At the widths of the test all products are whole multiples of 8, so that nothing is rounded.
    """
    stages = [(32, 3, 1, 16), (16, 3, 6, 24), (24, 5, 6, 40), (40, 3, 6, 80), (80, 5, 6, 112), (112, 5, 6, 192)]
    rows = {"conv_stem.weight": inputs(n // 2, 3 * 3**2), **affine("bn1")}
    for stage, (in_, size, expansion, out) in enumerate([*stages, (192, 3, 6, 320)]):
        in_, out, block = in_ * n // 64, out * n // 64, f"blocks.{stage}.0"
        inner, squeezed = in_ * expansion, in_ // 4
        rows |= with_bias(
            {
                f"{block}.se.conv_reduce": convolution(squeezed, inner, 1),
                f"{block}.se.conv_expand": convolution(inner, squeezed, 1),
            }
        )
        rows |= {f"{block}.conv_dw.weight": depthwise(inner, size)} | affine(f"{block}.bn1", f"{block}.bn2")
        if expansion == 1:
            rows[f"{block}.conv_pw.weight"] = convolution(out, inner, 1)
        else:
            rows[f"{block}.conv_pw.weight"] = convolution(inner, in_, 1)
            rows[f"{block}.conv_pwl.weight"] = convolution(out, inner, 1)
            rows |= affine(f"{block}.bn3")
    last = 20 * n
    return rows | {
        "conv_head.weight": convolution(last, 5 * n, 1),
        **affine("bn2"),
        **with_bias({"classifier": head(last)}),
    }


def mlp_mixer(n):
    """16 patches are mixed through n/2 features of their own, n channels through 4n."""
    patches = (IMAGE // PATCH) ** 2
    layer = affine("norm1", "norm2") | with_bias(
        {
            "mlp_tokens.fc1": hidden(n // 2, patches, "across"),
            "mlp_tokens.fc2": hidden(patches, n // 2, "across"),
            "mlp_channels.fc1": hidden(4 * n, n),
            "mlp_channels.fc2": hidden(n, 4 * n),
        }
    )
    return {
        **with_bias({"stem.proj": inputs(n, 3 * PATCH**2), "head": head(n)}),
        **layers_of("blocks", layer, layer),
        **affine("norm"),
    }


EXPECTED = {
    "resnet18": resnet18,
    "convnext_tiny": convnext_tiny,
    "vit_tiny": vit_tiny,
    "efficientnet_b0": efficientnet_b0,
    "mlp_mixer": mlp_mixer,
}
WIDTHS = dict.fromkeys(EXPECTED, (32, 64)) | {"efficientnet_b0": (64, 128), "resnet18": (32, 48)}


def test_every_model_is_expected():
    assert list(EXPECTED) == list(VISION)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_parameter(name):
    for width in WIDTHS[name]:
        model = VISION[name](width)
        assert list(dict(model.named_parameters())) == [one.name for one in find_roles(model)]
        assert table(model) == EXPECTED[name](width)


# Where the widths alone say something else: the stem of a ResNet stays, so widths see the maps from it as the first
# ones; the patches of a mixer stay.
BY_WIDTHS = {
    "resnet18": {"conv1.weight": "", "layer1.0.conv1.weight": "input", "layer1.0.downsample.0.weight": "input"},
    "mlp_mixer": {
        f"blocks.{i}.mlp_tokens.{name}.weight": role
        for i in range(2)
        for name, role in (("fc1", "input"), ("fc2", "output"))
    },
}


@pytest.mark.parametrize("name", EXPECTED)
def test_modules_and_widths_give_the_same_roles(name):
    small, large = (VISION[name](width) for width in WIDTHS[name])
    by_module = {one.name: one.role for one in find_roles(large)}
    assert roles_from_widths(large, small) == by_module | BY_WIDTHS.get(name, {})


def test_the_maps_from_a_stem_that_stays_are_stated():
    small, large = VISION["resnet18"](32), VISION["resnet18"](48)
    with pytest.raises(ValueError, match=r"(?s)say different roles \(2\):\n  layer1.0.conv1.weight .*State the one"):
        moga.param_groups(large, "mup-adamw", base=small)
    stated = {"layer1.0.conv1.weight": "input", "layer1.0.downsample.0.weight": "input"}
    for group in moga.param_groups(large, "mup-adamw", base=small, roles=stated):
        expected = 2 / 3 if group["role"] in ("hidden", "output") else 1.0
        assert group["scale"] == pytest.approx(expected, rel=1e-12), group["param_names"]


def test_maps_across_patches_are_hidden_with_their_real_sizes():
    groups = moga.param_groups(VISION["mlp_mixer"](64), "mup-adamw", base=VISION["mlp_mixer"](32))
    found = {name: group for group in groups for name in group["param_names"] if "mlp_tokens.fc" in name}
    assert {group["role"] for name, group in found.items() if name.endswith("weight")} == {"hidden"}
    up, down = (found[f"blocks.0.mlp_tokens.{name}.weight"] for name in ("fc1", "fc2"))
    assert (up["fan"], up["base_fan"], up["scale"]) == ([[32, 16]], [[16, 16]], 1.0)  # 1 / in, and 16 patches stay
    assert (down["fan"], down["base_fan"], down["scale"]) == ([[16, 32]], [[16, 16]], 0.5)


@pytest.mark.parametrize(("recipe", "options"), [("moga-row", {}), ("moga-column", {}), ("muon", {"polar": "exact"})])
@pytest.mark.parametrize("name", EXPECTED)
def test_one_step_moves_every_logical_matrix_by_lr(name, recipe, options):
    measured = check_step_size(VISION[name](WIDTHS[name][0]), recipe, **options)
    assert measured == ({"hidden"} if recipe == "muon" else {"input", "hidden", "output", "vector"})


@pytest.mark.parametrize("name", EXPECTED)
def test_every_hidden_block_starts_with_a_spectral_size_of_one_to_two(name):
    for width in WIDTHS[name]:
        assert check_starts(VISION[name](width)) > 0


def test_layer_scales_stay_and_gains_start_at_one():
    """timm starts the last gain of each block of a ResNet at zero."""
    model = VISION["convnext_tiny"](32)
    before = model.stages[0].blocks[0].gamma.detach().clone()
    initialize_(model, "moga-row")
    assert torch.equal(model.stages[0].blocks[0].gamma, before) and bool(before.any())
    residual = initialize_(VISION["resnet18"](32), "moga-row")
    assert bool((residual.layer1[0].bn2.weight == 1).all())
    with_scales = load_timm().create_model("vit_tiny_patch16_224", init_values=1e-3, embed_dim=32, num_heads=4, depth=1)
    initialize_(with_scales, "moga-row")
    assert bool((with_scales.blocks[0].ls1.gamma == 1e-3).all())


def test_queries_keys_and_values(monkeypatch):
    model = VISION["vit_tiny"](32)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))
    attend, seen = nn.functional.scaled_dot_product_attention, {}
    model.blocks[0].attn.qkv.register_forward_pre_hook(lambda _, args: seen.update(x=args[0].detach()))

    def spy(*args, **kwargs):
        seen.setdefault("handed", args[:3])
        return attend(*args, **kwargs)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", spy)
    with torch.no_grad():
        model(torch.randn(2, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(2)))
    [one] = [one for one in find_roles(model) if one.name == "blocks.0.attn.qkv.weight"]
    rows = logical_matrices(one.parameter.detach(), one.layout, one.blocks, one.interleave)
    for matrix, per_head in zip(rows, seen["handed"], strict=True):
        torch.testing.assert_close(per_head.transpose(1, 2).flatten(2), seen["x"] @ matrix.T, atol=1e-4, rtol=1e-4)
    by_head = logical_matrices(one.parameter.detach(), one.layout, one.blocks, 4)
    query = seen["handed"][0].transpose(1, 2).flatten(2)
    assert not torch.allclose(query, seen["x"] @ by_head[0].T, atol=1e-2)


def test_a_model_without_a_classifier_has_no_output():
    model = load_timm().create_model("resnet18", num_classes=0, layers=(1, 1, 1, 1))
    with pytest.raises(ValueError, match=r"(?s)parameters without a role.*layer1.0.conv1.weight"):
        find_roles(model)


def test_another_stem_than_the_declared_one_is_not_taken_for_it():
    model = VISION["resnet18"](32)
    model.pretrained_cfg = {**model.pretrained_cfg, "first_conv": "stem.conv"}
    with pytest.raises(ValueError, match=r"(?s)parameters without a role.*conv1.weight.*'conv1.weight': 'input'"):
        find_roles(model)
    model.pretrained_cfg["first_conv"] = ("conv1", "layer1.0.conv1")
    assert {one.name for one in find_roles(model) if one.role == "input"} == {"conv1.weight", "layer1.0.conv1.weight"}
