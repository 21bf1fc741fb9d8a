"""Reading a timm model: the plain arguments that rebuild it as a `vispe_vit`, its old encoding, and its weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from timm.layers import GluMlp, Mlp, SwiGLU
from timm.layers import PatchEmbed as TimmPatchEmbed
from timm.layers.attention import Attention as TimmAttention
from timm.layers.attention import AttentionRope
from timm.layers.pos_embed_sincos import (
    RotaryEmbeddingCat,
    RotaryEmbeddingDinoV3,
    RotaryEmbeddingMixed,
    RotaryEmbeddingMRope,
)
from timm.models.beit import Attention as BeitAttention
from timm.models.beit import Beit
from timm.models.beit import Block as BeitBlock
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva, EvaAttention, EvaBlock
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from ..convert.rope_vit import layer_frequencies
from .vispe_vit import ACTS, NORMS

_ATTENTIONS = (TimmAttention, AttentionRope, EvaAttention, BeitAttention)
_BLOCKS = {VisionTransformer: Block, VisionTransformerDistilled: Block, Eva: EvaBlock, Beit: BeitBlock}


@dataclass
class Old:
    """The old encoding: names of ours in order, their options, and their weights by our keys."""

    names: list[str] = field(default_factory=list)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, options: dict[str, Any]) -> None:
        self.names.append(name)
        self.options[name] = options


def check_class(model: nn.Module) -> None:
    """Refuse what is no plain VisionTransformer, Eva or Beit of timm."""
    kinds = [cls.__name__ for cls in _BLOCKS]
    if type(model) not in _BLOCKS:
        hint = (
            "pass the tower itself, e.g. model.visual.trunk of open_clip" if not isinstance(model, VisionTransformer)
            else "a subclass may compute something else"
        )  # fmt: skip
        raise ValueError(f"swap: a timm model of class {', '.join(kinds)} is expected, got {type(model).__name__}; {hint}.")
    if type(model.patch_embed) is not TimmPatchEmbed:
        raise ValueError(f"swap: the patch embedding must be timm's PatchEmbed, got {type(model.patch_embed).__name__}.")
    if model.patch_embed.img_size is None:
        raise ValueError("swap: the model has no image size; call its set_input_size first.")
    wanted = _BLOCKS[type(model)]
    for i, block in enumerate(model.blocks):
        if type(block) is not wanted:
            kind = type(block).__name__
            raise ValueError(f"swap: blocks.{i} is a {kind}; only {wanted.__name__} (pre-norm) has a form here.")
        attn = block.attn
        if type(attn) not in _ATTENTIONS or getattr(attn, "num_kv_heads", attn.num_heads) != attn.num_heads:
            shared = ", whose keys and values are shared by heads," if type(attn) in _ATTENTIONS else ""
            raise ValueError(f"swap: blocks.{i}.attn is a {type(attn).__name__}{shared} which has no form here.")


def arguments(model: nn.Module) -> dict[str, Any]:
    """Plain arguments of a `vispe_vit` with the model's shape, read from its modules."""
    block, patch = model.blocks[0], model.patch_embed
    attn, scale, pool = block.attn, layer_scale(block), getattr(model, "attn_pool", None)
    return dict(
        img_size=tuple(patch.img_size),
        patch_size=tuple(patch.patch_size),
        in_chans=patch.proj.in_channels,
        dynamic_img_pad=patch.dynamic_img_pad,
        num_classes=model.num_classes,
        global_pool=model.global_pool,
        embed_dim=model.embed_dim,
        depth=len(model.blocks),
        num_heads=attn.num_heads,
        qkv_bias=has_bias(attn),
        qk_norm=present(getattr(attn, "q_norm", None)),
        scale_attn_norm=present(getattr(attn, "norm", None)),
        scale_mlp_norm=present(block.mlp.norm),
        proj_bias=attn.proj.bias is not None,
        init_values=scale,
        class_token=model.cls_token is not None,
        reg_tokens=registers(model),
        distilled=isinstance(model, VisionTransformerDistilled),
        pre_norm=present(getattr(model, "norm_pre", None)),
        final_norm=present(model.norm) or present(model.fc_norm),
        fc_norm=present(model.fc_norm),
        # Eva's attention pool reads every token
        pool_include_prefix=getattr(model, "pool_include_prefix", pool is not None),
        embed_norm=present(patch.norm),
        pool_heads=getattr(pool, "num_heads", None),
        pool_mlp_dim=pool.mlp.fc1.out_features if hasattr(pool, "mlp") else None,
        drop_rate=model.head_drop.p,
        pos_drop_rate=model.pos_drop.p,
        patch_drop_rate=getattr(getattr(model, "patch_drop", None), "prob", 0.0),
        proj_drop_rate=attn.proj_drop.p,
        attn_drop_rate=attn.attn_drop.p,
        drop_path_rate=getattr(model.blocks[-1].drop_path1, "drop_prob", 0.0) or 0.0,
        norm=name_of("norm", block.norm1, NORMS),
        norm_eps=block.norm1.eps,
        act=name_of("activation", block.mlp.act, ACTS),
        **mlp_arguments(block.mlp),
    )


