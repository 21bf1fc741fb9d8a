"""diffusers' DiTTransformer2DModel and our EncodedDiT, in both directions.

Stock diffusers is another function than facebookresearch/DiT with the same weights (1 to 2 % of the largest output in 0.42.1):
its time frequencies are θ^(−i / 127) where DiT has θ^(−i / 128), and `norm3` has eps 1e-5 where DiT has 1e-6. `to_diffusers`
sets both right by default. eps is part of the saved configuration; the frequencies are not, and have to be set again
(`official_times`) after `from_pretrained`. In diffusers every block has embedders of its own; ours has one for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .report import Draft
from .tables import Grid

if TYPE_CHECKING:
    from diffusers import DiTTransformer2DModel

ENCODINGS = ("sincos2d",)  # whose weights these are
_STEM = {
    "pos_embed.proj": "x_embedder.proj", "proj_out_1": "final_layer.adaLN_modulation.1", "proj_out_2": "final_layer.linear",
}  # fmt: skip
_EMBEDDERS = {
    "timestep_embedder.linear_1": "t_embedder.mlp.0", "timestep_embedder.linear_2": "t_embedder.mlp.2",
    "class_embedder.embedding_table": "y_embedder.embedding_table",
}  # fmt: skip
_PARTS = {
    "norm1.linear": "adaLN_modulation.1", "attn1.to_out.0": "attn.proj", "ff.net.0.proj": "mlp.fc1", "ff.net.2": "mlp.fc2",
}  # fmt: skip
_EMB = re.compile(r"transformer_blocks\.(\d+)\.norm1\.emb\.(.+)\.(weight|bias)")
_BLOCK = re.compile(r"transformer_blocks\.(\d+)\.(.+)\.(weight|bias)")


def matches(keys: Iterable[str]) -> bool:
    keys = set(keys)
    return {"pos_embed.proj.weight", "transformer_blocks.0.norm1.emb.timestep_embedder.linear_1.weight"} <= keys


def translate(state: dict[str, Tensor], model: nn.Module, source_grid: Grid | None) -> Draft:
    """Of the embedders, block 0's are taken; blocks that have learned others of their own are refused."""
    draft = Draft(state, "diffusers_dit")
    draft.report.notes.append("trained with stock diffusers, it has other time frequencies (see vispe.convert.diffusers_dit)")
    for key in list(draft.left):
        if key not in draft.left:
            continue
        stem, _, kind = key.rpartition(".")
        if key == "pos_embed.pos_embed":
            from .dit import place_table

            place_table(draft, model, key, source_grid)
        elif stem in _STEM:
            draft.move(key, f"{_STEM[stem]}.{kind}")
        elif found := _EMB.fullmatch(key):
            _embedder(draft, state, key, found)
        elif found := _BLOCK.fullmatch(key):
            _block(draft, key, found)
    return draft


def _embedder(draft: Draft, state: dict[str, Tensor], key: str, found: re.Match[str]) -> None:
    first = state.get(f"transformer_blocks.0.norm1.emb.{found[2]}.{found[3]}")
    if found[2] not in _EMBEDDERS or first is None:
        return
    if found[1] == "0":
        draft.move(key, f"{_EMBEDDERS[found[2]]}.{found[3]}")
    elif torch.equal(first, state[key]):
        draft.drop(key, "the same as block 0's; here one embedder serves every block")
    else:
        draft.refuse(key, "not the embedder of block 0 (they were trained apart); here one serves every block")


def _block(draft: Draft, key: str, found: re.Match[str]) -> None:
    i, part, kind = found.groups()
    if part in _PARTS:
        draft.move(key, f"blocks.{i}.{_PARTS[part]}.{kind}")
    elif part == "attn1.to_q":
        names = [f"transformer_blocks.{i}.attn1.to_{side}.{kind}" for side in "qkv"]
        if all(name in draft.left for name in names):
            draft.put(f"blocks.{i}.attn.qkv.{kind}", torch.cat([draft.left[name] for name in names]), *names)


