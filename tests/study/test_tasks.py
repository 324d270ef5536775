import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from moga.study.data import Corpus
from moga.study.settings import Plan, Run, Settings
from moga.study.tasks import code_of, count_of, make_optimizer, make_task, settled_roles
from moga.study.train import train

NETS = "tests.study.own_nets"


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def own(family: str = "net", data: str = "data", **settings: object) -> Settings:
    values: dict[str, object] = {"steps": 12, "warmup": 2, "weight_decay": 0.0, "family": f"{NETS}:{family}"}
    return Settings(**values | {"data": f"{NETS}:{data}" if data else ""} | settings)  # type: ignore[arg-type]


def test_a_run_of_ones_own_is_the_loop_that_one_would_write() -> None:
    from tests.study import own_nets

    result = train(Run(f"{NETS}:adamw", 32, 0.01, 3, own(decay="cosine")), None)
    torch.manual_seed(3)
    model = own_nets.net(32)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    batches, losses = [*own_nets.data("train", 3)] * 3, []
    for step, batch in enumerate(batches[:12]):
        loss = functional.cross_entropy(model(batch["x"]), batch["labels"])
        losses.append(loss.item())
        progress = torch.tensor((step - 2) / 10)
        factor = (step + 1) / 2 if step < 2 else ((1 + torch.cos(torch.pi * progress)) / 2).item()
        optimizer.param_groups[0]["lr"] = 0.01 * factor
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        held_out = [functional.cross_entropy(model(one["x"]), one["labels"]) for one in own_nets.data("held-out", 0)]
    assert [loss for _, loss in result["curve"]] == pytest.approx(losses, rel=1e-5)
    assert result["loss"] == pytest.approx(torch.stack(held_out).mean().item(), rel=1e-5)
    assert (result["tokens"], result["diverged"]) == (12 * 8, False)


def test_a_loss_of_ones_own_and_batches_that_are_tuples() -> None:
    task = make_task(Run("muon", 32, 0.1, 0, own("squares", "pairs", roles={"head.weight": "output"})), None)
    batch = task.batch(0)
    expected = (task.model(batch[0]) - batch[0][:, :4]).square().mean()
    assert task.loss(task.model, batch).item() == expected.item()


@pytest.mark.parametrize("data", ["labelled", "named"])
def test_labels_that_a_model_does_not_take_are_those_of_the_cross_entropy(data: str) -> None:
    run = Run(f"{NETS}:adamw", 32, 0.01, 0, own("plain", data))
    task = make_task(run, None)
    batch = task.batch(0)
    x, labels = batch.values() if data == "named" else batch
    assert task.loss(task.model, batch).item() == functional.cross_entropy(task.model(x), labels).item()
    assert train(run, None)["loss"] < 1.5


def test_a_loss_of_ones_own_gets_the_targets_that_the_model_does_not_take() -> None:
    task = make_task(Run(f"{NETS}:adamw", 32, 0.01, 0, own("plain_squares", "targets")), None)
    x, y = task.batch(0)
    assert task.loss(task.model, (x, y)).item() == (task.model(x) - y).square().mean().item()


def test_logits_and_a_loss_in_a_tuple() -> None:
    task = make_task(Run(f"{NETS}:adamw", 32, 0.01, 0, own("with_loss")), None)
    batch = task.batch(0)
    assert task.loss(task.model, batch).item() == task.model(**batch)[1].item()


def test_a_model_that_fails_on_text_is_told_that_it_got_text(corpus: Corpus) -> None:
    settings = own("plain", "", context=16, corpus=corpus.fingerprint)
    with pytest.raises(RuntimeError, match=r"own_nets:plain at width 16 fails on bytes of text .*--data package.modul"):
        train(Run(f"{NETS}:adamw", 16, 0.01, 0, settings), corpus)


