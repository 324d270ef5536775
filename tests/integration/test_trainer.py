"""transformers.Trainer: as ``optimizers=``, by a factory, by a subclass; a run that is resumed has the same losses."""

import pytest
import torch
from transformers import Trainer, TrainingArguments

import moga

LR = 0.1


class OwnTrainer(Trainer):
    """The third way: what makes the optimizer is overridden."""

    recipe = "moga-row"

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            self.optimizer = moga.optimizer(self.model if model is None else model, self.recipe, lr=LR)
        return self.optimizer


def by_optimizers(run, recipe, **common):
    optimizer = moga.optimizer(run.model, recipe, lr=LR)
    steps = common["args"].max_steps
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    return Trainer(run.model, optimizers=(optimizer, scheduler), **common)


def by_optimizer_alone(run, recipe, **common):
    """The Trainer makes the scheduler from its arguments."""
    return Trainer(run.model, optimizers=(moga.optimizer(run.model, recipe, lr=LR), None), **common)


def by_factory(run, recipe, **common):
    factory = (lambda: moga.optimizer, {"recipe": recipe, "lr": LR})
    return Trainer(run.model, optimizer_cls_and_kwargs=factory, **common)


def by_subclass(run, recipe, **common):
    trainer = OwnTrainer(run.model, **common)
    trainer.recipe = recipe
    return trainer


WAYS = [by_optimizers, by_optimizer_alone, by_factory, by_subclass]


def arguments(directory, **changes):
    settings = {
        "output_dir": str(directory),
        "max_steps": 20,
        "per_device_train_batch_size": 4,
        "warmup_steps": 0,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 3,
    }
    return TrainingArguments(**{**settings, **changes})


@pytest.fixture
def train(tools, data, recipe, tmp_path):
    """Losses and trainer of a run with fresh objects: ``train(by_factory, resume_from_checkpoint=...)``."""

    def run(way, seed=0, resume_from_checkpoint=None, **changes):
        tools.reset()
        own = tools.Run(seed)
        trainer = way(own, recipe, args=arguments(tmp_path, **changes), train_dataset=data)
        trainer.train(resume_from_checkpoint=resume_from_checkpoint)
        return own.losses, trainer

    return run


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_has_the_same_losses(way, train, tmp_path):
    whole, trainer = train(way, save_strategy="steps", save_steps=10)
    assert isinstance(trainer.optimizer.optimizer, moga.SteepestDescent)
    assert len(whole) == 20 and sum(whole[-4:]) < 0.9 * sum(whole[:4])
    # another seed: the weights that count come from the checkpoint
    rest, trainer = train(way, seed=1, resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert rest == pytest.approx(whole[10:], abs=1e-6)
    assert all(group["lr"] == pytest.approx(0, abs=1e-9) for group in trainer.optimizer.param_groups)


@pytest.mark.parametrize("recipe", ["muon"])
def test_all_ways_are_one(train):
    first, *others = [train(way, max_steps=5)[0] for way in WAYS]
    for losses in others:
        assert losses == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize("recipe", ["moga-row"])
def test_gradient_accumulation_is_the_whole_batch(train):
    whole, _ = train(by_factory)
    parts, _ = train(by_factory, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    assert len(parts) == 40
    # the Trainer divides each part by the tokens of all
    assert [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)] == pytest.approx(whole, abs=1e-4)


def test_the_class_alone_gets_groups_without_norms(tools, data, tmp_path):
    """The Trainer's two groups, with and without decay, do not say what a parameter is; the error says what to do."""
    made = (moga.SteepestDescent, {"lr": LR})
    trainer = Trainer(tools.Run().model, arguments(tmp_path), train_dataset=data, optimizer_cls_and_kwargs=made)
    text = r"a parameter group lacks 'norm', 'layout', 'scale'; make groups with moga.param_groups\(model, recipe"
    with pytest.raises(ValueError, match=text):
        trainer.train()


def test_groups_of_moga_pass_the_class_route(tools, data, tmp_path):
    """``params`` among the arguments takes the place of the Trainer's groups."""
    own, other = tools.Run(), tools.Run()
    options = {"params": moga.param_groups(own.model, "moga-row"), "lr": LR}
    common = {"args": arguments(tmp_path, max_steps=3), "train_dataset": data}
    Trainer(own.model, optimizer_cls_and_kwargs=(moga.SteepestDescent, options), **common).train()
    tools.reset()
    by_factory(other, "moga-row", **common).train()
    assert own.losses == pytest.approx(other.losses, abs=1e-6)
