"""Vision towers with any encoding in open_clip: names, image sizes, and groups for weight decay.

    import open_clip, vispe
    vispe.open_clip.register()
    model, _, preprocess = open_clip.create_model_and_transforms("ViT-B-16-comrope")
    optimizer = torch.optim.AdamW(vispe.open_clip.param_groups(model, weight_decay=0.2))

open_clip 3.3 builds a timm tower at the size that timm's name stands for, whatever `image_size` says (open_clip#783), so that
tables and reference sizes are those of other images. `register` therefore puts a subclass in the place of open_clip's
`TimmModel`; towers that are not of this package pass through it unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers import to_2tuple
from torch import Tensor, nn

from ..models.vit import EncodedVisionTransformer

CONFIGS = Path(__file__).parent / "open_clip_configs"


def register() -> list[str]:
    """Make open_clip know the towers of `open_clip_configs` by name, and build towers of this package at their image size.

    Configurations of your own, added with `open_clip.add_model_config`, name any model of the zoo as `timm_model_name`.

    Returns:
        The names, for `open_clip.create_model`. Calling it again changes nothing.

    Raises:
        ImportError: open_clip is not installed.
    """
    open_clip = _import()
    from open_clip import model as towers

    if not getattr(towers.TimmModel, "respects_image_size", False):
        towers.TimmModel = _sized(towers.TimmModel)
    names = sorted(path.stem for path in CONFIGS.glob("*.json"))
    if not set(names) <= set(open_clip.list_models()):
        open_clip.add_model_config(CONFIGS)
    return names


def param_groups(model: nn.Module, weight_decay: float = 0.2) -> list[dict[str, Any]]:
    """Parameters in two groups: decayed, and not (biases, norms, scalars, and what models and encodings keep out of it).

    open_clip asks its towers for no names, so that parameters of encodings would be decayed. Any model with towers of this
    package inside will do; frozen parameters are in no group.
    """
    if weight_decay < 0:
        raise ValueError(f"param_groups: weight_decay must not be negative, got {weight_decay}.")
    keep = undecayed(model)
    decayed, others = [], []
    for name, p in model.named_parameters():
        if p.requires_grad:
            (others if p.ndim < 2 or name in keep else decayed).append(p)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def undecayed(model: nn.Module) -> set[str]:
    """Names in a model that a module somewhere in it keeps out of weight decay."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if hasattr(module, "no_weight_decay")
        for name in module.no_weight_decay()
    }


def _import() -> Any:
    try:
        import open_clip
    except ImportError as error:
        raise ImportError("vispe.open_clip.register needs open_clip: pip install 'vispe[clip]'") from error
    return open_clip


def _sized(base: type[nn.Module]) -> type[nn.Module]:
    """open_clip's TimmModel, with towers of this package at their `image_size`."""

    class SizedTimmModel(base):
        """A timm tower whose image size is that of its configuration.

        Attributes:
            sizes: [[height, width] of the images, of those in training], saved with the weights: both shape what a tower of
                this package computes. None for other towers.
        """

        respects_image_size = True

        def __init__(
            self, model_name: str, embed_dim: int, image_size: int | tuple[int, int] = 224, *args: Any, **kwargs: Any
        ) -> None:
            super().__init__(model_name, embed_dim, image_size, *args, **kwargs)
            self.model_name = model_name
            self.register_buffer("sizes", None)
            if not isinstance(self.trunk, EncodedVisionTransformer):
                return
            size = to_2tuple(image_size)
            if kwargs.get("pretrained", False):
                self.trunk.set_input_size(size)
            elif size != tuple(self.trunk.patch_embed.img_size):
                rebuild(self, size, size)
            record(self)
            self.register_load_state_dict_pre_hook(_match_sizes)

        def set_input_size(self, image_size: int | tuple[int, int]) -> None:
            super().set_input_size(image_size)
            if self.sizes is not None:
                record(self)

    return SizedTimmModel


def record(tower: nn.Module) -> None:
    """Write the trunk's sizes into the tower's buffer."""
    trunk = tower.trunk
    train = [n * p for n, p in zip(trunk.train_grid, trunk.patch_embed.patch_size)]
    tower.sizes = torch.tensor([list(trunk.patch_embed.img_size), train], device=trunk.patch_embed.proj.weight.device)


def rebuild(tower: nn.Module, size: tuple[int, int], train_size: tuple[int, int]) -> None:
    """A fresh trunk with the same arguments at other sizes, where tables have their own shapes."""
    old, weight = tower.trunk, tower.trunk.patch_embed.proj.weight
    head = {"num_classes": old.num_classes, "global_pool": old.global_pool}  # open_clip took the classifier off
    arguments = {**old._model_args, **head, "img_size": size, "train_size": train_size}
    tower.trunk = timm.create_model(tower.model_name, **arguments).to(device=weight.device, dtype=weight.dtype)
    tower.trunk.train(old.training)
    tower.trunk.set_grad_checkpointing(old.grad_checkpointing)


def _match_sizes(tower: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Weights of another size come into a trunk of that size; open_clip resizes it afterwards (`force_image_size`)."""
    sizes = state_dict.setdefault(f"{prefix}sizes", tower.sizes)
    if not torch.equal(sizes.cpu(), tower.sizes.cpu()):
        rebuild(tower, *(tuple(size) for size in sizes.tolist()))
