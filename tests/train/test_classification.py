"""The classification task: parameter groups, schedule, mixing, averaged weights, sizes and coordinates, compilation."""

import math
from pathlib import Path

import pytest
import timm
import torch
from torch import nn
from train_helpers import NET, command, folder_args, run

from train import optim
from train.image import ImageClassification


def task(model: str = "vit_ti_learned", **settings: object) -> ImageClassification:
    return ImageClassification(model, NET, **settings)


def groups(module: ImageClassification, layer_decay: float | None = None) -> dict[str, dict]:
    """Optimizer group of each parameter name."""
    built = optim.build_optimizer(
        module.net, optimizer="adamw", lr=1.0, weight_decay=0.1, layer_decay=layer_decay, options={}
    )
    names = {id(p): n for n, p in module.net.named_parameters()}
    return {names[id(p)]: group for group in built.param_groups for p in group["params"]}


@pytest.mark.parametrize("model", ["vit_ti_learned", "vit_ti_rope_mixed", "vit_ti_comrope"])
def test_what_the_model_exempts_is_not_decayed(model: str) -> None:
    module = task(model)
    exempt = module.net.no_weight_decay()
    assert any(name.startswith("encoding.") for name in exempt) or model == "vit_ti_comrope"
    for name, group in groups(module).items():
        parameter = module.net.get_parameter(name)
        expected = 0.0 if parameter.ndim <= 1 or name in exempt else 0.1
        assert group["weight_decay"] == expected, name


def test_layer_decay_reaches_the_learning_rate() -> None:
    rates = {name: group["lr"] for name, group in groups(task(), layer_decay=0.5).items()}
    assert rates["head.weight"] == 1.0
    assert rates["blocks.1.attn.qkv.weight"] == 0.5
    assert rates["blocks.0.attn.qkv.weight"] == 0.25
    assert rates["patch_embed.proj.weight"] == 0.125


def test_schedule_is_a_warmup_and_a_cosine() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = optim.warmup_cosine(optimizer, steps=100, warmup=0.1, warmup_lr_ratio=0.0, min_lr_ratio=0.01)
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(0.2) and rates[9] == pytest.approx(2.0) and rates[10] == pytest.approx(2.0)
    for step in (10, 40, 99):
        expected = 2 * (0.01 + 0.99 * (1 + math.cos(math.pi * (step - 10) / 90)) / 2)
        assert rates[step] == pytest.approx(expected)


def test_schedule_without_an_end_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_epochs or trainer.max_steps"):
        run(command("fit", tmp_path, *folder_args(folder), "--trainer.max_epochs=-1"))


@pytest.mark.parametrize(
    ("settings", "target"),
    [
        ({"label_smoothing": 0.1}, "smooth"),
        ({"loss": "bce", "label_smoothing": 0.1}, "bce-smooth"),
    ],
    ids=["ce", "bce"],
)
def test_losses(settings: dict[str, object], target: str) -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    soft = torch.full((4, 3), 0.1 / 3).scatter(1, labels[:, None], 1 - 0.1 + 0.1 / 3)
    if target == "smooth":
        expected = -(soft * logits.log_softmax(-1)).sum(-1).mean()
    else:
        expected = nn.functional.binary_cross_entropy_with_logits(logits, soft)
    torch.testing.assert_close(task(**settings).criterion(logits, labels), expected)


def test_mixing_gives_soft_targets_and_bce_can_harden_them() -> None:
    module = task(mixup=0.8, cutmix=1.0, loss="bce", bce_threshold=0.0)
    images, targets = module.mixing(torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 0]))
    assert targets.shape == (4, 3)
    torch.testing.assert_close(targets.sum(-1), torch.ones(4))
    hard = (targets > 0).float()
    logits = torch.randn(4, 3)
    expected = nn.functional.binary_cross_entropy_with_logits(logits, hard)
    torch.testing.assert_close(module.criterion(logits, targets), expected)


def test_mixing_an_odd_batch_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be even, got 3"):
        run(command("fit", tmp_path, *folder_args(folder, "--data.batch_size=3"), "--model.mixup=0.8"))


