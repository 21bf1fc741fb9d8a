"""Pictures with known cameras from a folder, for view synthesis: nerfstudio, COLMAP or a camera rig."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch.utils.data import DataLoader, Dataset

from train.data.base import ImageData, Size
from train.data.images import Named
from train.data.sampling import Key
from train.data.scenes import Views
from vispe.data.camera_rig import read_rig
from vispe.data.colmap import read_colmap
from vispe.data.nerfstudio import read_nerfstudio
from vispe.data.posed import PosedImages
from vispe.positions import canonical_poses
from vispe.positions.camera_formats import invert_pose

Form = Literal["nerfstudio", "colmap", "rig"]


def read_posed(path: str | Path, form: Form | None = None) -> PosedImages:
    """Pictures and cameras in one of the known forms; None takes the form of the files that are there."""
    path = Path(path)
    if form is None:
        if path.is_file():
            form = "rig" if '"cams"' in path.read_text() else "nerfstudio"
        else:
            form = "nerfstudio" if (path / "transforms.json").is_file() else "colmap"
    readers = {"nerfstudio": read_nerfstudio, "colmap": read_colmap, "rig": read_rig}
    if form not in readers:
        raise ValueError(f"read_posed: form must be one of {tuple(readers)}, got {form!r}")
    return readers[form](path)


class PosedViews(Dataset):
    """Given views and targets out of one capture.

    Args:
        posed: All pictures.
        given: Numbers of those that may be given.
        targets: Numbers of those that are asked for.
        window: Given views come from this many pictures nearest to the target (by the camera's place).
        scale: World units that count as 1.
        seed: A training sample is a function of it, the epoch and the place; None makes the fixed choice of an evaluation: the
            nearest views.
    """

    def __init__(
        self, posed: PosedImages, given: Sequence[int], targets: Sequence[int], *, inputs: int, window: int, scale: float,
        size: Size, seed: int | None,
    ) -> None:  # fmt: skip
        self.posed, self.given, self.targets = posed, np.asarray(given), list(targets)
        self.inputs, self.window, self.scale, self.size, self.seed = inputs, window, scale, size, seed
        self.centres = invert_pose(posed.world_to_camera)[:, :3, 3].numpy()

    def __len__(self) -> int:
        return len(self.targets)

    def name(self, index: int) -> str:
        return self.posed.names[self.targets[index]].replace("/", "_")

    def views(self, key: Key | int) -> list[int]:
        """Numbers of the given pictures, then of the target."""
        target = self.targets[key.index if isinstance(key, Key) else key]
        others = self.given[self.given != target]
        near = others[np.argsort(np.linalg.norm(self.centres[others] - self.centres[target], axis=-1), kind="stable")]
        if isinstance(key, Key) and self.seed is not None:
            near = np.random.default_rng((self.seed, key.epoch, key.place)).permutation(near[: self.window])
        return [*near[: self.inputs].tolist(), target]

    def __getitem__(self, key: Key | int) -> Views:
        views = self.views(key)
        images, intrinsics = self.posed.load(views, size=self.size)
        poses = canonical_poses(self.posed.world_to_camera[views])
        poses[:, :3, 3] /= self.scale
        return Views(images[:-1], images[-1:], poses, intrinsics)


class PosedFolder(ImageData):
    """One capture: some views are given, another is to be rendered. The first given camera is the origin of the world.

    Args:
        root: A folder with ``transforms.json`` or a COLMAP text model, or a JSON file of either kind or of a camera rig.
        form: ``nerfstudio``, ``colmap`` or ``rig``; null looks which it is.
        inputs: Given views.
        window: Training draws the given views from this many nearest to the target.
        holdout: Every n-th picture, by name, is for evaluation and never seen in training.
        scale: World units that count as 1; null takes the mean distance of the cameras from their centre.
        common: The options of every image data module; pictures are resized and cut to ``img_size``.
    """

    def __init__(
        self,
        root: str,
        *,
        form: Form | None = None,
        inputs: int = 2,
        window: int = 8,
        holdout: int = 8,
        scale: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if self.eval_sizes:
            raise ValueError("PosedFolder: evaluates at img_size alone; leave eval_sizes empty")
        posed = read_posed(root, form)
        order = sorted(range(len(posed)), key=lambda i: posed.names[i])
        self.held = order[::holdout]
        self.seen = [i for i in order if i not in set(self.held)]
        if len(self.seen) <= inputs or window < inputs:
            raise ValueError(
                f"PosedFolder: {len(posed)} pictures, {len(self.seen)} of them for training, and a window of {window} are too "
                f"few for {inputs} given views and a target; lower inputs, or raise holdout or window"
            )
        centres = invert_pose(posed.world_to_camera)[:, :3, 3]
        spread = float((centres - centres.mean(0)).norm(dim=-1).mean())
        self.posed, self.inputs, self.window = posed, inputs, window
        self.scale = (spread or 1.0) if scale is None else scale

    def setup(self, stage: str) -> None:
        """Take the size over from the model."""
        if self.img_size is None:
            size = self.trainer.lightning_module.img_size
            self.img_size = (size, size) if isinstance(size, int) else tuple(size)

    def _views(self, targets: list[int], seed: int | None) -> PosedViews:
        return PosedViews(
            self.posed, self.seen, targets, inputs=self.inputs, window=self.window, scale=self.scale, size=self.train_size,
            seed=seed,
        )  # fmt: skip

    def train_dataset(self) -> Dataset:
        return self._views(self.seen, self.seed)

    def val_dataloader(self) -> list[DataLoader]:
        return [self._eval_loader(self._views(self.held, None))]

    def test_dataloader(self) -> list[DataLoader]:
        return self.val_dataloader()

    def predict_dataset(self) -> Dataset:
        return Named(self._views(self.held, None))
