"""The embedded emoji with their names, and scenes of them with captions about places."""

from typing import Any, Literal

from torch.utils.data import Dataset

from train.data.base import Size
from train.data.captioned import ImageTextData, Tokenised
from train.data.glyphs import ENDLESS, FreshGlyphs
from vispe.data.emoji import STYLES, Captions, EmojiPairs
from vispe.data.emoji_scenes import THINGS, EmojiScenes

MEAN, STD = 0.75, 0.27  # of the pixels of pairs and scenes


class EmojiCaptions(ImageTextData):
    """Emoji and their names: a drawing style that was not trained, or concepts that were not, are recognised.

    Training pictures vary in place, size and background; evaluation shows them in the middle of white.

    Args:
        hold_out: ``style``: ``test_style`` is not in training; of its pictures those of a tenth of the concepts are for
            validation (156), those of the others for the test (1,397). ``concepts``: 1,242 concepts in all styles are for
            training, 156 for validation, 155 for the test.
        test_style: With ``style``, the one that is evaluated; the other three are trained. A style given in
            ``train_styles`` is then evaluated as one that was seen.
        train_styles: The styles of the training; null is as ``hold_out`` says.
        caption: In training: ``label``, ``tags`` (label and all keywords) or ``drawn`` (label and some keywords).
        eval_caption: In evaluation: ``label`` or ``tags``.
        train_length: Pairs of an epoch; they are new pictures in every epoch.
        common: The options of every image data module.
    """

    def __init__(
        self,
        *,
        hold_out: Literal["style", "concepts"] = "style",
        test_style: str = "noto",
        train_styles: list[str] | None = None,
        caption: Captions = "drawn",
        eval_caption: Literal["label", "tags"] = "tags",
        train_length: int = 4_659,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        _once(self)
        self.hold_out, self.test_style, self.caption, self.eval_caption = hold_out, test_style, caption, eval_caption
        rest = [style for style in STYLES if hold_out == "concepts" or style != test_style]
        self.train_styles, self.train_length = train_styles or rest, train_length

    def train_dataset(self) -> Dataset:
        concepts = "train" if self.hold_out == "concepts" else "all"
        pairs = EmojiPairs(
            self.train_styles, concepts=concepts, size=self.train_size, caption=self.caption, place="random", length=ENDLESS,
            seed=self.seed,
        )  # fmt: skip
        return Tokenised(FreshGlyphs(self.train_length, pairs), self.context, "EmojiCaptions", mean=MEAN, std=STD)

    def eval_dataset(self, split: str, size: Size) -> Dataset:
        styles = STYLES if self.hold_out == "concepts" else (self.test_style,)
        concepts = ("train", "test") if self.hold_out == "style" and split == "test" else split
        pairs = EmojiPairs(styles, concepts=concepts, size=size, caption=self.eval_caption)
        return Tokenised(pairs, self.context, f"EmojiCaptions ({split})", mean=MEAN, std=STD)


class EmojiSceneCaptions(ImageTextData):
    """Scenes of emoji on a grid and what stands left of, right of, above or below what, each with the swapped caption.

    Args:
        grid: Cells (rows, columns).
        objects: Least and greatest number of things in a scene.
        sentences: Least and greatest number of sentences of a caption.
        eval_sentences: The same in evaluation; null is as in training.
        things: How many different things occur.
        train_styles: Drawing styles of the training.
        eval_styles: Those of validation and test.
        train_length: Scenes of an epoch; they are new ones in every epoch.
        val_length: Validation scenes, the same in every run.
        test_length: Test scenes, the same in every run.
        common: The options of every image data module.
    """

    def __init__(
        self,
        *,
        grid: tuple[int, int] = (2, 2),
        objects: tuple[int, int] = (2, 4),
        sentences: tuple[int, int] = (1, 1),
        eval_sentences: tuple[int, int] | None = None,
        things: int = len(THINGS),
        train_styles: list[str] | None = None,
        eval_styles: list[str] | None = None,
        train_length: int = 64_000,
        val_length: int = 500,
        test_length: int = 2_000,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        _once(self)
        self.options = {"grid": grid, "objects": objects, "things": things}
        self.sentences, self.eval_sentences = sentences, eval_sentences or sentences
        self.train_styles, self.eval_styles = train_styles or list(STYLES[:3]), eval_styles or list(STYLES[3:])
        self.train_length, self.lengths = train_length, {"val": val_length, "test": test_length}

    def train_dataset(self) -> Dataset:
        scenes = EmojiScenes(
            "train", self.train_styles, size=self.train_size, sentences=self.sentences, length=ENDLESS, seed=self.seed,
            **self.options,
        )  # fmt: skip
        return Tokenised(FreshGlyphs(self.train_length, scenes), self.context, "EmojiSceneCaptions", mean=MEAN, std=STD)

    def eval_dataset(self, split: str, size: Size) -> Dataset:
        scenes = EmojiScenes(
            split, self.eval_styles, size=size, sentences=self.eval_sentences, length=self.lengths[split], **self.options
        )
        return Tokenised(scenes, self.context, f"EmojiSceneCaptions ({split})", mean=MEAN, std=STD)


def _once(data: ImageTextData) -> None:
    if data.repeats != 1:
        raise ValueError(f"{type(data).__name__}: every picture is a new one, so repeats has no meaning; set it to 1")
