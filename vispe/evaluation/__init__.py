"""How good generated pictures are: FID, sFID, inception score, precision and recall, and feature distance for work offline."""

from .frechet import FeatureStatistics, Statistics, frechet_distance, read_adm, statistics
from .inception_score import inception_score
from .judge import GlyphJudge
from .manifold import precision_recall

__all__ = [
    "FeatureStatistics", "GlyphJudge", "Statistics", "frechet_distance", "inception_score", "precision_recall", "read_adm",
    "statistics",
]  # fmt: skip
