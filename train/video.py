"""Video classification with any video transformer of vispe."""

from typing import Any

from train.image import ImageClassification
from vispe.models.video_vit import EncodedVideoTransformer


class VideoClassification(ImageClassification):
    """Trains and evaluates a video classifier, as ``ImageClassification`` does on images.

    ``init_from`` also takes the weights of an image model, which are inflated (``vispe.convert.inflate``).

    Args:
        model: A video transformer of vispe, ``vid_{s,b}_{encoding}``.
        model_kwargs: Arguments of ``timm.create_model``: num_classes, num_frames, img_size, attention, ...
        settings: Those of ``ImageClassification``; ``cutmix`` is for images.
    """

    def __init__(
        self, model: str = "vid_s_rope_mixed", model_kwargs: dict[str, Any] | None = None, **settings: Any
    ) -> None:
        super().__init__(model, model_kwargs, **settings)
        if not isinstance(self.net, EncodedVideoTransformer):
            raise ValueError(f"VideoClassification: needs a video transformer, e.g. 'vid_s_rope_mixed', got {model!r}")
        if self.hparams.cutmix:
            raise ValueError("VideoClassification: cutmix pastes rectangles of images; use mixup for videos")
        self.num_frames = self.net.patch_embed.num_frames
        self.img_size = self.net.patch_embed.img_size
