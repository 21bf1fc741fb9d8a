"""Contrastive training: losses by hand, scores, positions of the text tower, data, long captions, start weights, recipes."""

import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from PIL import Image
from test_recipes import parse
from test_train_ddp import TWO, two_processes
from torch.nn import functional as F
from train_helpers import losses, run

from train.clip import ContrastiveClip, contrastive_loss
from train.clip_metrics import ClipScores
from train.data.captioned import CaptionedFiles, Tokenised
from train.data.emoji import EmojiCaptions, EmojiSceneCaptions
from train.data.sampling import Key
from vispe.data import EmojiPairs, EmojiScenes
from vispe.models.clip_text import tokenize

CONFIGS = Path(__file__).parents[2] / "configs/clip"
IMAGE = {
    "img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 2, "class_token": False, "global_pool": "avg",
}  # fmt: skip
SMALL = {"embed_dim": 16, "text_width": 16, "text_heads": 2, "text_layers": 1}
SCENES = [
    "--data", "EmojiSceneCaptions", "--data.train_length=24", "--data.val_length=10", "--data.test_length=12",
    "--data.batch_size=8",
]  # fmt: skip


def task(model: str = "vit_ti_rope_mixed", **options) -> ContrastiveClip:
    torch.manual_seed(0)
    return ContrastiveClip(model, IMAGE, **SMALL | options)


def command(kind: str, run_dir: Path, *more: str, model: str = "vit_ti_rope_mixed") -> list[str]:
    return [
        kind, "--run_dir", str(run_dir), "--model", "ContrastiveClip", "--model.model", model,
        *(f"--model.model_kwargs.{k}={v}" for k, v in IMAGE.items()), *(f"--model.{k}={v}" for k, v in SMALL.items()),
        "--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.enable_progress_bar", "false",
        "--trainer.enable_model_summary", "false", "--trainer.log_every_n_steps", "1", "--trainer.num_sanity_val_steps", "0",
        *more,
    ]  # fmt: skip


