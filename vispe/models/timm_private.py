"""The private timm helpers that a guest model cannot do without, in one place (tested for timm 1.0.31)."""

from timm.models._features import feature_take_indices
from timm.models._input import update_model_args, update_model_input_size

__all__ = ["feature_take_indices", "update_model_args", "update_model_input_size"]
