"""Longin-Yu/ComRoPE: coordinates, rotations of all its variants in two and three axes, and its whole CLIP-shaped ViTs.

Our AP and LD rotate in the eigenbasis Q of the angle matrices, since scores do not see Q; official queries are Q times
ours, with Q a constant to autograd (gradients of S come with the rotation).
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import torch
from torch import Tensor, nn

from vispe import create_encoding
from vispe.convert import comrope as converter
from vispe.encodings import Encoding, EncodingStack
from vispe.encodings.rotary import FixedRotary
from vispe.encodings.skew import from_pairs, skew_matrix
from vispe.models import EncodedVisionTransformer
from vispe.positions import Positions, custom_positions, full_grid

from ..cases import Case
from .common import Results, bind, gradients, leaves, run_model, vision_transformer

NAMES = {"comrope-ap": "comrope_ap", "comrope-ld": "comrope_ld", "liere": "liere_comrope"}


def run(case: Case) -> Results:
    return {"positions": positions, "rotation": rotation, "vit": vit}[case.config["kind"]](case)


# ---- coordinates ----------------------------------------------------------------------------------------------------


def positions(case: Case) -> Results:
    """Read from an AP encoding with as many blocks as axes: the block of an axis turns by its coordinate."""
    c = case.config
    side, axes, jitter = c["patches_per_side"], c["num_axes"], c["perturbation_intensity"]
    encoding = create_encoding(
        "comrope_ap", dim=2 * axes, num_heads=1, axes=axes, block_size=2, jitter=jitter, offset=c["offset_intensity"]
    ).train()
    encoding.units = "unit" if c["coordinates_normalised"] else "index"
    encoding.prefix_coord = c["class_token_coordinate"]
    grid = (side, side) if c["frames"] is None else (c["frames"], side, side)
    pos = full_grid(grid, prefix=int(c["class_token_first"]))
    pos = replace(pos, extent=(side,) * axes)  # the official code divides frame indices by the patches of a side, too
    with (
        mock.patch("torch.randn_like", side_effect=lambda *_: case.inputs["jitter_draw"][None]),
        mock.patch("torch.randn", side_effect=lambda *_, **__: case.inputs["offset_draw"]),
    ):
        ctx = encoding.prepare(pos)
    return {"out.positions": ctx.times[0, 0]}  # (N, blocks = axes)


# ---- rotations ------------------------------------------------------------------------------------------------------


def rotation(case: Case) -> Results:
    inputs = leaves({n: case.inputs[n] for n in "qk"} | {n: p for n, p in case.params.items() if n != "exponent_matrix"})
    results = {"vanilla-rope": vanilla, "liere": liere}.get(case.config["variant"], comrope)(case, inputs)
    q, k = results["out.q_rotated"], results["out.k_rotated"]
    loss = (q * case.inputs["cotangent_q"]).sum() + (k * case.inputs["cotangent_k"]).sum()
    return results | {"out.logits_unscaled": q @ k.mT} | gradients(loss, inputs)


def build(config: dict, tensors: dict[str, Tensor]) -> Encoding:
    encoding = create_encoding(
        NAMES[config["variant"]], dim=config["num_heads"] * config["head_dim"], num_heads=config["num_heads"],
        axes=config["num_axes"], block_size=config["block_size"],
    ).eval()  # fmt: skip
    return bind(encoding, **converter.encoding_tensors(tensors))


def comrope(case: Case, inputs: dict[str, Tensor]) -> Results:
    encoding = build(case.config, {n: t for n, t in inputs.items() if n in ("freqs", "multiplier")})
    pos = custom_positions(case.inputs["positions"])
    ctx = encoding.prepare(pos)
    turned = {}
    for name, x in zip("qk", encoding.qk(inputs["q"], inputs["k"], ctx, ctx)):
        x = from_pairs(x, encoding.blocks, encoding.block_size)  # (B, H, N, m, b)
        turned[f"out.{name}_rotated"] = torch.einsum("hmij,bhnmj->bhnmi", ctx.basis, x).flatten(-2)
    skew = skew_matrix(encoding.skew, encoding.block_size)
    angles = encoding.axis_weights()[..., None, None] * skew[:, None]
    return turned | {"out.angle_matrices": angles, "out.rotation_blocks_sample0": encoding.matrices(pos)[0]}


def liere(case: Case, inputs: dict[str, Tensor]) -> Results:
    encoding = build(case.config, {"freqs": inputs["freqs"]})
    ctx = encoding.prepare(custom_positions(case.inputs["positions"]))
    q, k = encoding.qk(inputs["q"], inputs["k"], ctx, ctx)
    return {
        "out.q_rotated": q, "out.k_rotated": k, "out.angle_matrices": encoding.generators(),
        "out.rotation_blocks_sample0": ctx.matrices[0].transpose(0, 1),
    }  # fmt: skip


def plain_rotary(config: dict) -> FixedRotary:
    """The repository's rotary baseline: θ_base^i, one contiguous run of pairs for each axis, rows first."""
    axes, pairs = config["num_axes"], config["head_dim"] // 2 // config["num_axes"]
    freqs = config["theta_base"] ** torch.arange(pairs, dtype=torch.float32)
    return FixedRotary(
        dim=config["num_heads"] * config["head_dim"], num_heads=config["num_heads"], axes=axes,
        freqs=torch.block_diag(*[freqs[None]] * axes)[None], units="unit", resize="rescale",
        prefix_coord=config["class_token_coordinate"],
    )  # fmt: skip


