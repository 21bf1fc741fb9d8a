"""Position prediction: a ViT without any position says where each patch belongs."""

from typing import Any

import torch
from torch import nn

from train.pretext import PretextTask
from vispe.positions import pretext


class PositionPrediction(PretextTask):
    """Every patch asks, a random share of the patches (the context) answers, and a linear classifier tells each patch's cell.

    After Zhai et al., Position Prediction as an Effective Pretraining Strategy (MP3), ICML 2022, arXiv 2207.07611. No code
    was published, and there are no official numbers to compare with. From the paper's abstract and a reader's summary of it:
    no positional input, all patches as queries, a random context as keys and values, cross-entropy over all cells. Chosen
    here, without the paper's word for it: one context for an image in all blocks, the loss on all patches with the context
    among them, the default share, prefix tokens always in the context, the optimizer's settings. Keys outside the context
    are masked and not left out, so that the attention costs as much as with all of them.

    Args:
        model: A ViT of vispe without encoding (``vit_*_none``). The classifier that starts from the checkpoint may have any.
        model_kwargs: Arguments of ``timm.create_model``.
        context_ratio: Share of the patches that are visible as keys and values, at least one patch.
        common: The options of every pretext task.
    """

    def __init__(
        self,
        model: str = "vit_s_none",
        model_kwargs: dict[str, Any] | None = None,
        *,
        context_ratio: float = 0.25,
        **common: Any,
    ) -> None:
        super().__init__(model, model_kwargs, **common)
        found = [name for name, encoding in self.net.encoding.encodings() if encoding.card.family != "none"]
        if found:
            raise ValueError(
                f"PositionPrediction: the model must not be told positions, got encoding {found[0]!r}; take vit_*_none here "
                f"and give the encoding to the classifier that starts from the checkpoint (init_from)"
            )
        self.context = pretext.share_of(self.cells, context_ratio)
        if self.context < 1:
            raise ValueError(f"PositionPrediction: context_ratio {context_ratio} of {self.cells} patches leaves no context")
        self.head = nn.Linear(self.net.embed_dim, self.cells)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Logits (B, N, cells) for all patches of images (B, channels, H, W); `context` (B, N) bool is what they may see."""
        x, ctx = self.net.start(self.patches(images), self.net.positions(*self.grid, images.device))
        prefix = self.net.num_prefix_tokens
        mask = nn.functional.pad(context, (prefix, 0), value=True)[:, None, None]  # (B, 1, 1, prefix + N)
        for i in range(len(self.net.blocks)):
            x = self.net.run_block(i, x, ctx, mask)
        return self.head(self.final_norm(x)[:, prefix:]).float()

    def step(
        self, images: torch.Tensor, generator: torch.Generator | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        draw = {"device": images.device, "generator": generator}
        logits = self(images, pretext.random_subset(len(images), self.cells, self.context, **draw))
        cells = torch.arange(self.cells, device=images.device).expand(len(images), -1)
        everything = torch.ones_like(cells, dtype=torch.float32)
        return pretext.position_loss(logits, cells, everything), pretext.position_accuracy(logits, cells, everything)
