"""The diffusion task on the command line: training, evaluation, samples at several sizes, exact resume, random positions."""

import csv
from pathlib import Path

import pytest
import torch
from PIL import Image
from train_helpers import Killed, losses, run, weights_of

from train.diffusion import DiffusionModule
from train.diffusion_sampling import draw, grid_of, make_scheduler
from train.generate import load_task
from vispe.positions.random import RandomPositions

NET = {
    "input_size": 16, "patch_size": 4, "in_channels": 1, "num_classes": 47, "hidden_size": 32, "depth": 1, "num_heads": 2,
    "prediction_type": "sit_velocity", "learn_sigma": False,
}  # fmt: skip
DDPM = NET | {"prediction_type": "epsilon", "learn_sigma": True}
RPE = ["--model.random_positions={span: 2.0}", "--model.model_kwargs.micro_conditioning=true", "--model.random_crop=1.5"]


def command(kind: str, run_dir: Path, *more: str, net: dict = NET, model: str = "dit_s_4_rope_axial") -> list[str]:
    return [
        kind, "--run_dir", str(run_dir), "--model", "DiffusionModule", "--model.model", model,
        *(f"--model.model_kwargs.{k}={v}" for k, v in net.items()), "--model.sample_steps", "2", "--model.lr", "2e-3",
        "--model.sample_classes", "[0, 1, 2]", "--data", "GlyphDiffusion", "--data.train_length", "24",
        "--data.val_length", "6", "--data.test_length", "6", "--data.batch_size", "4",
        "--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.enable_progress_bar", "false",
        "--trainer.enable_model_summary", "false", "--trainer.log_every_n_steps", "1", "--trainer.num_sanity_val_steps", "0",
        *more,
    ]  # fmt: skip