def present(module: nn.Module | None) -> bool:
    return module is not None and not isinstance(module, nn.Identity)


def registers(model: nn.Module) -> int:
    """Register tokens; a distillation token is one."""
    return sum(t.shape[1] for t in (getattr(model, name, None) for name in ("reg_token", "dist_token")) if t is not None)


def has_bias(attn: nn.Module) -> bool:
    fused = getattr(attn, "qkv", None)
    return any(b is not None for b in (
        getattr(attn, "q_bias", None), getattr(fused, "bias", None), getattr(getattr(attn, "q_proj", None), "bias", None)
    ))  # fmt: skip


def layer_scale(block: nn.Module) -> float | None:
    """Some initial value if the block scales both of its branches; the values themselves are weights."""
    scales = [getattr(block, name, None) for name in (("ls1", "ls2") if hasattr(block, "ls1") else ("gamma_1", "gamma_2"))]
    found = [s is not None and not isinstance(s, nn.Identity) for s in scales]
    if any(found) and not all(found):
        raise ValueError("swap: LayerScale on one branch of a block only has no form here.")
    return 1e-5 if all(found) else None


def name_of(what: str, module: nn.Module, table: dict[str, type[nn.Module]]) -> str:
    """The name of a module's class in a table."""
    for name, cls in table.items():
        if type(module) is cls:
            return name
    raise ValueError(f"swap: the {what} {module!r} has no name here; known are {tuple(table)}.")


def mlp_arguments(mlp: nn.Module) -> dict[str, Any]:
    if type(mlp) is SwiGLU:
        return dict(mlp="swiglu", mlp_dim=mlp.fc1_g.out_features)
    if type(mlp) is GluMlp:
        return dict(mlp="glu" if mlp.gate_last else "glu_gate_first", mlp_dim=mlp.fc1.out_features)
    if type(mlp) is Mlp:
        return dict(mlp="mlp", mlp_dim=mlp.fc1.out_features)
    raise ValueError(f"swap: an MLP of class {type(mlp).__name__} has no form here; Mlp, GluMlp and SwiGLU have.")


# ---- the old encoding -----------------------------------------------------------------------------------------------


def old_encoding(model: nn.Module) -> Old:
    """What the model knows about positions: a learned table, BEiT's tables, a rotary embedding."""
    old = Old()
    if model.pos_embed is not None:
        rows = model.pos_embed.shape[1] - model.patch_embed.num_patches
        if rows not in (0, model.num_prefix_tokens):
            raise ValueError(f"swap: pos_embed has {rows} rows for {model.num_prefix_tokens} prefix tokens.")
        old.add("learned", {"prefix_rows": rows > 0})
        old.weights["encoding.learned.pos_embed"] = model.pos_embed
    if isinstance(model, Beit):
        _relative_tables(model, old)
    if isinstance(model, Eva) and model.rope is not None:
        old.add("rope_timm", rotary_options(model.rope, model.blocks[0].attn.rotate_half))
        if isinstance(model.rope, RotaryEmbeddingMixed):
            freqs = model.rope.freqs if model.rope.grid_indexing == "xy" else model.rope.freqs.flip(0)
            for i, layer in enumerate(layer_frequencies(freqs, model.rope.num_heads)):
                old.weights[f"encoding.rope_timm.{i}.freqs"] = layer
    return old


