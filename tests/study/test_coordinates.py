"""The coordinate check finds what is planted, passes what is right, and says what it cannot do."""

from __future__ import annotations

import math
import re
import sys

import pytest
import torch

from moga.report.causes import offending, verdict
from moga.report.coordinates import load_check
from moga.study.coordinates import mean_norms, measure, run_check
from moga.study.coordinates_models import build, make_optimizer, roles_of
from moga.study.coordinates_plan import Case, CheckPlan, CheckSettings, small_rate
from moga.study.records import StudyError, config_key, read_records, read_study

SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    '''A residual network on bytes; nothing tells which of its linear maps is the output.'''

    def __init__(self, width, power=0.5):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 256)
        self.power = power

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(x + self.down(torch.relu(self.up(x))))


def net(width):
    return Net(width)


def same(width):
    return Net(16)


class Sum(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.map = nn.Linear(width, 3, bias=False)
        nn.init.constant_(self.map.weight, 0.5)

    def forward(self, x):
        return self.map(x)


def counted(width):
    '''Ones to three equal sums, so that every number is known.'''
    return Sum(width), torch.ones(2, width), lambda output, batch: output.sum()


class Echo(nn.Module):
    '''The logits of the byte that it is given, 20 for it and 0 for all others.'''

    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(256, 256)
        self.embed.weight.data = 20 * torch.eye(256)

    def forward(self, tokens):
        return self.embed(tokens)


def echo(width):
    return Echo(width)


def no_loss(width):
    return Sum(width), torch.ones(2, width)


class Summed(nn.Module):
    '''No weight of it is wrong: it forgets to divide a sum over features by their number.'''

    def __init__(self, width):
        super().__init__()
        self.net = Net(width)
        self.total = Total()

    def forward(self, tokens):
        return self.net(tokens) + self.total(self.net.embed(tokens))


class Total(nn.Module):
    def forward(self, x):
        return x.square().sum(-1, keepdim=True)


def summed(width):
    return Summed(width)


def hugging_face(width):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(vocab_size=32, hidden_size=width, num_hidden_layers=1, num_attention_heads=width // 8,
                        intermediate_size=2 * width, max_position_embeddings=8, num_labels=3)
    model = BertForSequenceClassification(config)
    return model, {"input_ids": torch.arange(12).view(2, 6), "labels": torch.tensor([0, 2])}


class Deep(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)) for _ in range(depth))
        self.head = nn.Linear(16, 256)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def deep(depth):
    return Deep(depth)


def picky(width):
    if width % 8:
        raise ValueError("width must be a multiple of 8")
    return Net(width)


class Routed(nn.Module):
    '''The expert is given another number of tokens at every call.'''

    def __init__(self, width):
        super().__init__()
        self.net, self.expert, self.calls = Net(width), nn.Linear(256, 256), 0

    def forward(self, tokens):
        self.calls += 1
        x = self.net(tokens)
        return x + self.expert(x[:, : self.calls]).mean()


def routed(width):
    return Routed(width)


def sgd(model, lr):
    return torch.optim.SGD(model.parameters(), lr)


def no_optimizer(model, lr):
    return lr
