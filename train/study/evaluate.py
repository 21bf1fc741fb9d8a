"""Testing one trained model under every protocol, in one process; each picture is drawn once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from torch import nn

from train.data.base import ImageData
from train.image import ImageClassification
from train.metrics import Accuracies
from train.study.config import Protocols, Size
from train.study.protocols import Setting, batches, dataset, settings


@dataclass(frozen=True)
class Mode:
    """How a model treats positions.

    Attributes:
        coords: ``extend``, ``rescale``, or ``own`` where the model has no choice.
        method: Training-free extrapolation, ``-`` for none.
        default: Whether the model is so by itself.
    """

    coords: str
    method: str = "-"
    default: bool = True


@dataclass(frozen=True)
class Score:
    """Numbers of one setting under one mode: name -> value of each metric, over ``images`` pictures."""

    setting: Setting
    mode: Mode
    values: dict[str, float]
    images: int


def evaluate(
    module: ImageClassification, data: ImageData, trainer: Trainer, protocols: Protocols, *, pictures: Path | None = None
) -> Iterator[Score]:
    """Scores of every setting and mode, under the trainer's precision and on its device.

    Args:
        module: The trained model.
        data: Gives the pictures.
        trainer: Its precision and device are used.
        protocols: What to test.
        pictures: Folder where drawn pictures are kept for the next model; None keeps none.
    """
    device = trainer.strategy.root_device
    module.eval().to(device)
    net = module.net if module.ema is None else module.ema.module
    for setting in settings(protocols, data.train_size):
        chosen = modes(net, protocols, larger=grown(setting, data.train_size), resized=setting.size != data.train_size)
        counters = [Accuracies(module.num_classes, [setting.size], [None]).to(device) for _ in chosen]
        shown = dataset(data, setting, protocols.images, pictures)
        for images, labels in batches(shown, batch_size(protocols, setting.size, data.train_size)):
            images, labels = images.to(device), labels.to(device)
            for mode, counter in zip(chosen, counters):
                with torch.inference_mode(), trainer.precision_plugin.forward_context(), applied(net, mode):
                    logits = module(images).float()
                counter.update(0, 0, logits, labels)
        for mode, counter in zip(chosen, counters):
            values = {name.removeprefix("test/"): float(value) for name, value in counter.results("test")}
            yield Score(setting, mode, values, len(shown))


def grown(setting: Setting, train_size: Size) -> bool:
    """Whether a side is longer than in training."""
    return any(side > trained for side, trained in zip(setting.size, train_size))


def batch_size(protocols: Protocols, size: Size, train_size: Size) -> int:
    """About as many pixels a batch at every size."""
    return max(1, protocols.batch_size * train_size[0] * train_size[1] // (size[0] * size[1]))


def modes(net: nn.Module, protocols: Protocols, *, larger: bool, resized: bool) -> list[Mode]:
    """What to test with the same weights.

    The conventions differ only where the grid is not that of training, and extrapolation acts only on larger ones, so that at
    the training size there is the model's own mode alone.
    """
    own = conventions(net)
    if len(own) != 1 or own == {"own"}:  # no coordinates, or a composition of both conventions
        found = [Mode("own")]
    else:
        found = [Mode(next(iter(own)))]
    if not resized:
        return found
    if own != {"own"}:
        found += [Mode(coords, default=False) for coords in protocols.coords if coords != found[0].coords]
    if larger:
        found += [Mode("extend", method, default=False) for method in protocols.extrapolation if accepts(net, method)]
    return found


def conventions(net: nn.Module) -> set[str]:
    """What each member of the model's encoding does by itself when the grid grows; ``own`` where there are none."""
    stack = getattr(net, "encoding", None)
    if not hasattr(net, "set_coords") or stack is None:
        return {"own"}
    return {member.default_resize for _, member in stack.encodings() if hasattr(member, "resize")} or {"own"}


def accepts(net: nn.Module, method: str) -> bool:
    """Whether the model's frequencies can take a method."""
    if not hasattr(net, "set_extrapolation"):
        return False
    try:
        net.set_extrapolation(method)
    except ValueError:
        return False
    finally:
        net.set_extrapolation(None)
    return True


@contextmanager
def applied(net: nn.Module, mode: Mode) -> Iterator[None]:
    """The model in a mode, and as it was created afterwards."""
    coords = None if mode.coords == "own" else mode.coords
    if coords:
        net.set_coords(coords)
    if mode.method != "-":
        net.set_extrapolation(mode.method)
    try:
        yield
    finally:
        if mode.method != "-":
            net.set_extrapolation(None)
        if coords:
            net.set_coords(None)
