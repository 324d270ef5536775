"""The rows of fused modules against what the modules compute: a matrix is the one that makes the queries, or it is not.

A module runs on random input, what it hands to its attention function (or gate, or scan) is caught on the way, and
compared with the input times the matrices that the row cuts out of the stored tensor.
"""

import inspect
import re
import sys
from pathlib import Path

import pytest
import torch
import transformers
from models import encoders
from models.decoders import build
from models.vision import TIMM, need_timm
from torch import nn
from transformers import (
    CodeGenConfig,
    CodeGenForCausalLM,
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    Llama4TextConfig,
    MambaConfig,
    MambaForCausalLM,
    PersimmonConfig,
    PersimmonForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.llama4.modeling_llama4 import Llama4TextExperts

from moga.geometry.layout import logical_matrices
from moga.rules.families import EXPERT_WORDS, NUMBERS, PACKED, SILENT_EXPERTS, expert_layout, packed
from moga.rules.places import DIVIDED_LOGITS, OUTPUTS, PART_PLACES, ROWS, STARTS
from moga.rules.roles import find_roles

TOKENS = torch.randint(3, 61, (2, 7), generator=torch.Generator().manual_seed(0))


def restart_(model):
    """Entries of order 1, so that no comparison is won by zeros; biases stay out of it."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "bias" in name:
            nn.init.zeros_(parameter)
        elif parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3, generator=generator)
    return model.eval()


def matrices_of(model, name, interleave=None):
    [one] = [one for one in find_roles(model) if one.name == name]
    return logical_matrices(one.parameter, one.layout, one.blocks, one.interleave if interleave is None else interleave)


def features(per_head):
    """(batch, heads, tokens, size) as (batch, tokens, heads * size)."""
    return per_head.transpose(1, 2).flatten(2)


def unrepeated(per_head, size, out):
    """The first of the equal copies that a module makes of each key or value for the queries that share it."""
    return per_head[:, :: per_head.shape[1] * size // out]


def catch(seen, key, module, take=lambda args: args[0]):
    """Keep what goes into a module at its first call."""
    module.register_forward_pre_hook(lambda _, args: None if key in seen else seen.update({key: take(args).detach()}))


def run_attention(model, module, patch):
    """The input of ``module``, a linear map, and the queries, keys and values of the attention that follows."""
    seen = {}
    catch(seen, "input", module)
    code = sys.modules[type(model).__module__]
    for name in ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave"):
        if hasattr(code, name):  # positions turn queries and keys after they were made
            one_by_one = len(inspect.signature(getattr(code, name)).parameters) == 3
            patch.setattr(code, name, lambda q, k, *args, alone=one_by_one, **kwargs: q if alone else (q, k))
    attend = nn.functional.scaled_dot_product_attention

    def spy(query, key, value, *args, **kwargs):
        seen.setdefault("handed", (query.detach(), key.detach(), value.detach()))
        return attend(query, key, value, *args, **kwargs)

    patch.setattr("torch.nn.functional.scaled_dot_product_attention", spy)
    with torch.no_grad():
        model(TOKENS)
    return seen["input"], seen["handed"]


def small(model, config, **settings):
    sizes = {"vocab_size": 61, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, **settings}
    return model(config(**sizes))


def bigcode(multi_query):
    sizes = {"n_embd": 32, "n_head": 4, "n_layer": 1, "n_positions": 17, "multi_query": multi_query}
    return small(GPTBigCodeForCausalLM, GPTBigCodeConfig, **sizes)


def codegen():
    sizes = {"n_embd": 32, "n_head": 4, "n_layer": 1, "n_positions": 17, "rotary_dim": 4}
    return small(CodeGenForCausalLM, CodeGenConfig, **sizes)


def persimmon():
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4}
    return small(PersimmonForCausalLM, PersimmonConfig, qk_layernorm=False, **sizes)


# model, its fused linear map, an interleaving that is wrong
ATTENTION = {
    "gpt2": (lambda: build("gpt2", 32), "transformer.h.0.attn.c_attn", 4),
    "gpt_neox": (lambda: build("gpt_neox", 32), "gpt_neox.layers.0.attention.query_key_value", 1),
    "phi3": (lambda: build("phi3", 32), "model.layers.0.self_attn.qkv_proj", 2),
    "falcon": (lambda: build("falcon", 32), "transformer.h.0.self_attention.query_key_value", 8),
    "falcon_grouped": (lambda: build("falcon_grouped", 32), "transformer.h.0.self_attention.query_key_value", 1),
    "falcon_heads": (lambda: build("falcon_heads", 32), "transformer.h.0.self_attention.query_key_value", 1),
    "gpt_bigcode": (lambda: bigcode(True), "transformer.h.0.attn.c_attn", 8),
    "gpt_bigcode, heads": (lambda: bigcode(False), "transformer.h.0.attn.c_attn", 1),
    "codegen": (codegen, "transformer.h.0.attn.qkv_proj", 1),
    "modernbert": (lambda: encoders.build("modernbert", 32), "model.layers.0.attn.Wqkv", 4),
    "persimmon": (persimmon, "model.layers.0.self_attn.query_key_value", 1),
}


@pytest.mark.parametrize("case", ATTENTION)
def test_queries_keys_and_values(case, monkeypatch):
    make, name, wrong = ATTENTION[case]
    model = restart_(make())
    x, handed = run_attention(model, model.get_submodule(name), monkeypatch)
    rows = matrices_of(model, f"{name}.weight")
    assert len(rows) == 3
    if case == "codegen":  # query, value, key
        rows = [rows[0], rows[2], rows[1]]
    for matrix, per_head in zip(rows, handed, strict=True):
        found = features(unrepeated(per_head, per_head.shape[-1], matrix.shape[-2]))
        torch.testing.assert_close(found, x @ matrix.T, atol=1e-5, rtol=1e-5)
    query = matrices_of(model, f"{name}.weight", wrong)[0]
    assert not torch.allclose(features(handed[0]), x @ query.T, atol=1e-2)


def test_bloom_makes_query_key_and_value_head_by_head(monkeypatch):
    from transformers.models.bloom.modeling_bloom import BloomAttention

    model, seen = restart_(build("bloom", 32)), {}
    name = "transformer.h.0.self_attention.query_key_value"
    catch(seen, "input", model.get_submodule(name))
    reshape = BloomAttention._reshape

    def spy(self, fused):
        seen.setdefault("handed", reshape(self, fused))
        return reshape(self, fused)

    monkeypatch.setattr(BloomAttention, "_reshape", spy)
    with torch.no_grad():
        model(TOKENS)
    for matrix, per_head in zip(matrices_of(model, f"{name}.weight"), seen["handed"], strict=True):
        torch.testing.assert_close(features(per_head), seen["input"] @ matrix.T, atol=1e-5, rtol=1e-5)
    wrong = matrices_of(model, f"{name}.weight", 1)[0]
    assert not torch.allclose(features(seen["handed"][0]), seen["input"] @ wrong.T, atol=1e-2)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_mpt_makes_query_key_and_value_one_after_another(clip, monkeypatch):
    model, seen = restart_(build("mpt", 32, attn_config={"clip_qkv": clip})), {}
    name = "transformer.blocks.0.attn.Wqkv"
    catch(seen, "input", model.get_submodule(name))
    multiply, calls = torch.matmul, []
    monkeypatch.setattr(torch, "matmul", lambda a, b: calls.append((a, b)) or multiply(a, b))
    with torch.no_grad():
        model(TOKENS)
    (query, key), (_, value) = calls[:2]
    handed = (query, key.transpose(-1, -2), value)
    bound = float("inf") if clip is None else clip
    for matrix, per_head in zip(matrices_of(model, f"{name}.weight"), handed, strict=True):
        expected = (seen["input"] @ matrix.T).clamp(-bound, bound)
        torch.testing.assert_close(features(per_head), expected, atol=1e-5, rtol=1e-5)
    wrong = matrices_of(model, f"{name}.weight", 4)[0]
    assert not torch.allclose(features(query), (seen["input"] @ wrong.T).clamp(-bound, bound), atol=1e-2)


def test_the_latent_of_deepseek(monkeypatch):
    """Down: the latent and the rotary key that all heads share. Up: per head its key without position and its value."""
    model, seen = restart_(build("deepseek_v3", 32)), {}
    attention = model.model.layers[0].self_attn
    catch(seen, "latent", attention.kv_b_proj, lambda args: args[0].squeeze(1))
    catch(seen, "compressed", attention.kv_a_layernorm)
    x, (_, key, value) = run_attention(model, attention.kv_a_proj_with_mqa, monkeypatch)
    down, shared = matrices_of(model, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight")
    torch.testing.assert_close(seen["compressed"], x @ down.T, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(key[..., 8:], (x @ shared.T)[:, None].expand(-1, 8, -1, -1), atol=1e-5, rtol=1e-5)
    for interleave, equal in ((None, True), (1, False)):
        keys, values = matrices_of(model, "model.layers.0.self_attn.kv_b_proj.weight", interleave)
        assert torch.allclose(features(key[..., :8]), seen["latent"] @ keys.T, atol=1e-4) is equal
        assert torch.allclose(features(value), seen["latent"] @ values.T, atol=1e-4) is equal


def test_gate_and_up_of_phi3():
    model, seen = restart_(build("phi3", 32)), {}
    layer = model.model.layers[0].mlp
    catch(seen, "input", layer.gate_up_proj)
    catch(seen, "gate", layer.activation_fn)
    catch(seen, "product", layer.down_proj)
    with torch.no_grad():
        model(TOKENS)
    gate, up = (seen["input"] @ one.T for one in matrices_of(model, "model.layers.0.mlp.gate_up_proj.weight"))
    torch.testing.assert_close(seen["gate"], gate, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen["product"], nn.functional.silu(gate) * up, atol=1e-5, rtol=1e-5)
    wrong = matrices_of(model, "model.layers.0.mlp.gate_up_proj.weight", 80)[0]
    assert not torch.allclose(seen["gate"], seen["input"] @ wrong.T, atol=1e-2)


def swiglu(gate, up):
    return nn.functional.silu(gate) * up


def clamped(gate, up):
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


@pytest.mark.parametrize(
    ("family", "activation", "wrong"),
    [("mixtral", swiglu, 24), ("qwen3_moe", swiglu, 24), ("deepseek_v3", swiglu, 24), ("gpt_oss", clamped, 1)],
)
@pytest.mark.parametrize("kernel", ["eager", "batched_mm"])
def test_experts(family, activation, wrong, kernel):
    model = restart_(build(family, 32))
    model.config._experts_implementation = kernel
    experts, name = model.model.layers[1].mlp.experts, "model.layers.1.mlp.experts"
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(2))
    chosen = torch.tensor([[0], [3], [5], [3], [1]])
    with torch.no_grad():
        found = experts(x, chosen, torch.ones(5, 1))
    [down] = matrices_of(model, f"{name}.down_proj")
    for interleave, equal in ((None, True), (wrong, False)):
        gate, up = (one[chosen[:, 0]] for one in matrices_of(model, f"{name}.gate_up_proj", interleave))
        inner = activation((gate @ x[..., None])[..., 0], (up @ x[..., None])[..., 0])
        expected = (down[chosen[:, 0]] @ inner[..., None])[..., 0]
        assert torch.allclose(found, expected, atol=1e-4) is equal


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"])
def test_routers_score_the_experts(family):
    model = restart_(build(family, 32))
    [one] = [one for one in find_roles(model) if one.part == "router" and ".1." in one.name]
    x = torch.randn(1, 5, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        scores = model.get_submodule(one.name.rpartition(".")[0])(x)[0]
    torch.testing.assert_close(scores.reshape(5, 6), x[0] @ one.parameter.T, atol=1e-5, rtol=1e-5)


def test_the_blocks_of_mamba2(monkeypatch):
    """The convolution passes everything on as it is, so that what enters the scan is silu of a block."""
    import transformers.models.mamba2.modeling_mamba2 as code

    model, seen = restart_(build("mamba2", 32)), {}
    mixer = model.backbone.layers[0].mixer
    nn.init.zeros_(mixer.conv1d.weight)
    nn.init.ones_(mixer.conv1d.weight[..., -1])
    catch(seen, "input", mixer.in_proj)
    catch(seen, "gate", mixer.norm, lambda args: args[1])
    scan = code.mamba2_chunk_scan
    monkeypatch.setattr(
        code,
        "mamba2_chunk_scan",
        lambda x, dt, a, b, c, **kwargs: seen.setdefault("scan", (x, b, c, dt)) and scan(x, dt, a, b, c, **kwargs),
    )
    with torch.no_grad():
        model(TOKENS)
    name = "backbone.layers.0.mixer.in_proj.weight"
    gate, x, b, c, dt = (seen["input"] @ one.T for one in matrices_of(model, name))
    torch.testing.assert_close(seen["gate"], gate, atol=1e-5, rtol=1e-5)
    for found, block in zip(seen["scan"][:3], (x, b, c), strict=True):
        torch.testing.assert_close(found.flatten(2), nn.functional.silu(block), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen["scan"][3], dt, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(b, c, atol=1e-2)


def qwen3_next():
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2}
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 5}
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    config = Qwen3NextConfig, {**sizes, **linear, **experts, **layers, "head_dim": 8, "linear_value_head_dim": 7}
    return small(Qwen3NextForCausalLM, config[0], **config[1], shared_expert_intermediate_size=24)


def test_the_gated_delta_rule(monkeypatch):
    model, seen = restart_(qwen3_next()), {}
    delta = model.model.layers[0].linear_attn
    catch(seen, "input", delta.in_proj_qkvz)
    order = delta.fix_query_key_value_ordering
    monkeypatch.setattr(delta, "fix_query_key_value_ordering", lambda *args: seen.setdefault("parts", order(*args)))
    with torch.no_grad():
        model(TOKENS)
    name = "model.layers.0.linear_attn"
    rows = [*matrices_of(model, f"{name}.in_proj_qkvz.weight"), *matrices_of(model, f"{name}.in_proj_ba.weight")]
    assert [len(one) for one in rows] == [10, 10, 42, 42, 6, 6]
    for matrix, part in zip(rows, seen["parts"], strict=True):
        torch.testing.assert_close(part.flatten(2), seen["input"] @ matrix.T, atol=1e-5, rtol=1e-5)


def test_queries_with_a_gate():
    model, seen = restart_(qwen3_next()), {}
    attention = model.model.layers[1].self_attn
    catch(seen, "input", attention.q_proj)
    catch(seen, "query", attention.q_norm, lambda args: args[0].flatten(2))
    with torch.no_grad():
        model(TOKENS)
    name = "model.layers.1.self_attn.q_proj.weight"
    query, gate = (seen["input"] @ one.T for one in matrices_of(model, name))
    torch.testing.assert_close(seen["query"], query, atol=1e-5, rtol=1e-5)
    assert gate.shape == query.shape and not torch.allclose(gate, query, atol=1e-2)
    assert not torch.allclose(seen["query"], seen["input"] @ matrices_of(model, name, 1)[0].T, atol=1e-2)


def test_the_experts_of_llama4():
    config = Llama4TextConfig(hidden_size=32, intermediate_size=24, num_local_experts=3)
    experts = restart_(Llama4TextExperts(config))
    x = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(2))
    cut = {name: expert_layout(experts, name) for name in ("gate_up_proj", "down_proj")}
    gate, up, down = (
        one
        for name, (layout, how) in cut.items()
        for one in logical_matrices(getattr(experts, name), layout, how.blocks, how.interleave)
    )
    expected = swiglu(x @ gate.mT, x @ up.mT) @ down.mT
    with torch.no_grad():
        torch.testing.assert_close(experts(x.reshape(15, 32)), expected.reshape(15, 32), atol=1e-4, rtol=1e-4)


def source_of(path):
    """The text of a class, without an import of its module; "" if there is none."""
    *module, name = path.split(".")
    if module[0] == "timm":
        need_timm()
    root = TIMM if module[0] == "timm" else Path(transformers.__file__).parents[1]
    text = root.joinpath(*module).with_suffix(".py").read_text(encoding="utf-8")
    return text.partition(f"\nclass {name}(")[2].partition("\nclass ")[0]


@pytest.mark.parametrize("path", [*PACKED, *NUMBERS, *SILENT_EXPERTS, *ROWS, *PART_PLACES, *OUTPUTS, *STARTS])
def test_every_row_names_a_class_with_those_attributes(path):
    source = source_of(path)
    stacks = ("gate_up_proj", "down_proj") if path in SILENT_EXPERTS else ()
    tables = (PACKED, NUMBERS, ROWS, PART_PLACES, OUTPUTS, STARTS)
    for name in [*(name for table in tables for name in table.get(path, ())), *stacks]:
        assert f"self.{name.partition('.')[0]} = " in source


@pytest.mark.parametrize(("path", "setting"), DIVIDED_LOGITS.items())
def test_models_that_divide_their_logits_say_so(path, setting):
    inside = source_of(path).partition(f"if self.config.{setting}:")[2].partition("lm_logits =")[0]
    assert re.search(r"sequence_output \* \(self\.(config\.d_)?model(_dim)?\*\*-0\.5\)", inside)


# Classes that are no model of the table, by the line that cuts the outputs of a child: the same line, the same row.
LATENT = ("key_shape = (batch_size, seq_length, -1, self.qk_nope_head_dim + self.v_head_dim)", "[self.kv_lora_rank, ")
STATE = (
    "[self.intermediate_size, self.conv_dim, self.num_heads], dim=-1",
    "[self.intermediate_size, self.n_groups * self.ssm_state_size, self.n_groups * self.ssm_state_size]",
)
SELECTIVE = (".chunk(2, dim=1)", "[self.time_step_rank, self.ssm_state_size, self.ssm_state_size]")
ALONE = {
    "BarkSelfAttention": ".split(self.embed_dim, dim=2)",
    "MiniMaxLightningAttention": "torch.split(qkv_states, self.head_dim, dim=3)",
    "GPTNeoXJapaneseAttention": "(self.num_attention_heads, 3 * self.head_size)",
    "Phi4MultimodalAttention": "qkv[..., query_pos : query_pos + self.num_key_value_heads * self.head_dim]",
    "ZambaMambaMixer": "projected_states.view(batch_size, -1, 2, seq_len).chunk(2, dim=2)",
    "DisentangledSelfAttention": "self.transpose_for_scores(qp).chunk(3, dim=-1)",
    "DbrxAttention": "self.num_key_value_heads * self.head_dim,\n",
    "Exaone4_5_VisionAttention": ".split(\n            [self.q_dim, self.kv_dim, self.kv_dim], dim=-1",
}
LINES = [
    *((path, line) for path, rules in PACKED.items() if "kv_b_proj" in rules for line in LATENT),
    *((path, line) for path in PACKED if path.endswith(("Mamba2Mixer", "MambaLayer")) for line in STATE),
    *(
        (path, line)
        for path in PACKED
        if path.endswith(("BambaMixer", "H1Mixer", "Zamba2MambaMixer"))
        for line in STATE
    ),
    *((path, line) for path, rules in PACKED.items() if "x_proj" in rules for line in SELECTIVE),
    *((path, "2, dim=-1)") for path, rules in PACKED.items() if {"gate_up_proj", "Wi", "input_linear"} & set(rules)),
    *((path, ".chunk(2, dim=-1)") for path, rules in PACKED.items() if "fc1" in rules),
    *((path, "self.to_kv(") for path, rules in PACKED.items() if "to_kv" in rules),
    *((path, "= torch.split(query_gate_states, [self.qk_head_dim") for path in PACKED if "AXK2" in path),
    *((path, "query_states, gate = torch.chunk(") for path, rules in PACKED.items() if "q_proj" in rules),
    *((path, "self.key_dim,") for path, rules in PACKED.items() if "in_proj_qkv" in rules),
    *((path, line) for end, line in ALONE.items() for path in PACKED if path.endswith(end)),
    *((path, "self.in_proj(hidden_states)") for path in PACKED if path.endswith("ShortConv")),
    *((path, ".chunk(3, dim=") for path in PACKED if path.endswith("ShortConv")),
]


@pytest.mark.parametrize(("path", "line"), LINES)
def test_classes_of_one_row_cut_alike(path, line):
    assert line in source_of(path)


IMAGES = [path for path, rules in PACKED.items() if "qkv" in rules and not path.startswith("timm")]


@pytest.mark.parametrize("path", [path for path in IMAGES if "Exaone" not in path])
def test_queries_keys_and_values_of_images_come_one_after_another(path):
    """The axis of the three comes before that of the heads."""
    assert re.search(r"(qkv|hidden_states?\))\s*\.reshape\(\s*(?:[\w *]+, )+3, self\.", source_of(path))


# Everything that is named like several matrices in one

FUSED = re.compile(
    r"self\.(qkv|qkv_proj|c_attn|query_key_value|Wqkv|in_proj_qkv\w*|gate_up_proj|kv_b_proj|kv_a_proj_with_mqa|in_proj"
    r"|input_linear|att_proj|Wi|to_kv)\s*=\s*"
    r"\(?\s*(?:nn\.(?:Linear|Conv1d|Conv2d)|Conv1D)\("
)
# Of those the ones that are a single matrix, by what the forward pass does with all that it gives.
WHOLE = {
    f"transformers.models.{family}.modeling_{family}.{name}": line
    for family, name, line in (
        ("bark", "BarkMLP.in_proj", "hidden_states = self.gelu(hidden_states)"),
        ("dac", "DacVectorQuantize.in_proj", "self.decode_latents(projected_latents)"),
        ("kimi_k25", "Kimi_K25MultimodalProjection.in_proj", "hidden_states = self.act(hidden_states)"),
        ("granite_speech", "GraniteSpeechCTCEncoder.input_linear", "hidden_states = layer(hidden_states"),
        ("granite_speech_plus", "GraniteSpeechPlusCTCEncoder.input_linear", "hidden_states = layer("),
        ("granite_speech5", "GraniteSpeech5Encoder.input_linear", "hidden_states = self.input_linear("),
    )
}


def fused(text):
    """(class, child) of all linear maps of a source text that are named like several matrices in one."""
    classes = re.findall(r"^class (\w+)(?:\([^)]*\))?:\n(.*?)(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE)
    return {(name, child) for name, body in classes for child in FUSED.findall(body)}


def test_no_matrix_that_is_named_like_several_is_missing():
    """By the text of transformers' models, encoders and images too: each has a row, or a reason in ``WHOLE``."""
    found = {
        f"transformers.models.{path.parent.name}.{path.stem}.{name}.{child}"
        for path in (Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")
        for name, child in fused(path.read_text("utf-8"))
    }
    rows = {f"{path}.{child}" for path, rules in PACKED.items() for child in rules}
    assert len(found) > 100
    assert found - rows - set(WHOLE) == set()
    assert set(WHOLE) <= found - rows
    assert all(line in source_of(child.rpartition(".")[0]) for child, line in WHOLE.items())


def test_a_fused_matrix_without_a_row_is_found():
    """The control."""
    text = "class A(nn.Module):\n    def __init__(self):\n        self.qkv_proj = nn.Linear(4, 12)\n\n\ndef b():\n"
    assert fused(text) == {("A", "qkv_proj")}


LATENTS = {
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
}
LATENTS |= {"num_key_value_heads": 8, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "v_head_dim": 6}
LATENTS |= {"qk_rope_head_dim": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENTS |= {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "bos_token_id": 0, "eos_token_id": 1}


def test_the_latent_of_deepseek_3_2():
    model = transformers.DeepseekV32ForCausalLM(transformers.DeepseekV32Config(**LATENTS, pad_token_id=2))
    cut = {one.name.split(".")[-2]: (one.blocks, one.interleave, one.part) for one in find_roles(model)}
    assert cut["q_a_proj"] == ((), 1, "rank down") and cut["q_b_proj"] == ((), 1, "rank up")
    assert cut["kv_a_proj_with_mqa"] == ((16, 4), 1, "rank down")
    assert cut["kv_b_proj"] == ((64, 48), 8, "rank up")


def test_the_shared_experts_of_granite():
    sizes = {"vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "shared_intermediate_size": 40}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 8, "num_local_experts": 4}
    config = transformers.GraniteMoeSharedConfig(**sizes, num_experts_per_tok=2, bos_token_id=0, eos_token_id=1)
    model = restart_(transformers.GraniteMoeSharedForCausalLM(config))
    shared, x = model.model.layers[0].shared_mlp, torch.randn(5, 64)
    gate, up = matrices_of(model, "model.layers.0.shared_mlp.input_linear.weight")
    made = shared.output_linear(shared.activation(x @ gate.T) * (x @ up.T))
    torch.testing.assert_close(shared(x), made, atol=1e-4, rtol=1e-4)


def test_mamba():
    """The first Mamba: x and gate; dt of a low rank, B and C; a matrix of decay rates in which nothing multiplies."""
    sizes = {"hidden_size": 32, "state_size": 3, "time_step_rank": 5, "num_hidden_layers": 1, "expand": 2}
    model = small(MambaForCausalLM, MambaConfig, **sizes, tie_word_embeddings=False)
    found = {one.name: one for one in find_roles(model)}
    mixer = {name.removeprefix("backbone.layers.0.mixer."): one for name, one in found.items()}
    assert (mixer["A_log"].role, tuple(mixer["A_log"].parameter.shape)) == ("vector", (64, 3))
    assert mixer["in_proj.weight"].fan == ((64, 32), (64, 32))
    assert (mixer["x_proj.weight"].fan, mixer["x_proj.weight"].part) == (((5, 64), (3, 64), (3, 64)), "rank down")
    assert (mixer["dt_proj.weight"].fan, mixer["dt_proj.weight"].part) == (((64, 5),), "rank up")
    assert (mixer["conv1d.weight"].fan, mixer["conv1d.weight"].layout) == (((1, 4),), "64*out,in,k")


def test_relative_position_biases_are_vectors():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4, "vocab_size": 61}
    found = {
        one.name: one for one in find_roles(T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)))
    }
    biases = [one for name, one in found.items() if "relative_attention_bias" in name]
    assert [(one.role, one.layout, one.fan) for one in biases] == [("vector", "vector", ((1, 1),))] * 2
    assert found["shared.weight"].role == "tied"


def test_a_subclass_is_what_its_base_class_is():
    from transformers.models.phi3.modeling_phi3 import Phi3Attention

    class Own(Phi3Attention):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    model = build("phi3", 32)
    expected = packed(model.model.layers[0].self_attn, "qkv_proj", model.model.layers[0].self_attn.qkv_proj)
    own = Own(model.config, 0)
    assert packed(own, "qkv_proj", own.qkv_proj) == expected
    assert packed(own, "o_proj", own.o_proj).blocks == ()


def test_a_class_of_the_same_name_elsewhere_is_unknown():
    class Phi3MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_up_proj = nn.Linear(4, 6)

    assert packed(Phi3MLP(), "gate_up_proj", Phi3MLP().gate_up_proj).blocks == ()


def test_experts_that_do_not_say_how_they_are_stored_are_unknown():
    model = build("mixtral", 32)
    experts = model.model.layers[0].mlp.experts
    assert all(isinstance(getattr(experts, word), bool) for word in EXPERT_WORDS)
    del experts.is_transposed
    assert expert_layout(experts, "down_proj") is None
    with pytest.raises(ValueError, match=r"experts.down_proj \(MixtralExperts, shape \(6, 32, 24\)\)"):
        find_roles(model)