"""

WIDTHS = (32, 64, 128)
RECIPES = ("moga-row", "moga-column", "muon", "mup-adamw", "scion")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The module `own_nets`, importable while the tests of this file run."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_nets.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    sys.modules.pop("own_nets", None)


def plan(
    model="own_nets:net", recipe="moga-row", lr=None, plant="none", sizes=WIDTHS, seeds=5, **settings
) -> CheckPlan:
    lr = lr or {"scion": 2**-18}.get(recipe) or small_rate(recipe)
    settings = {"context": 8, "steps": 3} | settings
    return CheckPlan((Case(recipe, lr, plant),), sizes, tuple(range(seeds)), CheckSettings(model, **settings))


def checked(directory, text_file, **options):
    run_check(plan(**options), directory, data=text_file)
    [check] = load_check(directory)
    return check


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_norm_recipe_passes(own, tmp_path, text_file, recipe):
    check = checked(tmp_path / "x", text_file, recipe=recipe, start="moga")
    assert check.word == "passes", verdict(check)
    judged = {module.name: (module.start.word, module.change.word, module.own.word) for module in check.modules}
    assert judged == {
        "embed": ("passes", "passes", "passes"),
        "up": ("passes", "passes", "passes"),
        "down": ("passes", "passes", "passes"),
        "head": ("zero", "passes", "passes"),
    }


@pytest.mark.parametrize(
    ("options", "first", "cause", "rest"),
    [
        (
            {"plant": "scale"},
            "up",
            r"the update of up.weight \(hidden\): it moves outputs as width\^\+0\.[3-5]\d; its scale is left out, "
            r"where the norm row needs width\^-0\.50",
            ["down"],
        ),
        (
            {"plant": "scale", "recipe": "muon"},
            "up",
            r"the update of up.weight \(hidden\): it moves outputs as width\^\+0\.[3-5]\d; its scale goes as "
            r"width\^\+0\.50, where the norm spectral needs width\^[+-]0\.00",
            ["down"],
        ),
        (
            {"plant": "fan"},
            "head",
            r"the update of head.weight \(output\): it moves outputs as width\^\+0\.[3-5]\d; its scale takes the fan "
            r"\(1, 256\) at every width, which does not grow",
            [],
        ),
        (
            {"plant": "init"},
            "up",
            r"the initialisation of up.weight \(hidden\): its entries go as width\^[+-]0\.00, and width\^-0\.\d\d is "
            r"needed \(moga.initialize_ does it\)",
            ["down", "head"],
        ),
        (
            {"recipe": "adamw"},
            "up",
            r"the update of up.weight \(hidden\): it moves outputs as width\^\+[01]\.\d\d; its scale is left out, "
            r"where the norm adam needs width\^-1\.00",
            ["down", "head"],
        ),
        (
            {"recipe": "own_nets:sgd", "lr": 0.01, "start": "own"},  # gradients of the table go as 1 / sqrt(width)
            "embed",
            r"the update of embed.weight \(input\): it moves outputs as width\^-0\.[45]\d; multiply its learning rate "
            r"by width\^\+0\.[45]\d",
            [],
        ),
        ({"model": "own_nets:summed"}, "total", "no weight before it is wrong: what it computes from its inputs", None),
    ],
    ids=["scale", "scale of muon", "fan", "init", "adamw", "sgd", "a sum"],
)
def test_faults_fail_with_their_cause(own, tmp_path, text_file, options, first, cause, rest):
    check = checked(tmp_path / "x", text_file, **{"start": "moga"} | options)
    assert check.word == "fails"
    found = [(module.name, text) for module, text in offending(check) if module.word == "fails"]
    assert found[0][0] == first
    assert re.match(cause, found[0][1]), found[0][1]
    if rest is not None:
        assert [name for name, text in found[1:] if not text.startswith("follows from")][: len(rest)] == rest


def test_gpt2_passes_and_a_planted_fault_fails(tmp_path, text_file):
    small = {"model": "gpt2", "sizes": (16, 32, 64), "layers": 1, "head_size": 8, "context": 8, "seeds": 4}
    right = checked(tmp_path / "right", text_file, **small, mark=0.3)
    wrong = checked(tmp_path / "wrong", text_file, **small, mark=0.3, recipe="adamw")
    assert (right.word, wrong.word) == ("passes", "fails"), verdict(right)
    assert [module.name for module in right.modules][:4] == [
        "transformer.wte", "transformer.wpe", "transformer.h.0.ln_1", "transformer.h.0.attn.c_attn",
    ]  # fmt: skip


def test_every_number_of_a_record_is_known(own, tmp_path, text_file):
    """y = W x with x = 1 and W = 1/2: y = n/2. A row step moves each entry of W by lr / n, so y by lr."""
    directory = tmp_path / "x"
    lr = 2**-8
    run_check(
        plan("own_nets:counted", lr=lr, sizes=(4, 16), seeds=2, roles={"map.weight": "hidden"}),
        directory,
        data=text_file,
    )
    records = read_records(directory)
    assert len(records) == 4
    for record in records:
        n, result = record["config"]["size"], record["result"]
        assert record["key"] == config_key(record["config"])
        [(name, module)] = result["modules"].items()
        assert (name, module["type"], module["parameters"]) == ("map", "Linear", ["map.weight"])
        assert module["start"] == [n / 2] * 3
        assert module["input"] == [1, 1]
        for step, change in enumerate(module["change"], start=1):
            assert change == pytest.approx([step * lr] * 3, rel=1e-3)
        assert module["own"] == module["change"][-1]
        assert result["loss"] == pytest.approx([6 * (n / 2 - step * lr) for step in range(4)], rel=1e-3)
        parameter = result["parameters"]["map.weight"]
        assert (parameter["role"], parameter["norm"], parameter["fan"]) == ("hidden", "row", [3, n])
        assert parameter["scale"] == parameter["rule"] == pytest.approx(n**-0.5)
        assert parameter["weight"] == [0.5] * 3
        assert parameter["update"] == pytest.approx([3 * lr / n] * 3, rel=1e-3)
    [check] = load_check(directory)
    [module] = check.modules
    assert module.start.slope.value == pytest.approx(1)  # n/2
    assert (module.start.word, module.change.word, module.own.word) == ("fails", "passes", "passes")
    assert module.weight.update.slope.value == pytest.approx(-1, abs=1e-3)


def test_every_step_has_its_own_gradient(own):
    """The loss sums y = W x over two equal rows, so its gradient is 2 x^T, and a step of SGD moves y by -2 lr n."""
    settings = plan("own_nets:counted", "own_nets:sgd", lr=0.5, sizes=(4, 16)).settings
    result = measure(settings, Case("own_nets:sgd", 2**-6), 4, 0, torch.zeros(2, 9), {})
    assert result["modules"]["map"]["change"] == [[t / 8] * 3 for t in (1, 2, 3)]


def test_text_is_predicted_byte_by_byte(own):
    settings = plan("own_nets:echo", "own_nets:sgd", lr=0.5).settings
    for windows, loss in ((torch.full((2, 9), 5), 0.0), (torch.arange(18).view(2, 9), 20.0)):
        result = measure(settings, Case("own_nets:sgd", 2**-20), 32, 0, windows, {})
        assert result["loss"][0] == pytest.approx(loss, abs=1e-3)


def test_roles_that_modules_leave_open_are_settled_by_two_widths(own):
    assert roles_of(plan()) == {"embed.weight": "input", "up.weight": "hidden", "down.weight": "hidden",
                                "head.weight": "output"}  # fmt: skip
    assert roles_of(plan(roles={"head.weight": "output"})) == {"head.weight": "output"}
    assert roles_of(plan("own_nets:counted", "own_nets:sgd", lr=0.1)) == {"map.weight": "output"}


def test_hugging_face_models_with_their_own_loss(own, tmp_path, text_file):
    windows = torch.zeros(2, 9, dtype=torch.long)
    settings = plan("own_nets:hugging_face", sizes=(16, 32), seeds=2).settings
    result = measure(settings, Case("moga-row", 2**-10), 16, 0, windows, {})
    assert result["loss"][0] == pytest.approx(math.log(3), rel=0.2)
    assert result["loss"][-1] < result["loss"][0]
    assert {"bert.embeddings.word_embeddings", "bert.pooler.activation", "classifier"} <= set(result["modules"])
    assert all(step is not None for module in result["modules"].values() for step in module["change"])


def test_dropout_is_no_change(own):
    """BERT's dropout is on: with a rate of almost nothing the changes must be almost nothing too."""
    settings = plan("own_nets:hugging_face", sizes=(16, 32), seeds=2).settings
    changes = [
        measure(settings, Case("moga-row", lr), 16, 0, torch.zeros(2, 9), {})["modules"]["classifier"]["change"][-1][1]
        for lr in (2**-10, 2**-14)
    ]
    assert changes[0] / changes[1] == pytest.approx(16, rel=0.1)