def diffusers_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our (and facebookresearch/DiT's) state dict in diffusers' keys; a saved `pos_embed` is left out.

    Raises:
        ValueError: an entry that DiTTransformer2DModel has no place for.
    """
    depth = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("blocks."))
    stem, embedders = {v: k for k, v in _STEM.items()}, {v: k for k, v in _EMBEDDERS.items()}
    parts, new = {v: k for k, v in _PARTS.items()}, {}
    for key, tensor in state.items():
        name, _, kind = key.rpartition(".")
        block = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
        if key == "pos_embed":
            continue
        if name in stem:
            new[f"{stem[name]}.{kind}"] = tensor
        elif name in embedders:
            new |= {f"transformer_blocks.{i}.norm1.emb.{embedders[name]}.{kind}": tensor for i in range(depth)}
        elif block and block[2] == "attn.qkv":
            for side, rows in zip("qkv", tensor.chunk(3)):
                new[f"transformer_blocks.{block[1]}.attn1.to_{side}.{kind}"] = rows
        elif block and block[2] in parts:
            new[f"transformer_blocks.{block[1]}.{parts[block[2]]}.{kind}"] = tensor
        else:
            raise ValueError(
                f"to_diffusers: DiTTransformer2DModel has no place for {key!r}; it is a plain DiT with a sin-cos table."
            )
    return new


def to_diffusers(model: nn.Module, *, times: str = "official") -> DiTTransformer2DModel:
    """Our plain DiT (sincos2d, square latent) as a DiTTransformer2DModel with the same outputs, in evaluation mode.

    Args:
        times: "official" computes what our model computes; "stock" leaves diffusers' own time frequencies and eps.

    Raises:
        ValueError: a model that diffusers' class cannot be.
    """
    from diffusers import DiTTransformer2DModel

    c = model.config
    if times not in ("official", "stock"):
        raise ValueError(f"to_diffusers: times must be 'official' or 'stock', got {times!r}.")
    reason = _unfit(model)
    if reason:
        raise ValueError(f"to_diffusers: DiTTransformer2DModel cannot be this model: {reason}.")
    made = DiTTransformer2DModel(
        num_attention_heads=c.num_heads, attention_head_dim=c.hidden_size // c.num_heads, in_channels=c.in_channels,
        out_channels=model.out_channels, num_layers=c.depth, patch_size=c.patch_size,
        sample_size=model.train_grid[0] * c.patch_size, num_embeds_ada_norm=c.num_classes,
        norm_eps=1e-6 if times == "official" else 1e-5,
    )  # fmt: skip
    made.load_state_dict(diffusers_state(model.state_dict()))
    return (official_times(made) if times == "official" else made).eval()


def official_times(model: DiTTransformer2DModel) -> DiTTransformer2DModel:
    """Give every block of a diffusers DiT the time frequencies of facebookresearch/DiT, in place. Returns the model."""
    for block in model.transformer_blocks:
        block.norm1.emb.time_proj.downscale_freq_shift = 0
    return model


def _unfit(model: nn.Module) -> str:
    c = model.config
    table = model.encoding.first("sincos2d") if list(model.encoding) == ["sincos2d"] else None
    checks = {
        f"its encoding is {c.encoding!r}, not a sin-cos table in DiT's layout":
            table is not None and table.layout == {"theta": 10000.0, "order": "col_row", "stacking": "axis", "omega": "open"},
        f"its grid {model.train_grid} is not square": model.train_grid[0] == model.train_grid[1],
        "it has RMSNorm, SwiGLU, QK-norm, modulation without shift, or a crop condition":
            (c.norm, c.mlp, c.qk_norm, c.shift, c.micro_conditioning) == ("layer", "gelu", False, True, False),
        "it has no classes or no null class": c.num_classes > 0 and c.null_class,
        f"it predicts {c.prediction_type!r}": c.prediction_type not in ("sit_velocity", "flow_prediction"),
        f"its mlp_ratio is {c.mlp_ratio}, not 4": c.mlp_ratio == 4,
    }  # fmt: skip
    return "; ".join(reason for reason, fits in checks.items() if not fits)