def test_a_model_of_text_gets_windows_and_predicts_the_next_byte(corpus: Corpus) -> None:
    settings = own("text", "", context=16, batch=4, corpus=corpus.fingerprint, start="moga")
    settings = replace(settings, roles={"head.weight": "output"})
    task = make_task(Run("moga-row", 32, 0.1, 0, settings), corpus)
    windows = task.batch(0)
    assert windows.shape == (4, 17)
    expected = functional.cross_entropy(task.model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    assert task.loss(task.model, windows).item() == pytest.approx(expected.item())
    assert task.count(windows) == 4 * 16


def test_over_depth_a_family_and_a_function_get_the_depth(corpus: Corpus, small: Settings) -> None:
    models = {
        rule: make_task(Run("muon", 3, 0.1, 0, replace(small, over="depth", width=16, branches=rule)), corpus).model
        for rule in ("none", "1/K")
    }
    assert [len(model.transformer.h) for model in models.values()] == [3, 3]  # type: ignore[union-attr, arg-type]
    hooks = {rule: sum(len(one._forward_hooks) for one in model.modules()) for rule, model in models.items()}
    assert hooks == {"none": 0, "1/K": 6}
    deep = make_task(Run(f"{NETS}:adamw", 3, 0.1, 0, own("deep", over="depth")), None)
    assert len(deep.model.middle) == 3  # type: ignore[arg-type]


def test_two_widths_settle_the_roles() -> None:
    plan = Plan({"muon": (0.1,)}, (16, 32), settings=own())
    roles = {"up.weight": "input", "middle.0.0.weight": "hidden", "head.weight": "output"}
    assert settled_roles(plan) == roles
    model = make_task(Run("muon", 16, 0.1, 0, replace(plan.settings, roles=roles, start="moga")), None).model
    optimizer = make_optimizer(Run("muon", 16, 0.1, 0, replace(plan.settings, roles=roles)), model)
    assert {group["role"] for group in optimizer.param_groups} == {"input", "hidden", "output", "vector"}
    assert settled_roles(replace(plan, sizes=(16,))) == {}
    assert settled_roles(replace(plan, settings=Settings())) == {}
    with pytest.raises(ValueError, match="roles are stated for a model of your own; those of gpt2 are known"):
        settled_roles(replace(plan, settings=Settings(roles={"*": "hidden"})))


@pytest.mark.parametrize(
    ("family", "data", "message"),
    [
        (
            "with_batch",
            "",
            r"own_nets:with_batch returns a batch, and a study trains on a new one at each step; give a",
        ),
        (
            "plain",
            "data",
            r"own_nets:plain at width 16 is called with dict with x, labels, and its forward takes input; a batch is",
        ),
        ("plain", "targets", r"is called with a tensor .*\(8, 16\), a tensor .*\(8, 4\), and its forward takes input;"),
        ("net", "nothing", r'nothing\("train", 0\) gives no batch; it must return an iterable of batches'),
        ("squares", "only_train", r'only_train\("held-out", 0\) gives no batch; it must return an iterable of batches'),
        ("squares", "half", r'half\("held-out", 0\) gives NoneType; it must return an iterable of batches'),
        ("squares", "endless", r'own_nets:endless\("held-out", 0\) has not ended after 10,000 batches'),
        ("squares", "rowless", r'own_nets:rowless\("held-out", 0\) have no rows'),
        ("squares", "infinite", r"own_nets:squares at width 16 is (inf|nan) before the first step, so no"),
        (
            "constant",
            "pairs",
            r"must be a real number that depends on a trainable parameter; got .*requires_grad False",
        ),
        ("whole", "pairs", "must be a real number that depends on a trainable parameter; got a tensor of torch.int64"),
    ],
)
def test_what_a_study_cannot_use_is_an_error(family: str, data: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(Run(f"{NETS}:adamw", 16, 0.01, 0, own(family, data)), None)


def test_an_optimizer_must_be_one() -> None:
    with pytest.raises(ValueError, match=r"no_optimizer\(model, lr\) must return a torch.optim.Optimizer; got float"):
        train(Run(f"{NETS}:no_optimizer", 16, 0.01, 0, own()), None)


def test_a_loss_in_other_units_diverges_by_its_own_margin() -> None:
    run = Run(f"{NETS}:adamw", 16, 3.0, 0, own(steps=40, decay="constant", margin=1e9))
    assert not train(run, None)["diverged"]
    result = train(replace(run, settings=replace(run.settings, margin=0.1)), None)
    assert (result["diverged"], result["loss"]) == (True, None)
    assert result["tokens"] < 40 * 8  # it ended early


def test_the_code_is_part_of_what_a_study_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_of("gpt2", "") == ""
    assert code_of(f"{NETS}:net") != code_of(f"{NETS}:data") != code_of(f"{NETS}:net", f"{NETS}:data")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "changing_net.py").write_text("def net(width):\n    return width\n")
    before = code_of("changing_net:net")
    (tmp_path / "changing_net.py").write_text("def net(width):\n    return 2 * width\n")
    monkeypatch.delitem(sys.modules, "changing_net")
    assert code_of("changing_net:net") != before


def test_what_is_counted() -> None:
    assert count_of((torch.zeros(8, 3), torch.zeros(8, dtype=torch.long))) == 8
    assert count_of(torch.zeros(2, 5, dtype=torch.long)) == 10
    assert count_of("nothing") == 1