def test_depth_has_one_name_for_all_layers(own, tmp_path, text_file):
    options = {"model": "own_nets:deep", "over": "depth", "sizes": (2, 4, 8), "seeds": 3}
    with pytest.raises(ValueError, match="parameters without a role"):
        checked(tmp_path / "x", text_file, **options)
    check = checked(tmp_path / "x", text_file, **options, roles={"head.weight": "output"})
    assert check.sizes == [2, 4, 8]
    assert [module.name for module in check.modules] == ["embed", "blocks.*.0", "blocks.*.1", "head"]
    assert check.word == "fails"  # without a multiplier of 1/depth, branches add up
    causes = [text for module, text in offending(check) if module.word == "fails"]
    assert causes and set(causes) == {"branches add up: multiply each residual branch by 1/depth"}


def test_a_check_is_made_anew(own, tmp_path, text_file):
    said = []
    small = plan(sizes=(8, 16), seeds=2)
    assert run_check(small, tmp_path, data=text_file, command="one", progress=lambda *s: said.append(s[1:])) == 4
    before = read_records(tmp_path)
    assert run_check(plan(sizes=(8, 32), seeds=2), tmp_path, data=text_file, command="two") == 4
    after = read_records(tmp_path)
    assert said == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [record["config"]["size"] for record in after] == [8, 8, 32, 32]
    assert read_study(tmp_path)["commands"] == ["one", "two"]
    for one, two in zip(before[:2], after[:2], strict=True):  # and is the same, bit for bit
        assert {**one["result"], "seconds": 0} == {**two["result"], "seconds": 0}


