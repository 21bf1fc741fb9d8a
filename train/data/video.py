"""Video files in class folders, decoded by PyAV, with seeded frame sampling and augmentation of whole clips."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from train.data.classes import ClassFolders
from train.data.clips import Clip, VideoData
from train.data.images import FileImages, Named

EXTENSIONS = (".avi", ".mp4", ".mkv", ".mov", ".webm", ".m4v", ".mpg", ".mpeg")


@dataclass(frozen=True)
class ClipSampling:
    """Which frames of a video make a clip, and how clips are augmented.

    Args:
        stride: Frames from one of the clip to the next: a clip of a video, at random in training and from its middle in
            evaluation. null spreads the clip over the whole video: one frame of each of as many equal parts (TSN), at
            random in training and the middle one in evaluation; a video with fewer frames repeats some.
        scale: Least and greatest share of the frame area in the random resized crop.
        ratio: Least and greatest aspect ratio of the random resized crop.
        hflip: Probability of a horizontal flip of the whole clip.
        crop_pct: Evaluation: share of the resized frame that the centre crop keeps.
        mean: Channel means of the normalisation.
        std: Channel deviations of the normalisation.
    """

    stride: int | None = None
    scale: tuple[float, float] = (0.5, 1.0)
    ratio: tuple[float, float] = (0.75, 4 / 3)
    hflip: float = 0.5
    crop_pct: float = 0.875
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def train(self, clip: Clip) -> "ClipTransform":
        """Decoded frames to an augmented (3, frames, H, W)."""
        crop = v2.RandomResizedCrop(list(clip[1:]), scale=self.scale, ratio=self.ratio, antialias=True)
        return ClipTransform(clip[0], self, v2.Compose([crop, v2.RandomHorizontalFlip(self.hflip)]), random=True)

    def evaluate(self, clip: Clip) -> "ClipTransform":
        """Decoded frames to (3, frames, H, W), the same in every run."""
        edges = [round(n / self.crop_pct) for n in clip[1:]]
        return ClipTransform(clip[0], self, v2.Compose([Cover(edges), v2.CenterCrop(list(clip[1:]))]), random=False)


DEFAULT = ClipSampling()


class Cover(torch.nn.Module):
    """Resize frames, keeping their aspect, until they cover (height, width)."""

    def __init__(self, edges: list[int]) -> None:
        super().__init__()
        self.edges = edges

    def forward(self, clip: Tensor) -> Tensor:
        factor = max(e / n for e, n in zip(self.edges, clip.shape[-2:]))
        size = [max(e, round(factor * n)) for e, n in zip(self.edges, clip.shape[-2:])]
        return v2.functional.resize(clip, size, antialias=True)


class ClipTransform:
    """The frames of a decoded video (``Frames``) to a normalised float tensor (3, frames, H, W)."""

    def __init__(self, count: int, sampling: ClipSampling, spatial: Any, *, random: bool) -> None:
        self.count, self.sampling, self.spatial, self.random = count, sampling, spatial, random
        self.normalise = v2.Normalize(list(sampling.mean), list(sampling.std))

    def __call__(self, frames: "Frames") -> Tensor:
        chosen = sample_frames(len(frames), self.count, stride=self.sampling.stride, random=self.random)
        clip = self.spatial(frames.rgb(chosen))  # (frames, 3, H, W) uint8
        return self.normalise(clip.float() / 255).transpose(0, 1)


def sample_frames(total: int, count: int, *, stride: int | None, random: bool) -> list[int]:
    """Numbers of ``count`` frames of ``total``; random draws come from torch's global generator."""
    if stride is None:
        share = torch.rand(count) if random else torch.full((count,), 0.5)
        return ((torch.arange(count) + share) * total / count).long().clamp(max=total - 1).tolist()
    span = (count - 1) * stride + 1
    if span > total:
        raise ValueError(f"{count} frames with a stride of {stride} need a video of {span} frames, this one has {total}")
    start = int(torch.randint(total - span + 1, ())) if random else (total - span) // 2
    return list(range(start, start + span, stride))


