"""What an encoding does, as numbers (`data`) and as pictures (`figures`). No figure touches the global backend."""

from .data import Decay, decay_curve, impulse_response, signal_kind, similarity_map
from .figures import decay_plot, similarity_plot, wavelength_plot

__all__ = [
    "Decay",
    "decay_curve",
    "decay_plot",
    "impulse_response",
    "signal_kind",
    "similarity_map",
    "similarity_plot",
    "wavelength_plot",
]
