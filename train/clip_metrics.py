"""Retrieval in both directions and the swap test, over all processes and by the length of captions."""

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

CHUNK = 1024  # rows of similarities at a time


class ClipScores(Metric):
    """Collects features of an evaluation, scores them at its end.

    - ``image_to_text``: share of images whose nearest caption has their label; ``text_to_image`` the other way round.
    - ``swap``: share of images nearer to their caption than to the swapped one; equal is half right. Chance is 50 %.
    - ``.../9-16`` and so on: the same over the captions of that many tokens, start and end included, among all candidates.

    Args:
        edges: Longest captions of all but the last class of lengths, rising.
    """

    def __init__(self, edges: tuple[int, ...] = ()) -> None:
        super().__init__()
        if list(edges) != sorted(set(edges)):
            raise ValueError(f"lengths of captions must rise, got {list(edges)}")
        self.edges = edges
        for name in ("image", "text", "label", "tokens", "margin"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, image: Tensor, text: Tensor, label: Tensor, tokens: Tensor, swapped: Tensor | None) -> None:
        """Unit features (B, E) of images, captions and swapped captions; labels and numbers of tokens (B,)."""
        self.image.append(image)
        self.text.append(text)
        self.label.append(label)
        self.tokens.append(tokens)
        nan = torch.full((len(image),), float("nan"), device=image.device)
        self.margin.append(nan if swapped is None else (image * text).sum(-1) - (image * swapped).sum(-1))

    def compute(self) -> dict[str, Tensor]:
        """Shares in 0..1 by name."""
        image, text, label, tokens, margin = (
            dim_zero_cat(getattr(self, name)) for name in ("image", "text", "label", "tokens", "margin")
        )
        scores = {"image_to_text": nearest(image, text, label), "text_to_image": nearest(text, image, label)}
        if not margin.isnan().any():
            scores["swap"] = (margin > 0).float() + 0.5 * (margin == 0).float()
        results = {name: score.mean() for name, score in scores.items()}
        lows, highs = [1, *(edge + 1 for edge in self.edges)], [*self.edges, None]
        for low, high in zip(lows, highs):
            inside = (tokens >= low) & (tokens <= (high or tokens.max()))
            if self.edges and inside.any():
                at = f"{low}-{high}" if high else f"{low}+"
                results |= {f"{name}/{at}": score[inside].mean() for name, score in scores.items()}
        return results


def nearest(queries: Tensor, candidates: Tensor, label: Tensor) -> Tensor:
    """(N,) 1 where the candidate of the largest product has the query's label, else 0."""
    found = torch.cat([(part @ candidates.T).argmax(dim=1) for part in queries.split(CHUNK)])
    return (label[found] == label).float()
