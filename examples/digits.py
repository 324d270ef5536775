"""A pre-activation residual network on the 8 x 8 digits of scikit-learn: a model and data of one's own for the studies.

    cd examples
    moga transfer --over depth --model digits:deep --data digits:batches --sizes 8,16,32 --recipe moga-row \\
        --start moga --role "*=hidden" --role stem.weight=input --role head.weight=output --out runs/digits

The digits come with scikit-learn (`pip install scikit-learn`); nothing is downloaded.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

import moga

CLASSES = 10
POOLED = 2  # features are averaged to 2 x 2 places: averaged over all of them, normalised channels say little
BATCH = 64
HELD_OUT = 400  # of the 1,797 images
NOISE = 0.5  # standard deviation of the noise on every pixel; pixels lie in [0, 1]


class Block(nn.Module):
    """`x + branch(x)`: twice a norm, ReLU and a 3 x 3 convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(*_layer(width), *_layer(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Network(nn.Module):
    """Images (batch, 1, 8, 8) to logits (batch, 10), through `depth` blocks of `width` channels."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.norm = nn.GroupNorm(1, width)
        self.head = nn.Linear(POOLED**2 * width, CLASSES)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        features = functional.relu(self.norm(self.blocks(self.stem(images))))
        logits: Tensor = self.head(functional.adaptive_avg_pool2d(features, POOLED).flatten(1))
        return logits


def _layer(width: int) -> list[nn.Module]:
    return [nn.GroupNorm(1, width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]


def wide(width: int) -> nn.Module:
    """Three blocks of `width` channels."""
    return Network(width, depth=3)


def deep(depth: int) -> nn.Module:
    """`depth` blocks of 32 channels, whose branches are multiplied by 1/depth."""
    return moga.scale_branches_(Network(32, depth), "1/K", branches=["*.branch"])


def deep_root(depth: int) -> nn.Module:
    """As `deep`, with the branches multiplied by 1/sqrt(2 depth)."""
    return moga.scale_branches_(Network(32, depth), "1/sqrt(2K)", branches=["*.branch"])


def deep_plain(depth: int) -> nn.Module:
    """As `deep`, with branches as they are."""
    return Network(32, depth)


def batches(split: str, seed: int) -> Iterator[dict[str, Tensor]]:
    """Noisy digits: batches of 64 shuffled training images without end, or those held out, once and always the same."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    held_out = split == "held-out"
    chosen = torch.arange(HELD_OUT) if held_out else torch.arange(HELD_OUT, len(images))
    generator = torch.Generator().manual_seed(0 if held_out else 1 + seed)
    while True:
        order = chosen if held_out else chosen[torch.randperm(len(chosen), generator=generator)]
        for part in order.split(BATCH):
            noise = torch.randn(images[part].shape, generator=generator)
            yield {"images": images[part] + NOISE * noise, "labels": labels[part]}
        if held_out:
            return