def net_of(**changes: object) -> DiffusionModule:
    settings = {"sample_steps": 2, **changes}
    kwargs = NET | settings.pop("model_kwargs", {})
    return DiffusionModule("dit_s_4_rope_axial", kwargs, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of 2 epochs of 6 steps with everything that draws random numbers."""
    run_dir = tmp_path_factory.mktemp("whole")
    cli = run(command("fit", run_dir, *RPE, "--trainer.max_epochs=2", "--model.guidance=2", "--data.eval_sizes=[[24, 32]]"))
    assert sorted(losses(run_dir)) == list(range(12))
    assert {"val/loss", "val/loss@24x32"} <= set(cli.trainer.callback_metrics)
    return run_dir


def test_validation_draws_grids_at_every_size(whole: Path) -> None:
    names = sorted(path.name for path in (whole / "samples").iterdir())
    assert names == [f"step{step:07d}_{size}.png" for step in (6, 12) for size in ("16x16", "24x32")]
    with Image.open(whole / "samples/step0000012_24x32.png") as shown:
        assert shown.size == (2 * 34 - 2, 2 * 26 - 2)
    assert any(whole.glob("logs/version_0/events*"))


@pytest.mark.parametrize(("every", "die"), [("--checkpoint.every_n_train_steps=2", 5), ("--checkpoint.every_n_epochs=1", 8)])
def test_resumed_equals_uninterrupted(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: str, die: int
) -> None:
    args = command("fit", tmp_path, *RPE, "--trainer.max_epochs=2", "--model.guidance=2", every)
    step, seen = DiffusionModule.training_step, [0]

    def dying(self: DiffusionModule, batch: object, batch_idx: int) -> torch.Tensor:
        seen[0] += 1
        if seen[0] > die:
            raise Killed
        return step(self, batch, batch_idx)

    with monkeypatch.context() as context:
        context.setattr(DiffusionModule, "training_step", dying)
        with pytest.raises(Killed):
            run(args)
    assert run([*args, "--ckpt_path=last"]).trainer.global_step == 12
    second = list(csv.DictReader((tmp_path / "logs/version_1/metrics.csv").open()))
    assert int(second[0]["step"]) in (4, 6)
    assert losses(tmp_path) == losses(whole)
    ours, reference = weights_of(tmp_path), weights_of(whole)
    assert ours.keys() == reference.keys() and any(key.startswith("ema.") for key in ours)
    for key in ours:
        assert torch.equal(ours[key], reference[key]), key


def test_ddpm_with_a_learned_variance(tmp_path: Path) -> None:
    model = {"net": DDPM, "model": "dit_s_4_harope"}
    cli = run(command("fit", tmp_path, "--trainer.max_steps=3", "--trainer.val_check_interval=3", **model))
    rows = list(csv.DictReader((tmp_path / "logs/version_0/metrics.csv").open()))
    first = next(row for row in rows if row["train/loss"])
    total = float(first["train/mse"]) + float(first["train/variational"])
    assert float(first["train/loss"]) == pytest.approx(total, rel=1e-5)
    assert cli.model.scheduler().config.variance_type == "learned_range"
    assert sorted(p.name for p in (tmp_path / "samples").iterdir()) == ["step0000003_16x16.png"]
    again = run(command("validate", tmp_path / "v", "--ckpt_path", str(tmp_path / "checkpoints/last.ckpt"), **model))
    torch.testing.assert_close(again.trainer.callback_metrics["val/loss"], cli.trainer.callback_metrics["val/loss"])


def test_a_training_lowers_the_loss_and_bf16_works(tmp_path: Path) -> None:
    more = ["--data.train_length=1600", "--data.batch_size=32", "--data.val_length=47", "--model.ema_decay=0.9"]
    before = run(command("validate", tmp_path / "v", *more)).trainer.callback_metrics["val/loss"]
    cli = run(command("fit", tmp_path, *more, "--trainer.max_epochs=1", "--trainer.precision=bf16-mixed"))
    assert cli.trainer.callback_metrics["val/loss"] < 0.8 * before
    assert all(p.dtype == torch.float32 for p in cli.model.net.parameters())


def test_two_streams_with_a_learned_text_for_each_class(tmp_path: Path) -> None:
    """EncodedMMDiT in the same task: it learns, draws grids, takes random positions, and samples from its checkpoint."""
    net = {k: v for k, v in NET.items() if k not in ("prediction_type", "learn_sigma")} | {"text_dim": 8, "pooled_dim": 8}
    args = command("fit", tmp_path, "--data.train_length=96", RPE[0], net=net, model="mmdit_s_4_rope_axial")
    cli = run([*args, "--trainer.max_epochs=3"])
    task = cli.model
    assert type(task.net).__name__ == "EncodedMMDiT" and isinstance(task.objective.prediction, str)
    assert task.objective.prediction == "flow_prediction"
    found = losses(tmp_path)
    assert sum(found[i] for i in range(60, 72)) < 0.8 * sum(found[i] for i in range(12))
    assert [path.name for path in sorted((tmp_path / "samples").iterdir())][0] == "step0000024_16x16.png"
    again = load_task(tmp_path / "checkpoints/last.ckpt")
    pictures = again.sample([3, 14], (16, 24), count=2, guidance=2.0)
    assert pictures.shape == (4, 1, 16, 24) and torch.equal(pictures, task.sample([3, 14], (16, 24), count=2, guidance=2.0))
    with pytest.raises(ValueError, match="learns a text for each class; set model_kwargs.num_classes"):
        DiffusionModule("mmdit_s_4_none", {"hidden_size": 32, "depth": 1, "num_heads": 2})
    with pytest.raises(ValueError, match="random_crop=2.0 needs a number of at least 1, pixels"):
        DiffusionModule("mmdit_s_4_none", net, random_crop=2.0)


def test_random_positions_are_drawn_in_training_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        RandomPositions, "__call__", lambda self, pos, *, batch=1, generator=None: calls.append((batch, generator)) or pos
    )
    run(command("fit", tmp_path, RPE[0], "--trainer.max_steps=2", "--trainer.val_check_interval=2"))
    train, rest = calls[:2], calls[2:]
    assert [batch for batch, _ in train] == [4, 4] and all(g is not None for _, g in train)
    assert train[0][1].initial_seed() != train[1][1].initial_seed()
    assert rest and all(generator is None for _, generator in rest)


def test_ranks_have_positions_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(DiffusionModule, "log", lambda *a, **k: None)
    monkeypatch.setattr(DiffusionModule, "optimizers", lambda self: type("O", (), {"param_groups": [{"lr": 0.0}]}))
    monkeypatch.setattr(DiffusionModule, "_data_is_latent", lambda self: False)
    monkeypatch.setattr(DiffusionModule, "current_epoch", 1)
    task = net_of(random_positions={"span": 2.0}).train()
    task.net.forward = lambda x, t, y, *, positions: seen.append(positions.coords) or torch.zeros_like(x)
    batch = (torch.zeros(4, 1, 16, 16), torch.zeros(4, dtype=torch.int64))
    for rank, index in ((0, 3), (1, 3), (0, 4), (0, 3)):
        monkeypatch.setattr(DiffusionModule, "global_rank", rank)
        task.training_step(batch, index)
    assert torch.equal(seen[0], seen[3])
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[0], seen[2])
    assert seen[0].shape == (4, 16, 2) and seen[0].max() < 8


def test_evaluation_leaves_the_global_generator_alone() -> None:
    task = net_of(random_positions={"span": 2.0}).eval()
    task._data_is_latent = lambda: False
    task.sizes, task.val_losses = [(16, 16)], torch.nn.ModuleList([torch.nn.Identity()])
    task.val_losses[0].update = lambda values: None
    state = torch.get_rng_state()
    task._evaluate((torch.zeros(4, 1, 16, 16), torch.zeros(4, dtype=torch.int64)), 0, 0)
    task.sample([1, 2], (16, 24), guidance=2.0)
    assert torch.equal(state, torch.get_rng_state())


def test_samples_have_any_size_and_come_from_their_own_seed() -> None:
    task = net_of()
    for p in task.ema.module.parameters():
        torch.nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(0))
    many = task.sample([3, 5], (16, 24), count=2, guidance=1.5, seed=4)
    assert many.shape == (4, 1, 16, 24) and many.min() >= 0 and many.max() <= 1 and task.ema.module.training
    torch.testing.assert_close(task.sample([3, 5], (16, 24), count=2, guidance=1.5, seed=4, batch_size=3), many)
    assert not torch.equal(many[0], many[1]) and not torch.equal(task.sample([3], (16, 24), seed=5)[0], many[0])


def test_an_unconditional_model(tmp_path: Path) -> None:
    net = {**NET, "num_classes": 0, "null_class": False, "class_dropout": 0.0}
    run(command("fit", tmp_path, "--trainer.max_steps=1", "--trainer.val_check_interval=1", net=net))
    task = DiffusionModule("dit_s_4_none", net)
    assert draw(task.net, task.scheduler(), None, (16, 16), count=3, steps=1).shape == (3, 1, 16, 16)


@pytest.mark.parametrize(
    ("prediction", "sampler", "name"),
    [
        ("sit_velocity", "auto", "FlowMatchEuler"), ("flow_prediction", "heun", "FlowMatchHeun"), ("epsilon", "auto", "DDIM"),
        ("v_prediction", "ddpm", "DDPM"), ("sample", "dpm", "DPMSolver"),
    ],
)  # fmt: skip
def test_schedulers_fit_the_prediction(prediction: str, sampler: str, name: str) -> None:
    assert type(make_scheduler(prediction, sampler)).__name__.startswith(name)
    task = net_of(model_kwargs={"prediction_type": prediction}, sampler=sampler)
    assert task.sample([0], (16, 16), guidance=2.0).isfinite().all()


def test_larger_sizes_get_more_noise_on_request() -> None:
    plain, shifted = net_of(time_shift=1.5), net_of(time_shift=1.5, resolution_shift=True)
    for task, size, alpha in ((plain, (32, 32), 1.5), (shifted, (16, 16), 1.5), (shifted, (32, 64), 1.5 * 8**0.5)):
        scheduler = task.scheduler(size)
        scheduler.set_timesteps(4)
        sigma = torch.linspace(1, scheduler.sigma_min, 4)
        torch.testing.assert_close(scheduler.sigmas[:4], alpha * sigma / (1 + (alpha - 1) * sigma))


def test_an_exact_model_is_sampled_back_to_its_data() -> None:
    """Every objective and sampler together: a model that knows the one picture there is returns it."""
    picture = torch.linspace(-0.9, 0.9, 256).view(1, 1, 16, 16)
    for prediction in ("sit_velocity", "flow_prediction", "epsilon", "v_prediction"):
        task = net_of(model_kwargs={"prediction_type": prediction, "num_classes": 0, "null_class": False, "class_dropout": 0.0})
        objective = task.objective

        def exact(x, t, y=None, *, positions=None, crop=None, objective=objective, prediction=prediction):
            if prediction in ("sit_velocity", "flow_prediction"):
                sigma = (1 - t if prediction == "sit_velocity" else t / 1000).clamp(min=1e-6)
                noise = (x - (1 - sigma) * picture) / sigma
                return picture - noise if prediction == "sit_velocity" else noise - picture
            step = torch.as_tensor(t).long().reshape(1)
            signal, sigma = objective.scales(step, x)
            noise = (x - signal * picture) / sigma
            return noise if prediction == "epsilon" else signal * noise - sigma * picture

        task.ema.module.forward = exact
        found = task.sample(None, (16, 16), count=2, steps=20)
        torch.testing.assert_close(found, (picture / 2 + 0.5).expand(2, -1, -1, -1), atol=2e-2, rtol=0)


def test_a_grid_has_white_between() -> None:
    sheet = grid_of(torch.zeros(3, 1, 2, 3), columns=2, gap=1)
    assert sheet.shape == (3, 5, 7)
    assert sheet[0, 2].min() == 1 and sheet[0, :, 3].min() == 1 and sheet[0, 3:, 4:].min() == 1 and sheet[0, :2, :3].max() == 0


def test_refusals(tmp_path: Path) -> None:
    for changes, words in (
        ({"model_kwargs": {"prediction_type": "epsilon"}, "times": "logit_normal"}, "are for flows"),
        ({"sampler": "ddim"}, "is sampled by 'auto' or one of"),
        ({"random_crop": 1.5}, "micro_conditioning true"),
        ({"random_positions": {"span": 0.5}}, "span must be at least 1"),
    ):
        with pytest.raises(ValueError, match=words):
            net_of(**changes)
    with pytest.raises(ValueError, match="needs a model dit_"):
        DiffusionModule("vit_ti_learned")
    with pytest.raises(FileNotFoundError, match="no folder with an autoencoder"):
        net_of(vae=str(tmp_path))
    with pytest.raises(ValueError, match="GlyphDiffusion has 1 channels and 47 classes"):
        run(command("fit", tmp_path, "--trainer.max_steps=1", net=NET | {"num_classes": 10}))