def unit(*shape: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


# losses and scores


def test_loss_by_hand() -> None:
    image, text, swapped = (unit(3, 5, seed=k) for k in range(3))
    scale = torch.tensor(7.0)
    plain = hard = 0.0
    for i in range(3):
        own = math.exp(7 * float(image[i] @ text[i]))
        captions = sum(math.exp(7 * float(image[i] @ text[j])) for j in range(3))
        false = sum(math.exp(7 * float(image[i] @ swapped[j])) for j in range(3))
        images = sum(math.exp(7 * float(image[j] @ text[i])) for j in range(3))
        plain -= (math.log(own / captions) + math.log(own / images)) / 6
        hard -= (math.log(own / (captions + false)) + math.log(own / images)) / 6
    assert contrastive_loss(image, text, scale).item() == pytest.approx(plain, rel=1e-5)
    assert contrastive_loss(image, text, scale, swapped=swapped).item() == pytest.approx(hard, rel=1e-5)


def test_scores_by_hand_and_by_length() -> None:
    eye = torch.eye(4)
    text = eye[[0, 1, 3, 2]]  # the last two captions are exchanged
    swapped = torch.stack((eye[1], eye[1], eye[2], eye[0]))  # image 1's is as near as its own, image 2's nearer
    scores = ClipScores((5, 9))
    label, tokens = torch.tensor([7, 8, 9, 10]), torch.tensor([5, 6, 9, 6])
    for part in ([0, 1, 2], [3]):
        scores.update(eye[part], text[part], label[part], tokens[part], swapped[part])
    found = {name: value.item() for name, value in scores.compute().items()}
    assert found["image_to_text"] == found["text_to_image"] == 0.5
    # margins: 1, 0, -1, 0
    assert found["swap"] == pytest.approx((1 + 0.5 + 0 + 0.5) / 4)
    assert found["swap/1-5"] == 1 and found["swap/6-9"] == pytest.approx(1 / 3) and "swap/10+" not in found
    assert found["image_to_text/6-9"] == pytest.approx(1 / 3)
    same = ClipScores()
    same.update(eye, text, torch.tensor([7, 8, 9, 9]), tokens, None)  # pictures of one concept stand for each other
    assert same.compute() == {"image_to_text": 1.0, "text_to_image": 1.0}
    with pytest.raises(ValueError, match="must rise"):
        ClipScores((9, 5))


def test_a_tower_without_positions_fails_the_swap_test_and_only_it() -> None:
    """Both scenes of a pair of cells have the same feature, so that of two captions one is right for one of them."""
    scene = EmojiScenes("train", size=16, objects=(2, 2))[0].image
    cells = [scene[:, y : y + 8, x : x + 8] for y in (0, 8) for x in (0, 8)]
    other = torch.cat((torch.cat((cells[3], cells[2]), 2), torch.cat((cells[1], cells[0]), 2)), 1)
    for model, equal in (("vit_ti_none", True), ("vit_ti_rope_mixed", False)):
        net = task(model).net.eval()
        with torch.no_grad():
            net.image.blocks[0].attn.qkv.weight.mul_(20)  # else attention is nearly even, whatever the positions
        near = (net.encode_image(torch.stack((scene, other))).diff(dim=0).abs().max() < 1e-5).item()
        assert near == equal, model


# towers


@pytest.mark.parametrize(("positions", "context"), [("learned", 12), ("rotary", 100), ("stretched", 77)])
def test_positions_of_the_text_tower(positions: str, context: int) -> None:
    made = task(text_positions=positions, context_length=context)
    length = 248 if positions == "stretched" else context
    assert made.context == length
    ids = tokenize(["fox left of lemon", "lemon left of fox"], length)
    one, other = made.net.encode_text(ids)
    assert one.shape == (16,) and not torch.allclose(one, other, atol=1e-4)
    torch.testing.assert_close(made(torch.randn(3, 3, 16, 16), ids).shape, torch.Size([3, 2]))
    if positions == "rotary":  # padding is left out, which changes nothing
        torch.testing.assert_close(made.net.encode_text(ids), F.normalize(made.net.text(ids), dim=-1))
    with pytest.raises(ValueError, match=f"the context is {length}"):
        tokenize(" ".join(["fox"] * length), made.context)


def test_what_is_not_decayed() -> None:
    names = task(text_positions="learned", context_length=12).net.no_weight_decay()
    assert {"logit_scale", "text.positional_embedding"} <= names
    net = task(text_encoding="harope").net
    known = {name for name, _ in net.named_parameters()}
    rotary = {name for name in known if ".positions." in name}
    assert rotary and rotary <= net.no_weight_decay()
    assert any(name.startswith("image.encoding") for name in net.no_weight_decay() & known)


def test_towers_of_open_clip() -> None:
    """Its models, and vispe's that are registered there; image sizes are respected, encodings not decayed."""
    made = ContrastiveClip("open_clip:ViT-Ti-16-comrope", {"force_image_size": (32, 48)}, context_length=100)
    assert made.img_size == (32, 48) and made.context == 100 and made.in_chans == 3
    trunk = made.net.image.trunk
    assert trunk.train_grid == (2, 3) and set(trunk.encoding) == {"comrope"}
    names = {name for name, _ in made.net.named_parameters()}
    own = {name for name in names if name.startswith("image.trunk.encoding.")}
    assert own and own | {"image.trunk.cls_token"} <= made.net.no_weight_decay()
    ids = tokenize(["fox left of lemon", "lemon left of fox"], made.context)
    made(torch.randn(2, 3, 32, 48), ids).sum().backward()
    assert all(p.grad is not None for name, p in made.net.named_parameters() if "encoding" in name or "positions" in name)

    stock = ContrastiveClip("open_clip:ViT-B-32", {"force_image_size": 64}, text_positions="learned")
    assert stock.img_size == (64, 64) and stock.context == 77
    assert "text.positional_embedding" in stock.net.no_weight_decay()
    assert stock(torch.randn(1, 3, 64, 64), ids[:, :77]).shape == (1, 2)


def test_scale_has_an_end() -> None:
    net = task().net
    assert net.scale().item() == pytest.approx(1 / 0.07, rel=1e-3)
    with torch.no_grad():
        net.logit_scale.fill_(20.0)
    assert net.scale().item() == pytest.approx(100, rel=1e-3)


# the command line


def test_fit_learns_and_a_checkpoint_gives_its_scores_again(tmp_path: Path) -> None:
    more = ["--model.negatives=swapped", "--model.lengths=[7]", "--model.lr=3e-3", "--data.things=4", "--data.objects=[2,2]"]
    fit = [*SCENES, *more, "--data.train_length=480", "--data.eval_sizes=[[16,24]]", "--trainer.max_epochs=1"]
    metrics = run(command("fit", tmp_path, *fit)).trainer.callback_metrics
    assert {"val/swap", "val/swap@16x24", "val/image_to_text", "val/text_to_image", "val/swap/1-7"} <= set(metrics)
    found = list(losses(tmp_path).values())
    nothing = (math.log(16) + math.log(8)) / 2  # the loss of who knows nothing
    assert found[0] > 0.9 * nothing and sum(found[-10:]) / 10 < 0.85 * nothing
    last = ["--ckpt_path", str(tmp_path / "checkpoints/last.ckpt")]
    again = run(command("validate", tmp_path, *SCENES, *more, *last)).trainer.callback_metrics
    for name in ("val/swap", "val/image_to_text"):
        torch.testing.assert_close(again[name], metrics[name])
    tested = run(command("test", tmp_path, *SCENES, *more, *last)).trainer.callback_metrics
    assert 0 <= tested["test/swap"] <= 1
    with pytest.raises(ValueError, match="no classes to predict"):
        run(command("predict", tmp_path, *SCENES, *more, *last))


def test_emoji_and_their_names(tmp_path: Path) -> None:
    pairs = ["--data", "EmojiCaptions", "--data.train_length=8", "--data.batch_size=8", "--model.lengths=[16]"]
    metrics = run(command("fit", tmp_path, *pairs, "--trainer.max_epochs=1")).trainer.callback_metrics
    assert {"val/image_to_text", "val/text_to_image/1-16", "val/image_to_text/17+"} <= set(metrics)
    assert "val/swap" not in metrics


def test_two_processes_are_one_with_a_larger_batch(tmp_path: Path) -> None:
    args = [*SCENES, "--model.negatives=swapped", "--model.optimizer=sgd", "--trainer.max_epochs=1", "--model.lr=0.1"]
    ranks = two_processes([*command("fit", tmp_path / "two", *args), "--data.batch_size=4", *TWO], tmp_path / "two")
    alone = run(command("fit", tmp_path / "one", *args))
    assert ranks[0]["weights"] == ranks[1]["weights"] and ranks[0]["metrics"] == ranks[1]["metrics"]
    own = [parameter.double().sum().item() for parameter in alone.model.parameters()]
    assert ranks[0]["weights"] == pytest.approx(own, abs=2e-4)
    assert ranks[0]["steps"] == alone.trainer.global_step == 3


def test_long_captions_stop_the_run(tmp_path: Path) -> None:
    long = ["--data.grid=[2,2]", "--data.objects=[4,4]", "--data.sentences=[4,4]", "--model.context_length=16"]
    with pytest.raises(ValueError, match=r"EmojiSceneCaptions, item \d+: tokenize: text 0 has \d+ tokens .* the context is 16"):
        run(command("fit", tmp_path, *SCENES, *long, "--trainer.max_epochs=1"))


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="open_clip has no model 'ViT-Z'"):
        ContrastiveClip("open_clip:ViT-Z")
    with pytest.raises(ValueError, match="pretrained is for open_clip's models"):
        ContrastiveClip("vit_ti_none", IMAGE, pretrained="x.pt")
    with pytest.raises(ValueError, match="every picture is a new one"):
        EmojiCaptions(repeats=3)
    pairs = ["--data", "EmojiCaptions", "--data.train_length=8", "--data.batch_size=8", "--trainer.max_epochs=1"]
    with pytest.raises(ValueError, match="needs data with swapped captions"):
        run(command("fit", tmp_path, *pairs, "--model.negatives=swapped"))
    with pytest.raises(ValueError, match="has 3 channels, the image tower 1"):
        run(command("fit", tmp_path, *pairs, "--model.model_kwargs.in_chans=1"))


