"""Contrastive training of an image and a text tower (CLIP), with swapped captions as further negatives if there are some."""

from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.nn import functional as F

from train.clip_metrics import ClipScores
from train.clip_towers import OPEN_CLIP, TextPositions, TwoTowers, build_towers, set_positions, start_from
from train.data.captioned import Pair
from train.schedule import ScheduledTask


class ContrastiveClip(ScheduledTask):
    """Trains an image and a text tower so that an image is nearest to its own caption, and a caption to its own image.

    Evaluation logs ``image_to_text`` and ``text_to_image`` (R@1 among all pairs), and ``swap``, the share of images nearer to
    their caption than to the one with two things swapped (chance: 0.5), also by the length of captions in tokens.

    Args:
        model: Image tower: any timm or vispe model; or ``open_clip:NAME``, which brings a text tower too (names that
            ``vispe.open_clip.register`` adds among them).
        model_kwargs: Arguments of ``timm.create_model``, or of ``open_clip.create_model``.
        pretrained: With ``open_clip:``, a file of weights, or a tag that open_clip has locally; null is random.
        embed_dim: Channels of the common space; not with ``open_clip:``.
        text_width: Channels of the text tower; this and the next two not with ``open_clip:``.
        text_heads: Heads of the text tower.
        text_layers: Blocks of the text tower.
        text_positions: ``learned`` (a table), ``rotary`` (TULIP) or ``stretched`` (Long-CLIP: a learned table of
            ``context_length`` rows becomes 4 times as long behind its first 20).
        context_length: Most tokens of a caption, start and end included; longer ones stop the run. With ``open_clip:`` it
            counts for ``rotary`` alone.
        text_encoding: With ``rotary``, any encoding of one axis.
        text_encoding_kwargs: Its options; null is TULIP's for ``rope_axial``, else the encoding's own.
        init_from: A checkpoint of this task, for both towers. Of one with a learned table ``stretched`` stretches the table,
            and ``rotary`` leaves it out.
        text_from: A checkpoint of ``ClipDistillation`` or of this task, for the text tower alone: TULIP's second stage.
        negatives: ``batch`` the other captions; ``swapped`` also the swapped ones (NegCLIP, Yuksekgonul et al. 2023).
        lengths: Longest captions, in tokens, of all but the last class of lengths in evaluation; empty is no classes.
        optimizer: Any timm optimizer name.
        lr: Peak learning rate.
        weight_decay: Weight decay; biases, vectors, the text's table and what the image tower names are exempt.
        optimizer_kwargs: Further arguments of the optimizer: betas, eps, ...
        warmup: Share of all steps with a linearly rising learning rate.
        warmup_lr: Learning rate at which the warm-up starts.
        min_lr: Learning rate at the end of the cosine.
    """

    def __init__(
        self,
        model: str = "vit_ti_rope_mixed",
        model_kwargs: dict[str, Any] | None = None,
        *,
        pretrained: str | None = None,
        embed_dim: int = 128,
        text_width: int = 128,
        text_heads: int = 4,
        text_layers: int = 2,
        text_positions: TextPositions = "rotary",
        context_length: int = 77,
        text_encoding: str = "rope_axial",
        text_encoding_kwargs: dict[str, Any] | None = None,
        init_from: str | None = None,
        text_from: str | None = None,
        negatives: Literal["batch", "swapped"] = "batch",
        lengths: list[int] | None = None,
        optimizer: str = "adamw",
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        optimizer_kwargs: dict[str, Any] | None = None,
        warmup: float = 0.05,
        warmup_lr: float = 0.0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model, kwargs = model, dict(model_kwargs or {})
        text = {"width": text_width, "heads": text_heads, "layers": text_layers}
        self.net = build_towers(
            model, kwargs, pretrained=pretrained, embed_dim=embed_dim, text=text, context_length=context_length
        )
        set_positions(
            self.net.text, text_positions, context_length=context_length, encoding=text_encoding, options=text_encoding_kwargs
        )
        self.in_chans = kwargs.get("in_chans", 3)
        self.img_size = image_size(self.net.image) if model.startswith(OPEN_CLIP) else kwargs.get("img_size", 224)
        self.scores = nn.ModuleList()
        self.conditions: list[str] = []

    # set-up

    def start_weights(self) -> None:
        p = self.hparams
        for path, which in ((p.init_from, "all"), (p.text_from, "text")):
            if path:
                start_from(self.net, path, which=which)
                rank_zero_info(f"weights ({which}) are from {path}")

    def setup(self, stage: str) -> None:
        data = self.trainer.datamodule
        sizes = data.sizes()
        self.conditions = ["", *("@" + "x".join(map(str, size)) for size in sizes[1:])]
        self.scores = nn.ModuleList(ClipScores(tuple(self.hparams.lengths or ())) for _ in sizes)

    def optimised(self) -> TwoTowers:
        return self.net

    @property
    def context(self) -> int:
        """Most tokens of a caption."""
        return self.net.text.context_length

    # steps

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        """Scaled cosines (images, texts)."""
        return self.net.scale() * self.net.encode_image(images) @ self.net.encode_text(ids).T

    def _texts(self, batch: Pair) -> tuple[Tensor, Tensor | None]:
        """Features of the captions and of the swapped ones, by one pass."""
        if batch.swapped.shape[1] == 0:
            return self.net.encode_text(batch.ids), None
        both = self.net.encode_text(torch.cat((batch.ids, batch.swapped)))
        return tuple(both.chunk(2))

    def training_step(self, batch: Pair, batch_idx: int) -> Tensor:
        swapped = None
        if self.hparams.negatives == "swapped":
            if batch.swapped.shape[1] == 0:
                raise ValueError(
                    "ContrastiveClip: negatives 'swapped' needs data with swapped captions, e.g. EmojiSceneCaptions"
                )
            text, swapped = self._texts(batch)
        else:
            text = self.net.encode_text(batch.ids)
        features = (self._all(self.net.encode_image(batch.image)), self._all(text), self._all(swapped))
        loss = contrastive_loss(*features[:2], self.net.scale(), swapped=features[2])
        self.log("train/loss", loss, prog_bar=True)
        self.log("train/scale", self.net.scale())
        self.log("train/lr", self.optimizers().param_groups[-1]["lr"])
        return loss

    def _all(self, features: Tensor | None) -> Tensor | None:
        """Those of all processes, (processes · B, E), with gradients."""
        if features is None or self.trainer.world_size == 1:
            return features
        return self.all_gather(features, sync_grads=True).flatten(0, 1)

    def _evaluate(self, batch: Pair | None, loader: int) -> None:
        if batch is None:  # every sample of it was unreadable, and reported
            return
        text, swapped = self._texts(batch)
        tokens = batch.ids.argmax(dim=-1) + 1  # the end token has the highest id
        self.scores[loader].update(self.net.encode_image(batch.image), text, batch.label, tokens, swapped)

    def validation_step(self, batch: Pair | None, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, dataloader_idx)

    def test_step(self, batch: Pair | None, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._evaluate(batch, dataloader_idx)

    def _finish(self, stage: str) -> None:
        for condition, scores in zip(self.conditions, self.scores):
            for name, value in scores.compute().items():
                shown = not condition and name in ("image_to_text", "swap")
                self.log(f"{stage}/{name}{condition}", value, prog_bar=shown, sync_dist=True)
            scores.reset()

    def on_validation_epoch_end(self) -> None:
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        self._finish("test")


def contrastive_loss(image: Tensor, text: Tensor, scale: Tensor, *, swapped: Tensor | None = None) -> Tensor:
    """CLIP's loss of unit features (B, E): the mean of both cross-entropies, each image with its text being a pair.

    With ``swapped`` (B, E) images have 2B captions to choose from (NegCLIP); captions still have B images.
    """
    target = torch.arange(len(image), device=image.device)
    of_images = scale * image @ (text if swapped is None else torch.cat((text, swapped))).T
    of_texts = scale * text @ image.T
    return (F.cross_entropy(of_images, target) + F.cross_entropy(of_texts, target)) / 2


def image_size(tower: nn.Module) -> tuple[int, int]:
    """(H, W) of an image tower of open_clip."""
    size = tower.image_size
    return (size, size) if isinstance(size, int) else tuple(size)