def test_seeds_differ(own):
    windows = torch.zeros(2, 9, dtype=torch.long)
    sizes = [
        measure(plan().settings, Case("moga-row", 2**-10), 32, seed, windows, {"head.weight": "output"})["modules"][
            "up"
        ]
        for seed in (0, 1)
    ]
    assert sizes[0]["start"] != sizes[1]["start"]


def test_what_has_another_shape_is_not_compared(own, tmp_path, text_file):
    check = checked(tmp_path / "x", text_file, model="own_nets:routed", sizes=(16, 32), seeds=2,
                    roles={"*": "hidden", "net.embed.weight": "input", "net.head.weight": "output"})  # fmt: skip
    expert = next(module for module in check.modules if module.name == "expert")
    assert (expert.change.word, str(expert.change)) == ("none", "")
    assert expert.own.slope is not None


def test_mean_norms():
    assert mean_norms([torch.tensor([3.0, -4.0]), torch.zeros(2)]) == [7 / 4, 2.5, 4.0]
    assert mean_norms([torch.zeros(0)]) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model": "bert"},
            "unknown model 'bert'; give a family .gpt2, llama. or a function, as package.module:functi",
        ),
        ({"over": "heads"}, "unknown word 'heads' for over; the words are width, depth"),
        ({"start": "zero"}, "unknown word 'zero' for start; the words are own, moga"),
        ({"steps": 1}, "steps must be at least 2, got 1"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"mark": 0.0}, "mark must be finite and above 0, got 0.0"),
        ({"device": "abacus"}, r"no device 'abacus' here \(.*\); give cpu, or one that this torch can use"),
        ({"sizes": (32,)}, r"a check needs at least two widths, got \[32\]: a slope needs two"),
        ({"sizes": (0, 32)}, "a width must be at least 1, got 0"),
        ({"seeds": 1}, r"a check needs at least two seeds, got \[0\]: a standard error needs two"),
        ({"model": "gpt2", "sizes": (24, 32)}, "width 24 is not a multiple of the head size 16"),
        ({"recipe": "rows", "lr": 1.0}, "unknown recipe 'rows'"),
        ({"recipe": "scion", "lr": math.inf}, "a learning rate must be finite and above 0, got inf"),
        ({"plant": "bug"}, "unknown fault 'bug' to plant"),
        (
            {"recipe": "a.b:c", "lr": 1.0, "plant": "fan"},
            "the fault 'fan' is planted in the scales of a recipe, and a.b:c",
        ),
    ],
)
def test_plans_that_cannot_be(changes, words):
    with pytest.raises(ValueError, match=words):
        plan(**changes)
    with pytest.raises(ValueError, match="a check needs at least one recipe, got none"):
        CheckPlan((), (8, 16), (0, 1))
    with pytest.raises(
        ValueError, match="no learning rate is known for 'scion', only for moga-row, .*give a small one"
    ):
        small_rate("scion")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "own_nets:absent"}, "module 'own_nets' has no function 'absent'"),
        ({"model": "own_nets:sgd"}, "own_nets:sgd has no argument width .*name its argument width"),
        ({"model": "own_nets:picky"}, r"picky\(width=12\) refused: ValueError: width must be a multiple of 8"),
        ({"model": "own_nets:same"}, "own_nets:same makes the same model at width 8 and 12; its argument width must"),
        (
            {"model": "own_nets:no_loss", "roles": {"*": "hidden"}},
            r"output of own_nets:no_loss at 8 has no loss: it is a",
        ),
        (
            {"recipe": "own_nets:no_optimizer", "lr": 0.1},
            "no_optimizer.model, lr. must return a torch.optim.Optimizer; got",
        ),
        (
            {"model": "own_nets:counted", "lr": 1e38, "roles": {"*": "hidden"}},
            "at width 8 is not finite after . steps with",
        ),
    ],
)
def test_what_a_model_may_not_do(own, tmp_path, text_file, options, words):
    with pytest.raises(ValueError, match=words):
        checked(tmp_path / "x", text_file, **{"sizes": (8, 12), "seeds": 2} | options)


def test_other_directories_are_refused(own, tmp_path, text_file):
    run_check(plan(sizes=(8, 16), seeds=2), tmp_path, data=text_file)
    with pytest.raises(StudyError, match="other settings .*steps: 3 there, 4 now"):
        run_check(plan(sizes=(8, 16), seeds=2, steps=4), tmp_path, data=text_file)
    with pytest.raises(ValueError, match="threads must be a whole number of at least 1, got 0"):
        run_check(plan(), tmp_path, threads=0)


def test_weight_decay_is_left_out(own):
    model = build(plan().settings, 16, 0).model
    optimizer = make_optimizer(model, Case("scion", 0.1), {"head.weight": "output"})
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0}