def _relative_tables(model: Beit, old: Old) -> None:
    tables = [block.attn.relative_position_bias_table for block in model.blocks]
    own, shared = tables[0] is not None, model.rel_pos_bias is not None
    common = model.rel_pos_bias.relative_position_bias_table if shared else 0
    if own:
        old.add("beit_bias", {"per_layer": True})
        old.weights |= {f"encoding.beit_bias.{i}.table": table + common for i, table in enumerate(tables)}
    elif shared:
        old.add("beit_bias", {"per_layer": False})
        old.weights["encoding.beit_bias.table"] = common


def rotary_options(rope: nn.Module, rotate_half: bool) -> dict[str, Any]:
    """Options of `rope_timm` that make it compute what a rotary embedding of timm does."""
    options: dict[str, Any] = dict(
        temperature=rope.temperature,
        indexing=rope.grid_indexing,
        layout="half" if rotate_half else "interleaved",
        shift=rope.shift_coords or 0.0,
        jitter=rope.jitter_coords or 1.0,
        rescale=rope.rescale_coords or 1.0,
    )
    if type(rope) is RotaryEmbeddingMixed:
        return options | dict(kind="mixed", coords="index", reference="none")
    if type(rope) is RotaryEmbeddingMRope:
        return options | dict(kind="mrope", coords="index", reference="none", sections=tuple(rope.mrope_section))
    if type(rope) is RotaryEmbeddingDinoV3:
        given = rope.min_period is not None and rope.max_period is not None
        options |= dict(kind="dinov3", coords="centered", offset=rope.grid_offset, normalize=rope.normalize_coords)
        return options | (dict(periods=(rope.min_period, rope.max_period), temperature=100.0) if given else {})
    if type(rope) is RotaryEmbeddingCat:
        bands = "language" if not rope.in_pixels else "pixel_linear" if rope.linear_bands else "pixel"
        reference = "none" if rope.ref_feat_shape is None else tuple(int(n) for n in rope.ref_feat_shape)
        return options | dict(
            kind="cat", bands=bands, max_res=rope.max_res, coords=rope.grid_type, offset=rope.grid_offset,
            reference=reference, normalize=rope.normalize_coords,
        )  # fmt: skip
    raise ValueError(f"swap: the rotary embedding {type(rope).__name__} has no form here.")


def plain_weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's weights without those of its encoding."""
    drop = ("pos_embed", "rope.", "rel_pos_bias.")
    return {
        key: value
        for key, value in model.state_dict().items()
        if not key.startswith(drop) and not key.endswith("relative_position_bias_table")
    }


# ---- the comparison -------------------------------------------------------------------------------------------------


def differences(model: nn.Module, host: nn.Module) -> list[str]:
    """Modules without a counterpart of the same class and settings in the other model, in words."""
    ours, theirs = _parts(host), _parts(model)
    lines = []
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            lines.append(f"{name} is {theirs.get(name, 'absent')} and would be {ours.get(name, 'absent')}")
    scales = {float(block.attn.scale) for block in (*model.blocks, *host.blocks)}
    if len(scales) > 1:
        lines.append(f"attention scales differ: {sorted(scales)}")
    pools = [getattr(m, "attn_pool", None) for m in (model, host)]
    if any(p is not None for p in pools) and len({(p.num_heads, getattr(p, "pool", None)) for p in pools if p is not None}) > 1:
        lines.append("attn_pool has another number of heads or another pooling")
    return lines


def _parts(model: nn.Module) -> dict[str, str]:
    """Class and settings of every module that computes something, but for projections and encodings, which differ by name."""
    found = {}
    for name, module in model.named_modules():
        last = name.split(".")[-1]
        if name.startswith(("encoding", "rope", "rel_pos_bias", "patch_drop")) or last in ("qkv", "ls1", "ls2"):
            continue
        if last in ("q_proj", "k_proj", "v_proj") or isinstance(module, nn.Identity):
            continue
        if isinstance(module, nn.Dropout) and module.p == 0:
            continue
        leaf = next(module.children(), None) is None
        if leaf or last in ("mlp", "attn_pool", "head"):
            eps = f", eps={module.eps:g}" if hasattr(module, "eps") else ""  # which some norms do not show
            found[name] = f"{type(module).__name__}({module.extra_repr()}{eps})"
    return found


def first_device(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and dtype of the patch projection."""
    weight = model.patch_embed.proj.weight
    return weight.device, weight.dtype
