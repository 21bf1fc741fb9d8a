"""What a trained (or untrained) model does with positions: `diagnose`, and the pure functions behind it."""

from .attention import AttentionDistance, LogitDecay, attention_distance, logit_decay, mean_distance
from .decodability import Decodability, decodability, position_r2
from .diagnosis import NAMES, Diagnosis, diagnose
from .equivariance import Change, equivariance
from .host import as_host, evaluating, walk
from .images import load_folder, textures
from .padding import PaddingPattern, padding_pattern
from .relevance import Relevance, relevance
from .three_cell import ThreeCell, three_cell, three_cells
from .wavelengths import Wavelengths, wavelengths

__all__ = [
    "NAMES", "AttentionDistance", "Change", "Decodability", "Diagnosis", "LogitDecay", "PaddingPattern", "Relevance",
    "ThreeCell", "Wavelengths", "as_host", "attention_distance", "decodability", "diagnose", "equivariance", "evaluating",
    "load_folder", "logit_decay", "mean_distance", "padding_pattern", "position_r2", "relevance", "textures", "three_cell",
    "three_cells", "walk", "wavelengths",
]  # fmt: skip