# start weights: TULIP's second stage, Long-CLIP


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a learned table of 77 rows."""
    root = tmp_path_factory.mktemp("learned")
    run(command("fit", root, *SCENES, "--model.text_positions=learned", "--trainer.max_steps=1", "--model.lr=1e-9"))
    return root / "checkpoints/last.ckpt"


def started(tmp_path: Path, *more: str) -> ContrastiveClip:
    """Both towers after one step at a rate of nothing."""
    return run(command("fit", tmp_path, *SCENES, *more, "--trainer.max_steps=1", "--model.lr=1e-12")).model


def test_stretched_and_rotary_towers_start_from_a_learned_one(learned: Path, tmp_path: Path) -> None:
    stored = torch.load(learned, weights_only=True)["state_dict"]
    made = started(tmp_path, f"--model.init_from={learned}", "--model.text_positions=stretched")
    table = made.net.text.positional_embedding
    assert table.shape[0] == 248
    torch.testing.assert_close(table[:20], stored["net.text.positional_embedding"][:20])
    torch.testing.assert_close(table[24], stored["net.text.positional_embedding"][21])
    torch.testing.assert_close(made.net.image.patch_embed.proj.weight, stored["net.image.patch_embed.proj.weight"])
    last = tmp_path / "checkpoints/last.ckpt"
    learned_gone = ["--model.init_from=/nowhere.ckpt", "--model.text_positions=stretched"]  # not read with a checkpoint
    again = run(command("validate", tmp_path, *SCENES, *learned_gone, "--ckpt_path", str(last))).model
    torch.testing.assert_close(again.net.text.positional_embedding, table)
    with pytest.raises(ValueError, match="is of other towers: .* missing .'text.positional_embedding'"):
        started(tmp_path / "x", f"--model.init_from={last}", "--model.text_positions=learned")
    with pytest.raises(ValueError, match="is of other towers: other shapes"):
        started(tmp_path / "y", f"--model.init_from={learned}", "--model.text_positions=learned", "--model.context_length=20")


def test_the_second_stage_takes_the_student(learned: Path, tmp_path: Path) -> None:
    """Distilled from the checkpoint's text tower, the student comes beside the checkpoint's image tower."""
    args = [a.replace("ContrastiveClip", "TextDistillation") for a in command("fit", tmp_path / "stage1", *SCENES)]
    args = [a for a in args if not a.startswith(("--model.model_kwargs", "--model.embed_dim", "--model.text_"))]
    at = args.index("--model.model")
    args[at : at + 2] = ["--model.teacher_from", str(learned)]
    distilled = run([*args, "--model.context_length=120", "--model.lr=1e-2", "--trainer.max_epochs=3"])
    first = run([*args[:0], "validate", *args[1:], "--model.context_length=120"]).trainer.callback_metrics["val/loss"]
    assert distilled.trainer.callback_metrics["val/loss"] < first
    student = distilled.model.student.state_dict()
    made = started(
        tmp_path / "stage2", f"--model.init_from={learned}", f"--model.text_from={tmp_path / 'stage1/checkpoints/last.ckpt'}",
        "--model.context_length=120", "--data.objects=[4,4]", "--data.sentences=[4,4]",
    )  # fmt: skip
    assert made.context == 120
    for key, value in made.net.text.state_dict().items():
        torch.testing.assert_close(value, student[key], msg=key)
    stored = torch.load(learned, weights_only=True)["state_dict"]
    torch.testing.assert_close(made.net.image.patch_embed.proj.weight, stored["net.image.patch_embed.proj.weight"])


# data


def test_what_is_held_out() -> None:
    def data(cls: type, **options):
        made = cls(img_size=16, **options)
        made.trainer = Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
        made.trainer.strategy._lightning_module = task()
        return made

    by_style = data(EmojiCaptions)
    assert by_style.train_styles == ["twemoji", "fluent-emoji-flat", "fluent-emoji"]
    val, test = (by_style.eval_dataset(split, (16, 16)) for split in ("val", "test"))
    assert (len(val), len(test)) == (156, 1397) and val.captioned.styles == ("noto",)
    assert not {val[k].label for k in range(0, 156, 20)} & set(test.captioned.numbers)
    by_concept = data(EmojiCaptions, hold_out="concepts")
    parts = [by_concept.eval_dataset(split, (16, 16)).captioned for split in ("val", "test")]
    parts.insert(0, by_concept.train_dataset().captioned.glyphs)
    assert [len(p.numbers) for p in parts] == [1242, 156, 155] and all(len(p.styles) == 4 for p in parts)
    scenes = data(EmojiSceneCaptions)
    assert scenes.eval_dataset("test", (16, 16)).captioned.styles == ("noto",)
    train = scenes.train_dataset()
    torch.manual_seed(9)
    assert torch.equal(train[Key(1, 5, 2)].image, scenes.train_dataset()[Key(1, 0, 2)].image)
    assert not torch.equal(train[Key(1, 5, 2)].image, train[Key(2, 5, 2)].image)
    item = train[Key(0, 0, 3)]
    assert item.ids.shape == item.swapped.shape == (77,) and sorted(item.ids.tolist()) == sorted(item.swapped.tolist())
    assert by_style.train_dataset()[3].swapped.shape == (0,)


def test_tokens_of_an_item() -> None:
    pairs = EmojiPairs(("noto",), size=16, caption="tags")
    item = Tokenised(pairs, 77, "pairs", mean=0.5, std=0.5)[4]
    torch.testing.assert_close(item.ids, tokenize(pairs[4].caption)[0])
    torch.testing.assert_close(item.image, pairs[4].image * 2 - 1)
    with pytest.raises(ValueError, match="pairs, item 0: tokenize: text 0 has .* the context is 8"):
        Tokenised(pairs, 8, "pairs")[0]


def test_captioned_files(tmp_path: Path) -> None:
    for number in range(8):
        Image.new("RGB", (20, 20), (30 * number, 0, 0)).save(tmp_path / f"{number}.png")
    lines = [f"{number}.png\ta red of {number // 2}" for number in range(8)]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n\n")
    (tmp_path / "val.tsv").write_text("\n".join(lines[:4]))
    args = ["--data", "CaptionedFolder", "--data.root", str(tmp_path), "--data.batch_size=4", "--trainer.max_epochs=1"]
    metrics = run(command("fit", tmp_path / "run", *args)).trainer.callback_metrics
    assert 0 <= metrics["val/text_to_image"] <= 1 and "val/swap" not in metrics
    (tmp_path / "bad.tsv").write_text("0.png\tred\n1.png red\n")
    with pytest.raises(ValueError, match=r"bad\.tsv, line 2: expected FILE<tab>CAPTION, got '1.png red'"):
        CaptionedFiles(tmp_path / "bad.tsv", transform=None, corrupt=None)
    with pytest.raises(FileNotFoundError, match="expected lines FILE<tab>CAPTION"):
        CaptionedFiles(tmp_path / "none.tsv", transform=None, corrupt=None)


# recipes


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("emoji*.yaml")), ids=lambda path: path.stem)
def test_recipes_parse_and_build(path: Path) -> None:
    config = parse(path)
    assert "python -m train fit" in path.read_text() and config["run_dir"] == f"runs/clip/{path.stem}"
    settings = config["model"]["init_args"]
    if config["model"]["class_path"].endswith("ContrastiveClip"):
        for key in ("init_from", "text_from"):
            source = Path(settings[key]).parts[2].removesuffix("_learned") if settings[key] else path.stem
            assert (CONFIGS / f"{source}.yaml").is_file()
        made = ContrastiveClip(**{**settings, "init_from": None, "text_from": None})
        assert sum(p.numel() for p in made.net.image.parameters()) < 2e6


def test_the_published_second_stage_is_as_published() -> None:
    path = CONFIGS / "tulip_stage2.yaml"
    settings = parse(path)["model"]["init_args"]
    assert "NOT RUN HERE" in path.read_text()
    assert (settings["lr"], settings["context_length"], settings["text_positions"]) == (1e-5, 248, "rotary")