def vanilla(case: Case, inputs: dict[str, Tensor]) -> Results:
    encoding = plain_rotary(case.config)
    ctx = encoding.prepare(custom_positions(case.inputs["positions"]))
    q, k = encoding.qk(inputs["q"], inputs["k"], ctx, ctx)
    freqs = encoding.frequencies()
    zero = torch.zeros_like(freqs)
    angles = torch.stack((torch.stack((zero, -freqs), -1), torch.stack((freqs, zero), -1)), -2)
    blocks = torch.stack((torch.stack((ctx.cos, -ctx.sin), -1), torch.stack((ctx.sin, ctx.cos), -1)), -2)
    return {
        "out.q_rotated": q, "out.k_rotated": k, "out.angle_matrices": angles,
        "out.rotation_blocks_sample0": blocks[0].transpose(0, 1),
    }  # fmt: skip


# ---- whole models ---------------------------------------------------------------------------------------------------


class RepoApe(Encoding):
    """The repository's absolute table, its bug included: read with (row, column) where (column, row) is meant.

    It belongs to this test only. grid_sample takes coordinates as (x, y, z); the code gives (0, row, column) in two
    axes and (frame, row, column) in three, so that columns of an image never enter.
    """

    card = replace(EncodingStack("none", dim=1, num_heads=1, depth=1).first("none").card, title="repo-exact table")
    table: Tensor  # (F, P, P, C), bound by the adapter

    def __init__(self, *, dim: int, coords: Tensor) -> None:
        super().__init__(dim=dim, num_heads=1, axes=coords.shape[-1])
        self.coords = coords

    def prepare(self, pos: Positions) -> Tensor:
        place = self.coords * 2 - 1
        if place.shape[-1] == 2:
            place = nn.functional.pad(place, (1, 0))
        volume = self.table.permute(3, 0, 1, 2)[None]  # (1, C, F, P, P)
        found = nn.functional.grid_sample(
            volume, place[None, None, None], mode="bilinear", padding_mode="border", align_corners=True
        )
        return found[0, :, 0, 0].mT[None]  # (1, 1 + N, C)

    def tokens(self, x: Tensor, ctx: Tensor) -> Tensor:
        return x + ctx


