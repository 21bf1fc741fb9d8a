"""What video data modules share, and the Two-Shot clips that vispe draws."""

from typing import Any, Literal

from torch.utils.data import Dataset

from train.data.base import ImageData, as_size
from train.data.glyphs import ENDLESS, FreshGlyphs
from vispe.data.two_shot import CLASSES, TwoShot

Clip = tuple[int, int, int]  # frames, height, width
MEAN, STD = 0.4, 0.27  # of the pixels of Two-Shot clips


class VideoData(ImageData):
    """Base of the video data modules: what ``ImageData`` calls a size is (frames, height, width) here.

    Args:
        num_frames: Frames of a training clip; null takes the model's ``num_frames``.
        eval_clips: Further sizes, [frames, height, width] each, at which every validation and test run evaluates.
        common: The options of every image data module; ``eval_clips`` stands in the place of ``eval_sizes``.
    """

    def __init__(self, *, num_frames: int | None = None, eval_clips: list[Clip] | None = None, **common: Any) -> None:
        if common.get("eval_sizes"):
            raise ValueError(f"{type(self).__name__}: videos have eval_clips, [frames, height, width] each, no eval_sizes")
        super().__init__(**common)
        self.num_frames = num_frames
        self.eval_sizes = [as_clip(clip) for clip in eval_clips or []]

    @property
    def train_size(self) -> Clip:
        """(frames, height, width) of a training clip, after the model's have been taken over."""
        if self.num_frames is None:
            raise ValueError(f"{type(self).__name__} has no num_frames and no model to take it from; set data.num_frames")
        return (self.num_frames, *super().train_size)

    def setup(self, stage: str) -> None:
        if self.num_frames is None:
            self.num_frames = self.trainer.lightning_module.num_frames
        super().setup(stage)


def as_clip(value: Clip) -> Clip:
    """(frames, height, width), checked."""
    clip = tuple(value)
    if len(clip) != 3 or min(clip) < 1:
        raise ValueError(f"a clip size is [frames, height, width], got {value!r}")
    return (clip[0], *as_size(clip[1:]))


class Standardised(Dataset):
    """Clips with pixels of about zero mean and unit deviation."""

    def __init__(self, clips: Dataset) -> None:
        self.clips = clips

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        clip, label = self.clips[index]
        return (clip - MEAN) / STD, label


class TwoShotClips(VideoData):
    """Two-Shot motion, drawn by vispe: 20 classes, of which the order of the shots makes two of each pair.

    ``test/pair`` counts a class of the right pair as right, whatever its order.

    Args:
        train_length: Clips of an epoch; they are new ones in every epoch.
        val_length: Validation clips, the same in every run.
        test_length: Test clips, the same in every run.
        eval_pace: What more frames mean in evaluation: ``denser`` the same motion seen more often, ``longer`` the same
            steps from frame to frame.
        common: The options of every video data module.
    """

    num_classes = len(CLASSES)
    class_groups = {"pair": [k // 2 for k in range(len(CLASSES))]}

    def __init__(
        self,
        *,
        train_length: int = 30_000,
        val_length: int = 1_000,
        test_length: int = 2_000,
        eval_pace: Literal["denser", "longer"] = "denser",
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if self.repeats != 1:
            raise ValueError("TwoShotClips: every clip is a new one, so repeats has no meaning; set it to 1")
        self.train_length, self.lengths = train_length, {"val": val_length, "test": test_length}
        self.eval_pace = eval_pace

    def train_dataset(self) -> Dataset:
        frames, *size = self.train_size
        clips = TwoShot("train", size=tuple(size), frames=frames, length=ENDLESS, seed=self.seed)
        return FreshGlyphs(self.train_length, Standardised(clips))

    def eval_dataset(self, split: str, size: Clip) -> Dataset:
        frames, *pixels = size
        return Standardised(
            TwoShot(split, size=tuple(pixels), frames=frames, pace=self.eval_pace, length=self.lengths[split])
        )
