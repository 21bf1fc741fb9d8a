"""Pretext tasks on positions: masks, targets, what a token may know, hosts, and the way from pretraining to a classifier."""

import math
from pathlib import Path

import pytest
import torch
from train_helpers import NET, Killed, command, folder_args, losses, run

from train import optim
from train.droppos import DropPos
from train.mp3 import PositionPrediction
from vispe.encodings import ENCODINGS
from vispe.positions import pretext

WIDE = NET | {"img_size": (16, 32)}  # 4 x 8 cells
SMALL = {"decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2}
ADDITIVE = [
    name for name, cls in ENCODINGS.items()
    if cls.card.injection == ("tokens",) and 2 in cls.card.axes and "cameras" not in cls.card.needs
]  # fmt: skip


def droppos(model: str = "vit_ti_sincos2d", net: dict = WIDE, **settings: object) -> DropPos:
    torch.manual_seed(0)
    return DropPos(model, net, **{"mask_ratio": 0.25, **SMALL, **settings})


def images(count: int = 2, height: int = 16, width: int = 32) -> torch.Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


def swapped(x: torch.Tensor, a: int, b: int, columns: int = 8) -> torch.Tensor:
    """Images with two patches of 4 x 4 pixels exchanged."""
    y = x.clone()
    (ra, ca), (rb, cb) = (divmod(n, columns) for n in (a, b))
    box = lambda r, c: (slice(None), slice(None), slice(4 * r, 4 * r + 4), slice(4 * c, 4 * c + 4))  # noqa: E731
    y[box(ra, ca)], y[box(rb, cb)] = x[box(rb, cb)], x[box(ra, ca)]
    return y


# functions


@pytest.mark.parametrize(("normalise", "sigma"), [("rows", 1.0), ("columns", 1.0), ("rows", 0.4), ("columns", 2.5)])
def test_smoothing_map_of_any_grid(normalise: str, sigma: float) -> None:
    rows, columns = 2, 3
    got = pretext.smoothing_map((rows, columns), sigma, normalise=normalise)
    cells = [divmod(n, columns) for n in range(rows * columns)]
    raw = [[math.exp(-((a - c) ** 2 + (b - d) ** 2) / sigma**2) for c, d in cells] for a, b in cells]
    for i, row in enumerate(raw):
        for j, value in enumerate(row):
            assert got[i, j].item() == pytest.approx(value / sum(raw[i if normalise == "rows" else j]), rel=1e-6)
    if normalise == "rows":
        torch.testing.assert_close(got.sum(-1), torch.ones(rows * columns))


def test_released_targets_do_not_sum_to_one() -> None:
    sums = pretext.smoothing_map((14, 14), 1.0, normalise="columns").sum(-1)
    assert sums.min().item() == pytest.approx(0.886, abs=5e-4) and sums.max().item() == pytest.approx(1.110, abs=5e-4)


@pytest.mark.parametrize("sigma", [0.0, 1e-300, 1e-3])
def test_no_smoothing_is_the_true_cell(sigma: float) -> None:
    assert torch.equal(pretext.smoothing_map((3, 4), sigma), torch.eye(12))


def test_loss_and_accuracy_against_a_loop() -> None:
    torch.manual_seed(0)
    logits, cells, weight = torch.randn(2, 5, 6), torch.randint(6, (2, 5)), torch.rand(2, 5)
    targets = pretext.smoothing_map((2, 3), 1.0, normalise="columns")
    total = hits = 0.0
    for b in range(2):
        for n in range(5):
            logs, cell = logits[b, n].log_softmax(-1), cells[b, n]
            total += weight[b, n] * -(targets[cell] * logs).sum()
            hits += weight[b, n] * (logits[b, n].argmax() == cell)
    torch.testing.assert_close(pretext.position_loss(logits, cells, weight, targets), total / weight.sum())
    torch.testing.assert_close(pretext.position_accuracy(logits, cells, weight), hits / weight.sum())
    hard = pretext.position_loss(logits, cells, weight, torch.eye(6))
    torch.testing.assert_close(pretext.position_loss(logits, cells, weight), hard)


def test_random_choices() -> None:
    order = pretext.random_order(50, 12)
    assert torch.equal(order.sort(1).values, torch.arange(12).expand(50, -1)) and len(order.unique(dim=0)) > 40
    subset = pretext.random_subset(400, 12, 3)
    assert torch.equal(subset.sum(1), torch.full((400,), 3)) and subset.float().mean(0).sub(0.25).abs().max() < 0.1
    twice = [pretext.random_subset(4, 12, 3, generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*twice)
    assert pretext.share_of(10, 1 - 0.9) == 1 and pretext.share_of(196, 0.25) == 49 and pretext.share_of(49, 0.25) == 12


def test_attentive_weights() -> None:
    token = torch.tensor([[1.0, 0.0]])
    patches = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]]])
    torch.testing.assert_close(pretext.attentive_weights(token, patches), torch.tensor([[10.0, 0.0, -10.0]]).softmax(-1))


