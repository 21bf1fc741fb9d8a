"""An image tower and a text tower side by side, and where each comes from."""

from typing import Any, Literal

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vispe  # registers vispe's models in timm
from vispe.adapters.open_clip import undecayed
from vispe.encodings.base import Encoding

TextPositions = Literal["learned", "rotary", "stretched"]
OPEN_CLIP = "open_clip:"
TABLE = "text.positional_embedding"
STRETCHED = "text.parametrizations.positional_embedding"


class TwoTowers(nn.Module):
    """Unit features of images and texts, and the scale of their products (kept as its logarithm, at most 100 as in CLIP).

    Args:
        image: (B, C, H, W) to (B, E).
        text: A text tower of open_clip, token ids (B, L) to (B, E).
        scale: Initial logarithm of the scale; CLIP's is ln(1 / 0.07).
    """

    def __init__(self, image: nn.Module, text: nn.Module, *, scale: float = 2.6593) -> None:
        super().__init__()
        self.image, self.text = image, text
        self.logit_scale = nn.Parameter(torch.tensor(float(scale)))

    def encode_image(self, images: Tensor) -> Tensor:
        """(B, E) float32, of length 1."""
        return F.normalize(self.image(images).float(), dim=-1)

    def encode_text(self, ids: Tensor) -> Tensor:
        """(B, E) float32, of length 1; a rotary tower is spared the padding behind the longest text."""
        if isinstance(self.text.positional_embedding, nn.Parameter) or ids.shape[1] == 0:
            return F.normalize(self.text(ids).float(), dim=-1)
        return F.normalize(self.text(ids[:, : self._used(ids)]).float(), dim=-1)

    def _used(self, ids: Tensor) -> int:
        from vispe.models.clip_text import RotaryText

        rotary = isinstance(self.text.transformer.resblocks[0].attn, RotaryText)
        return int(ids.argmax(dim=-1).max()) + 1 if rotary else ids.shape[1]  # the end token has the highest id

    def scale(self) -> Tensor:
        """What cosines are multiplied by."""
        return self.logit_scale.float().clamp(max=4.6052).exp()

    def no_weight_decay(self) -> set[str]:
        """Names of both towers that are not decayed."""
        names = {"logit_scale", TABLE} | {f"image.{name}" for name in undecayed(self.image)}
        for place, module in self.text.named_modules(prefix="text"):
            if isinstance(module, Encoding):
                names |= {f"{place}.{name}" for name, _ in module.named_parameters() if name.split(".")[-1] in module.no_decay}
        return names


def build_towers(
    model: str,
    model_kwargs: dict[str, Any],
    *,
    pretrained: str | None,
    embed_dim: int,
    text: dict[str, int],
    context_length: int,
) -> TwoTowers:
    """Both towers with the text's learned table of ``context_length`` rows; of open_clip's models as they are there."""
    import open_clip
    from open_clip.transformer import TextTransformer

    if model.startswith(OPEN_CLIP):
        name = model.removeprefix(OPEN_CLIP)
        vispe.open_clip.register()  # ours are among its names then
        if open_clip.get_model_config(name) is None:
            raise ValueError(f"ContrastiveClip: open_clip has no model {name!r}; see open_clip.list_models()")
        whole = open_clip.create_model(name, pretrained=pretrained, force_custom_text=True, **model_kwargs)
        return TwoTowers(whole.visual, whole.text, scale=whole.logit_scale.item())
    if pretrained is not None:
        raise ValueError(f"ContrastiveClip: pretrained is for open_clip's models, got model {model!r}; use init_from")
    net = timm.create_model(model, num_classes=embed_dim, **model_kwargs)
    return TwoTowers(net, TextTransformer(context_length=context_length, output_dim=embed_dim, **text))


def towers_of(settings: dict[str, Any]) -> TwoTowers:
    """The towers that the settings of a ``ContrastiveClip`` build, at random weights and with the learned table."""
    text = {key: settings[f"text_{key}"] for key in ("width", "heads", "layers")}
    return build_towers(
        settings["model"], dict(settings["model_kwargs"] or {}), pretrained=None, embed_dim=settings["embed_dim"], text=text,
        context_length=settings["context_length"],
    )  # fmt: skip


def set_positions(
    tower: nn.Module, positions: TextPositions, *, context_length: int, encoding: str, options: dict[str, Any] | None
) -> None:
    """Give a tower with a learned table other positions, in place."""
    from vispe.models.clip_text import rotate_text, stretch_text

    if positions == "rotary":
        rotate_text(tower, context_length=context_length, encoding=encoding, options=options)
    elif positions == "stretched":
        stretch_text(tower)


def start_from(towers: TwoTowers, path: str, *, which: Literal["all", "text"]) -> None:
    """Load both towers from a checkpoint of ``ContrastiveClip``, or the text tower from one of it or of ``ClipDistillation``.

    Of a file with a learned table a rotary tower leaves the table out, and a stretched one stretches it.

    Raises:
        ValueError: no such towers in the file, or with other parameters.
    """
    content = torch.load(path, map_location="cpu", weights_only=True)
    stored = content.get("state_dict", {})
    prefixes = {"net.": ""} if which == "all" else {"net.text.": "text.", "student.": "text."}
    state = {
        new + key.removeprefix(old): value
        for key, value in stored.items()
        for old, new in prefixes.items()
        if key.startswith(old)
    }
    if not any(key.startswith("text.") for key in state):
        kind = "ContrastiveClip" if which == "all" else "ContrastiveClip or ClipDistillation"
        raise ValueError(f"{path} holds no text tower; expected a checkpoint of {kind}")
    own = towers.state_dict()
    if which == "text":
        own = {key: value for key, value in own.items() if key.startswith("text.")}
    if TABLE in state and TABLE not in own:
        state |= _other_positions(state.pop(TABLE), own)
    shapes = {key: (tuple(state[key].shape), tuple(own[key].shape)) for key in own.keys() & state}
    other = [f"{key} {theirs}, here {ours}" for key, (theirs, ours) in sorted(shapes.items()) if theirs != ours]
    missing, unknown = sorted(own.keys() - state), sorted(state.keys() - own)
    if other or missing or unknown:
        raise ValueError(
            f"{path} is of other towers: other shapes {other[:3]}, missing {missing[:3]}, not known here {unknown[:3]}"
        )
    towers.load_state_dict(state, strict=False)


def _other_positions(table: Tensor, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a learned table becomes in a tower that has none: stretched rows, or nothing where it is rotary."""
    from vispe.models.clip_text import stretch_table

    if f"{STRETCHED}.original" not in own:
        return {}
    longer, frozen = stretch_table(table), own[f"{STRETCHED}.0.rows"].shape[0]
    return {f"{STRETCHED}.original": longer[frozen:], f"{STRETCHED}.0.rows": longer[:frozen]}
