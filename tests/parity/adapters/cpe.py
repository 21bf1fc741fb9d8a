"""Meituan-AutoML/Twins: the PEG alone, the isotropic CPVT, and the pyramid CPVTV2 in timm's Twins with our PEGs."""

from __future__ import annotations

import torch
from timm.models.twins import Twins
from torch import Tensor, nn

from vispe.encodings.cpe import peg

from ..cases import Case
from .common import Results, gradients, leaves, run_model, vision_transformer


def run(case: Case) -> Results:
    if "embed_dims" in case.config:
        return pyramid(case)
    return isotropic(case) if "depth" in case.config else alone(case)


def alone(case: Case) -> Results:
    c = case.config
    inputs = leaves({"x": case.inputs["x"]} | case.params)
    weight = next(v for k, v in inputs.items() if k.endswith("weight"))
    bias = next((v for k, v in inputs.items() if k.endswith("bias")), None)
    y = peg(inputs["x"], (c["height"], c["width"]), weight, bias, stride=c["stride"])
    return {"out.y": y, **gradients((y * case.inputs["cotangent"]).sum(), inputs, params=True)}


def images(case: Case) -> dict[str, Tensor]:
    """By what stands behind "x" in the names: ".20x20", or nothing."""
    return {n[1:]: x for n, x in case.inputs.items() if n == "x" or n.startswith("x.")}


def isotropic(case: Case) -> Results:
    c = case.config
    after = c["peg_after_block_index"]
    model = vision_transformer(
        encoding="cpe", options={"after": after, "kernel_size": c["kernel"]}, dim=c["embed_dim"], heads=c["num_heads"],
        depth=c["depth"], patch=c["patch_size"], image=c["image_sizes"][0], classes=c["num_classes"], mlp_ratio=c["mlp_ratio"],
        eps=c["layer_norm_eps"], class_token=c["class_token"], global_pool="avg" if "mean" in c["pooling"] else "token",
        fc_norm=False, qkv_bias=c["qkv_bias"],
    )  # fmt: skip

    def call(forward) -> Results:
        return {f"out.logits{name}": forward(x) for name, x in images(case).items()}

    return run_model(case, model, "cpvt", call, leaves(case.params))


class Peg(nn.Module):
    """Our PEG in the place of timm's, with its parameter names."""

    def __init__(self, old: nn.Module) -> None:
        super().__init__()
        self.proj, self.stride = old.proj, old.stride

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return peg(x, grid, self.proj[0].weight, self.proj[0].bias, stride=self.stride)


class Pyramid(Twins):
    def forward(self, x: Tensor) -> Tensor:
        """Features and logits, side by side."""
        x = self.forward_features(x)
        return torch.cat((self.forward_head(x, pre_logits=True), self.forward_head(x)), dim=1)


def pyramid(case: Case) -> Results:
    c = case.config
    model = Pyramid(
        img_size=tuple(c["image_sizes"][0]), patch_size=c["patch_size"], num_classes=c["num_classes"],
        embed_dims=tuple(c["embed_dims"]), num_heads=tuple(c["num_heads"]), mlp_ratios=tuple(c["mlp_ratios"]),
        depths=tuple(c["depths"]), sr_ratios=tuple(c["sr_ratios"]),
    ).eval()  # fmt: skip
    model.pos_block = nn.ModuleList(Peg(old) for old in model.pos_block)

    def call(forward) -> Results:
        out = {}
        for name, x in images(case).items():
            features, logits = forward(x).split((c["embed_dims"][-1], c["num_classes"]), dim=1)
            out |= {f"out.features{name}": features, f"out.logits{name}": logits}
        return out

    return run_model(case, model, "cpvt", call, leaves(case.params))