class Frames:
    """All frames of a video as they were decoded; only those asked for become RGB."""

    def __init__(self, frames: list[Any]) -> None:
        self.frames = frames

    def __len__(self) -> int:
        return len(self.frames)

    def rgb(self, numbers: list[int]) -> Tensor:
        """(len(numbers), 3, H, W) uint8."""
        pictures = {n: torch.from_numpy(self.frames[n].to_ndarray(format="rgb24")) for n in dict.fromkeys(numbers)}
        return torch.stack([pictures[n] for n in numbers]).permute(0, 3, 1, 2)


def open_video(path: str) -> Frames:
    """Decode the first video stream completely.

    Raises:
        ImportError: PyAV is missing.
        ValueError: no video stream, no frame, fewer frames than the file says it holds, or frames of several sizes.
        av.error.FFmpegError: data that cannot be decoded.
    """
    try:
        import av
    except ImportError as error:
        raise ImportError("reading video files needs PyAV: pip install 'vispe[video]'") from error
    with av.open(path) as container:
        if not container.streams.video:
            raise ValueError("no video stream in it")
        stream = container.streams.video[0]
        said = stream.frames  # 0 where the container does not say
        frames = list(container.decode(stream))
    if not frames or len(frames) < said:
        raise ValueError(f"{len(frames)} frames could be decoded of {said or 'any'} that the file should hold")
    if len({(f.width, f.height) for f in frames}) > 1:
        raise ValueError("its frames have several sizes")
    return Frames(frames)


class VideoFiles(FileImages):
    """Video files; arguments as of :class:`FileImages`."""

    def read(self, index: int) -> tuple[Frames, int]:
        path, label = self.samples[index]
        frames = open_video(path)
        sampling = self.transform.sampling
        if sampling.stride is not None:  # too short a video counts as unreadable, by name
            sample_frames(len(frames), self.transform.count, stride=sampling.stride, random=False)
        return frames, label


class VideoFolderData(ClassFolders, VideoData):
    """Video files in class folders: ``root/train/CLASS/*.mp4`` and ``root/val/CLASS/*.mp4``.

    Args:
        root: The folder that holds ``train`` and ``val`` (and ``test``, else ``val`` serves for it).
        sampling: Which frames make a clip, augmentation, crop and normalisation.
        predict_dir: A folder of videos, at any depth and without labels, for ``predict``; null predicts the test split.
        common: The options of every video data module.
    """

    item = "VIDEO"

    def __init__(
        self, root: str, *, sampling: ClipSampling = DEFAULT, predict_dir: str | None = None, **common: Any
    ) -> None:
        super().__init__(**common)
        self.root, self.sampling, self.predict_dir = Path(root), sampling, predict_dir

    def _videos(self, split: str, transform: ClipTransform) -> VideoFiles:
        folder, labels = self.split_dir(split), {name: label for label, name in enumerate(self.classes)}
        samples = []
        for place in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
            if place.name not in labels:
                raise ValueError(f"VideoFolderData: class {place.name!r} of {folder} is not in {self.root / 'train'}")
            found = videos(place)
            if not found:
                raise FileNotFoundError(f"VideoFolderData: no video in {place}; known endings are {EXTENSIONS}")
            samples += [(path, labels[place.name]) for path in found]
        return VideoFiles(samples, transform=transform, corrupt=self.corrupt, seed=self.seed)

    def train_dataset(self) -> Dataset:
        return self._videos("train", self.sampling.train(self.train_size))

    def eval_dataset(self, split: str, size: Clip) -> Dataset:
        return self._videos(split, self.sampling.evaluate(size))

    def predict_dataset(self) -> Dataset:
        if self.predict_dir is None:
            return super().predict_dataset()
        found = videos(Path(self.predict_dir))
        if not found:
            raise FileNotFoundError(f"VideoFolderData: no video in predict_dir {self.predict_dir}")
        transform = self.sampling.evaluate(self.train_size)
        return Named(VideoFiles([(path, -1) for path in found], transform=transform, corrupt=self.corrupt))


def videos(folder: Path) -> list[str]:
    """Video files at any depth, sorted."""
    return sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS)
