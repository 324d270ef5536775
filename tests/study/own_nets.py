"""A model, data and an optimizer of one's own, as a user writes them."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int, depth: int = 1) -> None:
        super().__init__()
        self.up, self.head = nn.Linear(16, width), nn.Linear(width, 4)
        self.middle = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)])

    def forward(self, x, labels=None):
        return self.head(self.middle(self.up(x).relu()))


def net(width):
    return Net(width)


def deep(depth):
    return Net(16, depth)


def squares(width):
    return Net(width), None, lambda output, batch: (output - batch[0][:, :4]).square().mean()


def plain(width):
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))


def plain_squares(width):
    return plain(width), None, lambda output, batch: (output - batch[1]).square().mean()


class WithLoss(Net):
    def forward(self, x, labels=None):
        logits = super().forward(x)
        return logits, None if labels is None else 2 * nn.functional.cross_entropy(logits, labels)


def with_loss(width):
    return WithLoss(width)


def with_batch(width):
    return Net(width), torch.zeros(2, 16)


class Text(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed, self.head = nn.Embedding(256, width), nn.Linear(width, 256)

    def forward(self, input_ids):
        return self.head(self.embed(input_ids))


def text(width):
    return Text(width)


def data(split, seed):
    generator = torch.Generator().manual_seed(seed if split == "train" else 10_000)
    for _ in range(5):
        x = torch.randn(8, 16, generator=generator)
        yield {"x": x, "labels": x[:, :4].argmax(1)}


def pairs(split, seed):
    return [(batch["x"],) for batch in data(split, seed)]


def labelled(split, seed):
    return [(batch["x"], batch["labels"]) for batch in data(split, seed)]


def named(split, seed):
    return [{"input": batch["x"], "labels": batch["labels"]} for batch in data(split, seed)]


def targets(split, seed):
    return [(batch["x"], batch["x"][:, :4]) for batch in data(split, seed)]


def nothing(split, seed):
    return []


def only_train(split, seed):
    return pairs(split, seed) if split == "train" else []


def half(split, seed):
    return pairs(split, seed) if split == "train" else None


def rowless(split, seed):
    return pairs(split, seed) if split == "train" else [(torch.zeros(0, 16),)]


def endless(split, seed):
    while True:
        yield from pairs(split, seed)


def infinite(split, seed):
    return [(torch.full((2, 16), torch.inf),)]


def constant(width):
    return Net(width), None, lambda output, batch: torch.tensor(1.0)


def whole(width):
    return Net(width), None, lambda output, batch: torch.tensor(1)


def adamw(model, lr):
    return torch.optim.AdamW(model.parameters(), lr)


def no_optimizer(model, lr):
    return lr