def vit(case: Case) -> Results:
    c = case.config
    params = leaves(case.params)
    table = params.get("vision_model.embeddings.position_embedding")
    rest = {k: v for k, v in params.items() if v is not table}
    model = clip_vit(case)

    def call(forward) -> Results:
        results = {}
        for name, image in case.inputs.items():
            if name.startswith("image"):
                coords = case.inputs[name.replace("image", "positions")]
                if table is not None:
                    model.encoding["repo_ape"] = bind_table(RepoApe(dim=model.embed_dim, coords=coords), table)
                results[f"out.{name.replace('image', 'logits')}"] = forward(image, coords)
        return results

    results = run_model(case, model, "comrope", call, rest)
    if table is not None and "cotangent" in case.inputs:
        results |= gradients((results["out.logits"] * case.inputs["cotangent"]).sum(), params)
    assert c["absolute_pos_embed_added"] == (table is not None)
    return results


def bind_table(encoding: RepoApe, table: Tensor) -> RepoApe:
    encoding.table = table
    return encoding


def clip_vit(case: Case) -> Placed:
    c = case.config
    dim = c["num_heads"] * c["head_dim"]
    name = NAMES.get(c["variant"], "none")
    options = {"block_size": c["block_size"]} if name != "none" else None
    model = vision_transformer(
        encoding="none", options=None, dim=dim, heads=c["num_heads"], depth=c["depth"], patch=c["patch_size"],
        image=c["image_size"], classes=c["num_classes"], mlp_ratio=(c["mlp_dim"] + 0.5) / dim, eps=c["layer_norm_eps"],
        pre_norm=True, act_layer="quick_gelu", cls=Placed,
    )  # fmt: skip
    model.encoding = EncodingStack(
        name, dim=dim, num_heads=c["num_heads"], depth=c["depth"], axes=c["num_axes"], options=options
    )
    if c["variant"] == "vanilla-rope":
        rotary = plain_rotary(c)
        model.encoding["rotary"] = bind(rotary, freqs=rotary.freqs.detach())  # fixed numbers, in no state dict
    hidden = case.params.get("classification_head.0.weight")
    if hidden is not None:  # the repository's other head
        model.head = nn.Sequential(nn.Linear(dim, len(hidden)), nn.ReLU(), nn.Linear(len(hidden), c["num_classes"]))
    return model.eval()


class Placed(EncodedVisionTransformer):
    """Our ViT at the positions of the case: by itself where they are its own, else with the class token's place
    given."""

    def forward(self, image: Tensor, coords: Tensor) -> Tensor:
        if image.ndim == 4 and torch.allclose(coords, self.own(image), atol=1e-6):
            return super().forward(image)
        frames = (image[:, None] if image.ndim == 4 else image).unbind(1)
        tokens = torch.cat([self.patch_embed(frame).flatten(1, 2) for frame in frames], dim=1)
        x, ctx = self.start(tokens, custom_positions(coords))
        for i in range(len(self.blocks)):
            x = self.run_block(i, x, ctx)
        return self.forward_head(self.norm(x))

    def own(self, image: Tensor) -> Tensor:
        pos = self.positions(*self.patch_embed.dynamic_feat_size(image.shape[-2:]))
        return torch.cat((torch.full((1, pos.axes), 0.5), pos.to("unit", "rescale")[0]))


def tolerance(case: Case, key: str) -> float | None:
    """Looser with reason in rotation cases.

    Raw scores are sums of head_dim products of rotated q and k, which may each be 2e-5 off. And float32 keeps 6e-8 of the
    angle, however many rounds that is: at raw patch indices (some 55 rad) the official scores are 2.2e-5 off a float64
    recomputation, ours 0.5e-5. The usual numbers hold for angles up to 8 rad and grow in proportion from there.
    """
    if case.config["kind"] != "rotation" or not key.startswith("out."):
        return None
    matrices = case.params.get("freqs", case.params.get("exponent_matrix"))
    rate = torch.linalg.matrix_norm(matrices - matrices.mT, 2).max() * case.params.get("multiplier", torch.ones(1)).abs().max()
    growth = max(1.0, (case.inputs["positions"].abs().max() * rate).item() / 8)
    return growth * (5e-5 if "logits" in key else 2e-5 if key.endswith("_rotated") else 2e-6)
