"""DropPos: patches that lost their position say where they belong."""

from functools import partial
from typing import Any, Literal

import torch
from timm.models.vision_transformer import Block
from torch import nn

from train.pretext import PretextTask
from vispe.positions import pretext


class DropPos(PretextTask):
    """Some patches are visible, most of those have their position replaced by one learned vector, and a small decoder
    without positions tells the cell of each of them.

    Wang et al., NeurIPS 2023, arXiv 2309.03576; Haochen-Wang409/DropPos@13f50a8. Ratios, sigma and decoder are by default those
    of the released ViT-B script, which also turns ``attentive`` on (it needs a class token, so it is off here). Any grid, and
    any host whose positions are added to the tokens: ``learned``, ``sincos2d`` (the released one), ``learnable_fourier``, ...
    Training loss as released. Different: accuracy counts every token alike under ``attentive`` too, evaluation is the plain
    cross-entropy, the mask vector is not decayed, the ViT starts as timm's do, and the optimizer's settings are this package's.
    Left out: the further task of reconstructing pixels, the ablations (zero or wrong positions, shuffling, ignoring confident
    tokens).

    Args:
        model: A ViT of vispe whose encoding only adds to the tokens.
        model_kwargs: Arguments of ``timm.create_model``.
        mask_ratio: Share of the patches that the ViT does not see at all.
        pos_mask_ratio: Share of the visible patches without position.
        sigma: Width of the smoothed targets in cells; 0 is off.
        sigma_decay: Let sigma fall linearly to 0, once an ``epoch`` (released) or at every ``step``; ``none`` keeps it.
        normalise: ``columns`` as released, or ``rows``: every smoothed target sums to 1.
        attentive: Weight the tokens by their likeness to the class token in a forward of the whole image.
        decoder_dim: Channels of the decoder.
        decoder_depth: Blocks of the decoder.
        decoder_heads: Attention heads of the decoder.
        common: The options of every pretext task.
    """

    def __init__(
        self,
        model: str = "vit_s_sincos2d",
        model_kwargs: dict[str, Any] | None = None,
        *,
        mask_ratio: float = 0.75,
        pos_mask_ratio: float = 0.75,
        sigma: float = 1.0,
        sigma_decay: Literal["epoch", "step", "none"] = "epoch",
        normalise: Literal["columns", "rows"] = "columns",
        attentive: bool = False,
        decoder_dim: int = 512,
        decoder_depth: int = 2,
        decoder_heads: int = 16,
        **common: Any,
    ) -> None:
        super().__init__(model, model_kwargs, **common)
        self._check_host(attentive)
        if not (0 <= mask_ratio <= 1 and 0 <= pos_mask_ratio <= 1):
            raise ValueError(f"mask_ratio and pos_mask_ratio are shares, got {mask_ratio} and {pos_mask_ratio}")
        self.visible = pretext.share_of(self.cells, 1 - mask_ratio)
        self.dropped = self.visible - pretext.share_of(self.visible, 1 - pos_mask_ratio)
        if self.dropped < 1:
            raise ValueError(
                f"DropPos: {self.visible} of {self.cells} patches are visible and {self.dropped} of them without position; "
                f"both must be at least 1, so lower mask_ratio {mask_ratio} or raise pos_mask_ratio {pos_mask_ratio}"
            )
        pretext.smoothing_map((1, 1), sigma, normalise=normalise)  # refuses bad values at construction
        self.mask_pos_token = nn.Parameter(torch.empty(1, 1, self.net.embed_dim))
        nn.init.normal_(self.mask_pos_token, std=0.02)
        self.decoder = Decoder(self.net.embed_dim, self.cells, dim=decoder_dim, depth=decoder_depth, heads=decoder_heads)

    def _check_host(self, attentive: bool) -> None:
        for name, encoding in self.net.encoding.encodings():
            added = encoding.card.injection == ("tokens",) or getattr(encoding, "method", None) == "input_add"  # SeqPE's
            if not added:
                raise ValueError(
                    f"DropPos: positions of encoding {name!r} cannot be dropped, as they enter by "
                    f"{encoding.card.injection or 'nothing'}; take one that only adds to the tokens: learned, sincos2d, "
                    f"learnable_fourier, ..."
                )
        if attentive and self.net.cls_token is None:
            raise ValueError("DropPos: attentive compares patches with the class token; set model_kwargs.class_token true")

    def no_weight_decay(self) -> set[str]:
        return super().no_weight_decay() | {"mask_pos_token"}

    def encode(self, patches: torch.Tensor, keep: torch.Tensor, dropped: torch.Tensor) -> torch.Tensor:
        """Normalised tokens (B, prefix + K, C) of the patches (B, N, C) at the cells `keep` (B, K), of which `dropped` (B, K)
        have no position."""
        x = patches.gather(1, keep[..., None].expand(-1, -1, patches.shape[-1]))
        x = self.with_prefix(x)
        ctx = self.net.encoding.prepare(self.net.positions(*self.grid, x.device).take(keep))
        hidden = nn.functional.pad(dropped, (self.net.num_prefix_tokens, 0))[..., None]
        x = torch.where(hidden, x + self.mask_pos_token.to(x.dtype), self.net.encoding.tokens(x, ctx))
        x = self.net.norm_pre(self.net.pos_drop(x))
        for i in range(len(self.net.blocks)):
            x = self.net.run_block(i, x, ctx)
        return self.final_norm(x)

    def forward(self, images: torch.Tensor, keep: torch.Tensor, dropped: torch.Tensor) -> torch.Tensor:
        """Logits (B, K, cells) for the visible patches of images (B, channels, H, W)."""
        tokens = self.encode(self.patches(images), keep, dropped)
        return self.decoder(tokens)[:, self.net.num_prefix_tokens :].float()

    @torch.no_grad()
    def attention(self, images: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        """Weights (B, K) of the visible patches, 1 in sum, from a forward with all patches and positions."""
        patches = self.patches(images)
        every = torch.arange(self.cells, device=images.device).expand(len(images), -1)
        tokens = self.encode(patches, every, torch.zeros_like(every, dtype=torch.bool)).float()
        weight = pretext.attentive_weights(tokens[:, 0], tokens[:, self.net.num_prefix_tokens :]).gather(1, keep)
        return weight / weight.sum(dim=1, keepdim=True)

    def sigma_now(self) -> float:
        """Width of the targets at this point of the training."""
        p = self.hparams
        if p.sigma == 0 or p.sigma_decay == "none":
            return p.sigma
        trainer = self.trainer
        if p.sigma_decay == "step":
            done, end = trainer.global_step, trainer.estimated_stepping_batches
        else:
            done, end = self.current_epoch, trainer.max_epochs or -1
            if end < 1:
                raise ValueError("DropPos: sigma_decay 'epoch' needs trainer.max_epochs; set it, or sigma_decay 'step'")
        return p.sigma * max(0.0, 1 - done / end)

    def step(
        self, images: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        draw = {"device": images.device, "generator": generator}
        keep = pretext.random_order(len(images), self.cells, **draw)[:, : self.visible]
        dropped = pretext.random_subset(len(images), self.visible, self.dropped, **draw)
        logits = self(images, keep, dropped)
        weight, targets = dropped, None
        if self.training:
            weight = dropped * self.attention(images, keep) if self.hparams.attentive else dropped
            targets = pretext.smoothing_map(
                self.grid, self.sigma_now(), normalise=self.hparams.normalise, device=images.device
            )
        return pretext.position_loss(logits, keep, weight, targets), pretext.position_accuracy(logits, keep, dropped)


class Decoder(nn.Module):
    """A few blocks without positions and a linear classifier over the cells.

    Args:
        width: channels of the tokens that come in.
        cells: classes.
    """

    def __init__(self, width: int, cells: int, *, dim: int, depth: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Linear(width, dim)
        norm = partial(nn.LayerNorm, eps=1e-6)
        self.blocks = nn.Sequential(*(Block(dim, heads, qkv_bias=True, norm_layer=norm) for _ in range(depth)))
        self.norm = norm(dim)
        self.head = nn.Linear(dim, cells)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens (B, N, width) to logits (B, N, cells)."""
        return self.head(self.norm(self.blocks(self.embed(x))))