@pytest.mark.parametrize(
    "call",
    [
        lambda: pretext.smoothing_map((2, 2), -1.0),
        lambda: pretext.smoothing_map((2, 2), math.nan),
        lambda: pretext.smoothing_map((2, 2), 1.0, normalise="both"),
        lambda: pretext.share_of(4, 1.5),
        lambda: droppos(mask_ratio=1.0),
        lambda: droppos(pos_mask_ratio=0.0),
        lambda: droppos(mask_ratio=-0.1),
        lambda: droppos(attentive=True, net=WIDE | {"class_token": False, "global_pool": "avg"}),
        lambda: droppos(net=WIDE | {"patch_drop_rate": 0.5}),
        lambda: PositionPrediction("vit_ti_none", WIDE, context_ratio=0.01),
        lambda: PositionPrediction("vit_ti_learned", WIDE),
        lambda: PositionPrediction("vit_tiny_patch16_224", {"num_classes": 3}),
    ],
)
def test_bad_settings_are_refused(call) -> None:
    with pytest.raises(ValueError, match=r"got|must|leaves|set |leave "):
        call()


# DropPos


def test_additive_encodings_were_found() -> None:
    assert {"learned", "sincos2d", "learnable_fourier"} <= set(ADDITIVE)


@pytest.mark.parametrize(
    ("encoding", "options"),
    [*((name, {}) for name in ADDITIVE), ("learned", {"prefix_rows": True}), ("seqpe", {"method": "input_add"})],
)
def test_every_additive_host_trains_every_parameter(encoding: str, options: dict) -> None:
    net = WIDE | {"encoding": encoding, "encoding_kwargs": options}
    module = droppos("vit_ti_none", net, sigma_decay="none").train()
    loss, accuracy = module.step(images())
    loss.backward()
    assert 0 <= accuracy <= 1 and loss.isfinite()
    without = [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]
    assert not without  # DDP would wait for them
    assert not module.net.head.weight.requires_grad


@pytest.mark.parametrize("encoding", ["none", "rope_axial", "cpe", "seqpe", "learned+rope_mixed"])
def test_hosts_whose_positions_cannot_be_dropped_are_refused(encoding: str) -> None:
    with pytest.raises(ValueError, match="cannot be dropped"):
        droppos("vit_ti_none", WIDE | {"encoding": encoding})


def test_a_token_without_position_is_known_by_its_content_alone() -> None:
    module = droppos("vit_ti_learned").eval()
    keep = torch.tensor([[0, 5, 9, 17, 20, 31]])
    dropped = torch.tensor([[True, False, False, True, False, True]])
    x = images(1)
    with torch.no_grad():
        before, after = module(x, keep, dropped), module(swapped(x, 0, 31), keep, dropped)
        moved = module(swapped(x, 5, 20), keep, dropped)
        hidden = module(swapped(x, 1, 2), keep, dropped)
    torch.testing.assert_close(after[:, [5, 1, 2, 3, 4, 0]], before)
    assert not torch.allclose(moved[:, [0, 4, 2, 3, 1, 5]], before, atol=1e-4)  # these two have positions
    assert torch.equal(hidden, before)  # and these two patches are not visible


