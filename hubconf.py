"""Entry points for torch.hub: every registered name, e.g. torch.hub.load(".", "vit_b_comrope", source="local")."""

dependencies = ["torch", "timm"]

from vispe.models.video_zoo import *  # noqa: E402, F403
from vispe.models.vit_zoo import *  # noqa: E402, F403  timm's register_model fills __all__ with the names