def test_averaged_weights_are_those_evaluated(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = []
    original = ImageClassification.optimizer_step

    def optimizer_step(self: ImageClassification, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        history.append(self.net.head.weight.detach().clone())

    monkeypatch.setattr(ImageClassification, "optimizer_step", optimizer_step)
    args = command("fit", tmp_path, *folder_args(folder), "--model.ema_decay=0.5", "--trainer.max_epochs=1")
    module = run(args).model
    average = history[0]  # timm's average begins with the weights after the first step
    for weight in history[1:]:
        average = 0.5 * average + 0.5 * weight
    torch.testing.assert_close(module.ema.module.head.weight, average)
    images = torch.rand(2, 3, 16, 16)
    module.eval()
    torch.testing.assert_close(module(images), module.ema.module.eval()(images))
    assert not torch.allclose(module(images), module.net.eval()(images))
    state = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(state["ema.module.head.weight"], module.ema.module.head.weight)
    assert torch.equal(state["net.head.weight"], module.net.head.weight)


def test_an_average_can_be_added_and_dropped_on_a_resume(folder: Path, tmp_path: Path) -> None:
    args = command("fit", tmp_path, *folder_args(folder), "--trainer.limit_val_batches=0")
    run([*args, "--trainer.max_epochs=1"])
    added = run([*args, "--trainer.max_epochs=2", "--model.ema_decay=0.9", "--ckpt_path=last"]).model
    assert not torch.equal(added.ema.module.head.weight, added.net.head.weight)
    dropped = run([*args, "--trainer.max_epochs=3", "--ckpt_path=last"]).model
    assert dropped.ema is None and dropped.trainer.global_step == 18


def test_sizes_and_coordinates_in_one_run(folder: Path, tmp_path: Path) -> None:
    args = command("validate", tmp_path, *folder_args(folder), model="vit_ti_rope_axial")
    cli = run([*args, "--data.eval_sizes=[[16,24],[32,32]]", "--model.eval_coords=[extend,rescale]"])
    metrics = cli.trainer.callback_metrics
    sizes, coords = ("", "@16x24", "@32x32"), ("", "/extend", "/rescale")
    assert set(metrics) == {f"val/{m}{s}{c}" for m in ("top1", "top5", "loss") for s in sizes for c in coords}
    net, data = cli.model.net.eval(), cli.trainer.datamodule
    for size, at in zip([(16, 16), (16, 24), (32, 32)], sizes, strict=True):
        samples = data.eval_dataset("val", size)
        images = torch.stack([samples[i][0] for i in range(len(samples))])
        labels = torch.tensor([samples[i][1] for i in range(len(samples))])
        for convention, suffix in ((None, ""), ("extend", "/extend"), ("rescale", "/rescale")):
            net.set_coords(convention)
            with torch.no_grad():
                loss = nn.functional.cross_entropy(net(images), labels)
            torch.testing.assert_close(metrics[f"val/loss{at}{suffix}"], loss)
    assert metrics["val/loss@32x32/extend"] != metrics["val/loss@32x32/rescale"]
    assert metrics["val/loss/extend"] == metrics["val/loss/rescale"]


def test_coordinates_of_a_model_without_them_are_refused() -> None:
    with pytest.raises(ValueError, match="vit_tiny_patch16_224.*no set_coords"):
        ImageClassification("vit_tiny_patch16_224", NET, eval_coords=["rescale"])


def test_model_and_data_must_agree(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"num_classes 3, .* 7; set --model.model_kwargs.num_classes 3"):
        run(command("fit", tmp_path, *folder_args(folder), "--model.model_kwargs.num_classes=7"))


def test_compiled_model_keeps_its_names_and_values(folder: Path, tmp_path: Path) -> None:
    args = [*folder_args(folder), "--trainer.max_steps=2", "--trainer.limit_val_batches=0"]
    args += ["--model.model_kwargs.depth=1"]
    plain = run(command("fit", tmp_path / "plain", *args)).model
    compiled = run(command("fit", tmp_path / "compiled", *args, "--model.compile=default")).model
    assert compiled.net._compiled_call_impl is not None
    state = torch.load(tmp_path / "compiled/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert state.keys() == {f"net.{name}" for name in timm.create_model("vit_ti_learned", **NET | {"depth": 1}).state_dict()}
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-3, atol=2e-4)


def test_bf16_clipping_accumulation_and_checkpointing_run_together(folder: Path, tmp_path: Path) -> None:
    args = command("fit", tmp_path, *folder_args(folder), "--trainer.max_epochs=1", "--trainer.precision=bf16-mixed")
    more = ["--trainer.gradient_clip_val=1", "--trainer.accumulate_grad_batches=2", "--model.grad_checkpointing=true"]
    cli = run([*args, *more, "--model.model_kwargs.drop_path_rate=0.1", "--model.optimizer=lamb"])
    assert cli.trainer.global_step == 3
    assert all(torch.isfinite(p).all() and p.dtype == torch.float32 for p in cli.model.parameters())


def test_hyper_parameters_are_plain() -> None:
    module = task(mixup=0.1, eval_coords=["extend"])
    kinds = {type(value) for value in module.hparams.values()}
    assert kinds <= {str, int, float, bool, dict, list, type(None)}
