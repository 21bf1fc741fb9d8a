"""`swap` for diffusers' transformers: encodings into their attention processors and patch embedding, and out of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...encodings.base import Encoding
from ...encodings.extrapolation import Extrapolation, extrapolation
from .build import Plan, Start, plan
from .carrier import Carrier, TokenHook
from .hosts import Host, Site, host_of
from .processors import CrossProcessor
from .rotary import open_slot, rotary_slot
from .square import any_shape

Old = Literal["keep", "remove"]
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Setup:
    """What `swap`, `multiview` and `set_extrapolation` made of a model, in plain values."""

    encoding: str = ""  # "" where nothing was put in
    encoding_kwargs: dict[str, Any] = field(default_factory=dict)
    old: Old = "keep"
    start: Start = "identity"
    train_grid: tuple[int, ...] | None = None
    extrapolation: dict[str, Any] | None = None
    views: bool = False  # put in by `multiview`


def setup_of(model: nn.Module) -> Setup:
    return model.__dict__.get("vispe_setup", Setup())


def swap(
    model: nn.Module,
    encoding: str,
    *,
    encoding_kwargs: dict[str, Any] | None = None,
    old: Old = "keep",
    start: Start = "identity",
    train_grid: Sequence[int] | None = None,
    into: Literal["copy", "model"] = "copy",
) -> nn.Module:
    """A transformer of diffusers with another encoding: the same class, the same calls, more parameters.

    What happens where:

    - DiT, PixArt, SD3 add a sin-cos table to their tokens and turn nothing. Encodings that act in the attention come beside it
      (old="keep") or in its place; added ones ("learned", "sincos2d") go to the patch embedding. Fixed rotary encodings get a
      learned gate for start="identity" (`gates.py`). The paper's HARoPE for SD3 is old="remove", start="init".
    - Flux, Wan and Lumina2 turn queries and keys themselves. With old="keep", "harope" is its matrices behind the query/key
      norm and ahead of the model's own rotary, over text and image tokens, which is the paper's HARoPE for Flux and starts as
      the model; other encodings act ahead of it too. With old="remove" the model's table is not applied in the replaced layers.
    - Text tokens have no position. SD3's second attention of image tokens (attn2) has an encoding of its own; Lumina2's caption
      layers stay as they are.

    DiT, PixArt, SD3 and Flux take positions of image tokens for the new encoding in the attention (random ones, one draw a
    sample) as "positions" in their `cross_attention_kwargs` or `joint_attention_kwargs`; the model's own are as ever.

    Every layer has its own parameters, `...attn.processor.encodings.<name>.*` in the state dict. `save` and `load` write and
    read such models; diffusers' own `from_pretrained` ignores what it does not know.

    Args:
        model: a DiTTransformer2DModel, PixArtTransformer2DModel, SD3Transformer2DModel, FluxTransformer2DModel,
            Lumina2Transformer2DModel or WanTransformer3DModel with its stock attention processors.
        encoding: a name of the table, or several joined by "+"; "none" with old="remove" takes positions away.
        encoding_kwargs: its options; for several {name: options}.
        old: keep the model's own encoding beside the new one, or remove it.
        start: "identity": the model computes what it did (with old="remove": what it does without its encoding). "init": the
            encoding's initial values.
        train_grid: tokens on each axis in training, (rows, columns) or (frames, rows, columns); None takes what the
            configuration says. Flux's and Wan's say nothing: then every grid counts as trained.
        into: "copy" leaves the model alone; "model" changes it, without a second set of weights.

    Raises:
        ValueError: another class, processors that are not the stock ones, an encoding without a place or an identity setting.
    """
    for option, value, known in (("old", old, ("keep", "remove")), ("start", start, ("identity", "init")),
                                 ("into", into, ("copy", "model"))):  # fmt: skip
        if value not in known:
            raise ValueError(f"swap: {option} must be one of {known}, got {value!r}.")
    host, options = host_of(model), encoding_kwargs or {}
    check_stock(host, model)
    grid = checked_grid(host, model, train_grid)
    turn = host.own == "rotary" and old == "keep"
    made = plan(host, model, encoding, options, turn=turn, start=start, train_grid=grid)
    model = copy.deepcopy(model) if into == "copy" else model
    install(host, model, made, turn=turn, train_grid=grid)
    if old == "remove" and host.own == "table":
        model.pos_embed.pos_embed = None  # its forward then adds nothing
    model.vispe_setup = Setup(encoding, options, old, start, None if train_grid is None else tuple(train_grid))
    return model


def check_stock(host: Host, model: nn.Module) -> None:
    """Refuse attention layers that are not as diffusers makes them, which would be lost."""
    before = setup_of(model)
    if before.encoding or before.extrapolation:
        what = repr(before.encoding) if before.encoding else "set_extrapolation"
        raise ValueError(f"swap: this model has {what} already; start from the model as diffusers loads it, and swap first.")
    for site in host.sites(model):
        if type(site.attn.processor) is not host.processor.stock:
            raise ValueError(
                f"swap: {type(model).__name__} has attention processors {type(site.attn.processor).__name__}, which would be "
                f"lost; only {host.processor.stock.__name__} is replaced (unfuse_qkv_projections, no IP-Adapter)."
            )


def checked_grid(host: Host, model: nn.Module, train_grid: Sequence[int] | None) -> tuple[int, ...] | None:
    """The train grid as told, or as the configuration says."""
    if train_grid is None:
        return host.train_grid(model)
    if len(train_grid) != host.axes or any(n < 1 for n in train_grid):
        raise ValueError(f"train_grid counts tokens on {host.axes} axes of {type(model).__name__}, got {tuple(train_grid)}.")
    return tuple(int(n) for n in train_grid)


def install(host: Host, model: nn.Module, made: Plan, *, turn: bool, train_grid: tuple[int, ...] | None) -> None:
    """Put processors and hooks in their places."""
    sites = host.sites(model)
    if made.layers or host.own == "rotary" and not turn:
        for number, site in enumerate(sites):
            encodings = {name: layers[number] for name, layers in made.layers.items()}
            processor = like(site.attn.to_q.weight, host.processor(number, encodings, turn=turn))
            site.attn.set_processor(processor.train(model.training))
        carry(host, model, sites, train_grid)
    if made.tokens:
        model.pos_embed.encodings = like(model.pos_embed.proj.weight, nn.ModuleDict(made.tokens))
        model.pos_embed.register_forward_hook(TokenHook(model.config.patch_size, train_grid))
    any_shape(model)


def like(weight: Tensor, module: nn.Module) -> nn.Module:
    """The module on the device and in the dtype of a weight; in float32 beside quantised ones."""
    return module.to(device=weight.device, dtype=weight.dtype if weight.dtype in DTYPES else torch.float32)


def carry(host: Host, model: nn.Module, sites: list[Site], train_grid: tuple[int, ...] | None) -> None:
    """Open the way that contexts take."""
    carrier = Carrier(host, sites, train_grid=train_grid)
    if host.passes:
        model.register_forward_pre_hook(carrier, with_kwargs=True)
    else:
        open_slot(model, host.slot).carrier = carrier
    for block in getattr(model, "transformer_blocks", ()):
        other = getattr(block, "attn2", None)
        if host.passes == "cross_attention_kwargs" and other is not None:
            other.set_processor(CrossProcessor())


def carrier_of(model: nn.Module) -> Carrier | None:
    """The carrier of a swapped model."""
    slot = rotary_slot(model)
    if slot is not None and slot.carrier is not None:
        return slot.carrier
    return next((hook for hook in model._forward_pre_hooks.values() if isinstance(hook, Carrier)), None)


def set_extrapolation(
    model: nn.Module, setting: str | Extrapolation | None, *, train_grid: Sequence[int] | None = None
) -> None:
    """Choose what rotary frequencies do on grids larger than trained, in place: of the model's table and of swapped encodings.

    At the trained size the table stays the model's own. Methods by the diffusion time ("lumina", "dype_*": mind the notice in
    `vispe/positions/extrapolate.py`) need `set_noise` ahead of each step. A temperature multiplies queries and keys of text
    tokens too. RIFLEx is for Wan; "log_n" counts image tokens.

    Args:
        model: Flux, Wan or Lumina2, swapped or not; DiT, PixArt or SD3 with a swapped rotary encoding.
        setting: a method, a preset, a setting, or None for the model's own again.
        train_grid: tokens on each axis in training; for Flux and Wan it must be told (here, in the setting, or to `swap`):
            Flux at 1024 x 1024 pixels has (64, 64).

    Raises:
        ValueError: no rotary frequencies, a method that they cannot do, an unknown train grid.
    """
    host, setting, before = host_of(model, "set_extrapolation"), extrapolation(setting), setup_of(model)
    own = host.own == "rotary" and before.old == "keep"
    able = [e for e in swapped(model) if getattr(e, "set_extrapolation", None) is not None]
    if setting is not None:
        if not own and not able:
            raise ValueError(
                f"set_extrapolation: {type(model).__name__} has no rotary frequencies (its table is resampled by diffusers); "
                f"swap a rotary encoding in first, e.g. swap(model, 'harope')."
            )
        told = train_grid or setting.train or before.train_grid
        grid = checked_grid(host, model, told)
        if grid is None:
            raise ValueError(
                f"set_extrapolation: the configuration of {type(model).__name__} does not say how large its grid was in "
                f"training; pass train_grid, tokens on its {host.axes} axes."
            )
        setting = replace(setting, train=grid)
        for encoding in able:
            setting.check(type(encoding).__name__, encoding.series())
    for encoding in able:
        encoding.set_extrapolation(setting)
    if own:
        slot = open_slot(model, host.slot)
        if setting is not None:
            setting.check(slot.name, slot.rope().series())
        slot.setting = setting
    model.vispe_setup = replace(before, extrapolation=None if setting is None else asdict(setting))


def set_noise(model: nn.Module, noise: float) -> None:
    """Tell extrapolation that depends on the diffusion time how noisy the next forward's tokens are.

    Args:
        noise: 1 for pure noise, 0 for data: the timestep that Flux's pipeline passes, of Wan's a thousandth, of Lumina2's one
            minus it. In a pipeline, set 1 ahead and the next step's in `callback_on_step_end`.
    """
    if not 0 <= float(noise) <= 1:
        raise ValueError(f"set_noise: noise goes from 0 (data) to 1 (pure noise), got {noise}.")
    slot, carrier = rotary_slot(model), carrier_of(model)
    if slot is None and carrier is None:
        raise ValueError("set_noise: this model has no extrapolation; call set_extrapolation first.")
    for holder in (slot, carrier):
        if holder is not None:
            holder.noise = float(noise)


def no_weight_decay(model: nn.Module) -> set[str]:
    """Names of the parameters of swapped encodings that must not be decayed (HARoPE's are all of them)."""
    return {
        f"{prefix}.{name}"
        for prefix, encoding in model.named_modules()
        if isinstance(encoding, Encoding)
        for name, _ in encoding.named_parameters()
        if name.split(".")[-1] in encoding.no_decay or name.split(".")[0] in encoding.no_decay
    }


def swapped(model: nn.Module) -> list[nn.Module]:
    """Every encoding in the attention layers of a model."""
    carrier = carrier_of(model)
    return [] if carrier is None else [e for p in carrier.processors() for e in p.encodings.values()]