def test_without_dropping_the_encoder_is_the_vit() -> None:
    module = droppos("vit_ti_learned").eval()
    every = torch.arange(32).expand(2, -1)
    with torch.no_grad():
        tokens = module.encode(module.patches(images()), every, torch.zeros(2, 32, dtype=torch.bool))
        torch.testing.assert_close(tokens, module.net.forward_features(images()))


def test_counts_as_released() -> None:
    module = DropPos("vit_ti_sincos2d", {"depth": 1, "num_classes": 3}, **SMALL)
    assert (module.cells, module.visible, module.dropped) == (196, 49, 37)


def test_attentive_loss_weighs_tokens_by_likeness() -> None:
    module = droppos(attentive=True, sigma_decay="none", normalise="rows").train()
    draw = lambda: torch.Generator().manual_seed(3)  # noqa: E731
    loss, _ = module.step(images(), draw())
    generator = draw()
    keep = pretext.random_order(2, 32, generator=generator)[:, : module.visible]
    dropped = pretext.random_subset(2, module.visible, module.dropped, generator=generator)
    features = module.net.forward_features(images())
    alike = torch.cosine_similarity(features[:, :1], features[:, 1:], dim=-1).div(0.1).softmax(-1).gather(1, keep)
    weight = dropped * alike / alike.sum(1, keepdim=True)
    logs = module(images(), keep, dropped).log_softmax(-1)
    each = -(pretext.smoothing_map((4, 8), 1.0)[keep] * logs).sum(-1)
    torch.testing.assert_close(loss, (each * weight).sum() / weight.sum())


@pytest.mark.parametrize(
    ("decay", "epoch", "step", "expected"),
    [("epoch", 1, 7, 1.5), ("step", 1, 7, 1.3), ("none", 1, 7, 2.0), ("epoch", 4, 20, 0.0)],
)
def test_sigma_falls_linearly(decay: str, epoch: int, step: int, expected: float) -> None:
    module = droppos(sigma=2.0, sigma_decay=decay)
    facts = {"global_step": step, "estimated_stepping_batches": 20, "max_epochs": 4, "current_epoch": epoch}
    module._trainer = type("Trainer", (), facts)()
    assert module.sigma_now() == pytest.approx(expected)


def test_the_mask_vector_and_tables_are_not_decayed() -> None:
    module = droppos("vit_ti_learned")
    built = optim.build_optimizer(module, optimizer="adamw", lr=1.0, weight_decay=0.1, layer_decay=None, options={})
    decay = {id(p): group["weight_decay"] for group in built.param_groups for p in group["params"]}
    assert decay[id(module.mask_pos_token)] == decay[id(module.net.encoding["learned"].pos_embed)] == 0
    assert decay[id(module.decoder.head.weight)] == decay[id(module.net.blocks[0].attn.qkv.weight)] == 0.1
    assert id(module.net.head.weight) not in decay


# position prediction


def test_patches_see_the_context_only_and_no_position() -> None:
    module = PositionPrediction("vit_ti_none", WIDE).eval()
    context = torch.zeros(1, 32, dtype=torch.bool)
    context[:, [3, 8, 9, 30]] = True
    x = images(1)
    with torch.no_grad():
        before, outside, inside = (module(y, context) for y in (x, swapped(x, 0, 31), swapped(x, 3, 30)))
        crossed = module(swapped(x, 0, 3), context)
    order = torch.arange(32)
    torch.testing.assert_close(outside[:, order.where(order != 0, 31).where(order != 31, 0)], before)
    torch.testing.assert_close(inside[:, order.where(order != 3, 30).where(order != 30, 3)], before)
    assert (crossed[:, 5] - before[:, 5]).abs().max() > 1e-4  # another patch became context


def test_position_prediction_trains_every_parameter() -> None:
    module = PositionPrediction("vit_ti_none", WIDE | {"class_token": False, "global_pool": "avg"}).train()
    loss, _ = module.step(images())
    loss.backward()
    assert loss.item() == pytest.approx(math.log(32), abs=0.5)
    assert not [name for name, p in module.named_parameters() if p.requires_grad and p.grad is None]


@pytest.mark.parametrize("task", [droppos, lambda: PositionPrediction("vit_ti_none", WIDE, context_ratio=0.5)])
def test_other_grids_are_refused(task) -> None:
    with pytest.raises(ValueError, match=r"grid \(4, 8\)"):
        task().step(images(2, 32, 16))


@pytest.mark.parametrize("task", ["droppos", "mp3"])
def test_the_loss_falls(task: str) -> None:
    module = droppos(sigma=0.0) if task == "droppos" else PositionPrediction("vit_ti_none", WIDE, context_ratio=0.5)
    module.train()
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=3e-3)
    history = []
    for _ in range(60):
        loss, _ = module.step(images(4), torch.Generator().manual_seed(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    assert history[0] > 3.2 and history[-1] < 1.0


# the command line


def pretrain(task: str, run_dir: Path, folder: Path, *more: str) -> list[str]:
    model = "vit_ti_sincos2d" if task == "DropPos" else "vit_ti_none"
    args = command("fit", run_dir, *folder_args(folder), f"--model={task}", model=model)
    args.remove("ImageClassification")
    args.remove("--model")
    own = [f"--model.{k}={v}" for k, v in SMALL.items()] + ["--model.mask_ratio=0.25"] if task == "DropPos" else []
    place = args.index("--model.model")
    return [*args[:place], f"--model={task}", *args[place:], *own, *more]


@pytest.mark.parametrize(("task", "model"), [("DropPos", "vit_ti_sincos2d"), ("PositionPrediction", "vit_ti_learned")])
def test_from_pretraining_to_a_classifier(task: str, model: str, folder: Path, tmp_path: Path) -> None:
    whole = run(pretrain(task, tmp_path / "whole", folder, "--trainer.max_epochs=2"))
    assert {"val/loss", "val/accuracy", "train/loss"} <= set(whole.trainer.callback_metrics)
    source = tmp_path / "whole/checkpoints/last.ckpt"
    # both start from one seed: these are equal only if the moved weights of the pretraining were taken
    more = [f"--model.init_from={source}", "--trainer.max_steps=1", "--model.lr=1e-12", "--trainer.limit_val_batches=0"]
    tuned = run(command("fit", tmp_path / "tuned", *folder_args(folder), *more, model=model)).model
    for name in ("blocks.1.attn.qkv.weight", "patch_embed.proj.weight", "norm.bias", "cls_token"):
        torch.testing.assert_close(tuned.net.get_parameter(name), whole.model.net.get_parameter(name), atol=1e-6, rtol=0)


def test_a_resumed_run_repeats_the_uninterrupted_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = (pretrain("DropPos", tmp_path / name, folder, "--trainer.max_epochs=2") for name in ("whole", "cut"))
    run(whole)
    original = DropPos.training_step

    def training_step(self: DropPos, batch: object, batch_idx: int) -> torch.Tensor:
        if self.trainer.fit_loop.total_batch_idx == 8:
            raise Killed
        return original(self, batch, batch_idx)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(DropPos, "training_step", training_step)
        run(cut)
    run([*cut, "--ckpt_path=last"])
    assert len(losses(tmp_path / "whole")) == 12 and losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_other_sizes_and_predictions_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="out of data.eval_sizes"):
        run(pretrain("DropPos", tmp_path, folder, "--data.eval_sizes=[[16,24]]"))
    with pytest.raises(TypeError, match="predicts no classes"):
        droppos().predict_step(None, 0)
