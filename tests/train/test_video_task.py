"""The video task and its data: files in folders, sampling, corrupted files, sizes, resuming at another size, image weights."""

from pathlib import Path

import av
import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from train_helpers import run

from train.data.clips import TwoShotClips, as_clip
from train.data.corrupt import CorruptSampleError
from train.data.sampling import Key
from train.data.video import ClipSampling, VideoFolderData, open_video, sample_frames
from train.video import VideoClassification

NET = {
    "num_classes": 2, "img_size": 16, "num_frames": 4, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 2,
}  # fmt: skip
SHOTS = NET | {"num_classes": 20}


def write_video(path: Path, label: int, frames: int = 10, size: tuple[int, int] = (24, 32)) -> None:
    """A clip in one colour whose brightness is the number of the frame."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        for number in range(frames):
            picture = np.full((*size, 3), 20 * number + 20, np.uint8)
            picture[..., label] = 250
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 classes of 4 training and 2 validation videos."""
    root = tmp_path_factory.mktemp("videos")
    for split, count in (("train", 4), ("val", 2)):
        for label in range(2):
            for number in range(count):
                write_video(root / split / f"c{label}" / f"{number}.mp4", label)
    return root


def command(kind: str, run_dir: Path, *more: str, net: dict = NET, model: str = "vid_s_learned_spacetime") -> list[str]:
    return [
        kind, "--run_dir", str(run_dir), "--model", "VideoClassification", "--model.model", model,
        *(f"--model.model_kwargs.{k}={v}" for k, v in net.items()),
        "--trainer.accelerator", "cpu", "--trainer.devices", "1", "--trainer.enable_progress_bar", "false",
        "--trainer.enable_model_summary", "false", "--trainer.log_every_n_steps", "1", *more,
    ]  # fmt: skip


def folder_args(root: Path, *more: str) -> list[str]:
    return ["--data", "VideoFolderData", "--data.root", str(root), "--data.batch_size", "4", *more]


def shot_args(*more: str) -> list[str]:
    lengths = [f"--data.{k}_length={n}" for k, n in (("train", 8), ("val", 6), ("test", 20))]
    return ["--data", "TwoShotClips", "--data.batch_size", "4", *lengths, *more]


def data(root: Path, **options: object) -> VideoFolderData:
    return VideoFolderData(str(root), num_frames=4, img_size=16, batch_size=2, **options)


def test_fit_evaluate_and_predict_files(folder: Path, tmp_path: Path) -> None:
    cli = run(command("fit", tmp_path, *folder_args(folder, "--data.eval_clips=[[6,16,24]]"), "--trainer.max_epochs=2"))
    metrics = cli.trainer.callback_metrics
    assert {"val/top1", "val/top1@6x16x24", "val/loss"} <= set(metrics) and cli.trainer.global_step == 4
    tested = run(command("test", tmp_path, *folder_args(folder), "--ckpt_path", str(tmp_path / "checkpoints/last.ckpt")))
    torch.testing.assert_close(tested.trainer.callback_metrics["test/loss"], metrics["val/loss"])
    run(command("predict", tmp_path / "p", *folder_args(folder), "--ckpt_path", str(tmp_path / "checkpoints/last.ckpt")))
    assert len(list((tmp_path / "p").rglob("*.csv"))) >= 1


def test_checkpoints_come_to_another_number_of_frames(folder: Path, tmp_path: Path) -> None:
    for kind in ("joint", "factorised"):
        net = NET | {"attention": kind}
        path = tmp_path / kind / "checkpoints/last.ckpt"
        run(command("fit", path.parents[1], *folder_args(folder), "--trainer.max_epochs=1", net=net))
        larger = net | {"num_frames": 8, "img_size": 24}
        module = run(command("validate", tmp_path / "v", *folder_args(folder), "--ckpt_path", str(path), net=larger)).model
        own = timm.create_model("vid_s_learned_spacetime", **net)
        state = torch.load(path, weights_only=True)["state_dict"]
        own.load_state_dict({k.removeprefix("net."): v for k, v in state.items() if k.startswith("net.")})
        own.set_input_size(24, num_frames=8)
        for key, value in own.state_dict().items():
            torch.testing.assert_close(module.net.state_dict()[key], value)


def test_image_weights_are_inflated(tmp_path: Path, folder: Path) -> None:
    image = timm.create_model(
        "vit_ti_learned_spacetime", num_classes=2, class_token=False, global_pool="avg",
        **{k: NET[k] for k in ("img_size", "patch_size", "embed_dim", "depth", "num_heads")},
    )  # fmt: skip
    save_file(image.state_dict(), tmp_path / "image.safetensors")
    more = [f"--model.init_from={tmp_path / 'image.safetensors'}", "--trainer.max_steps=1", "--model.lr=1e-9"]
    net = run(command("fit", tmp_path, *folder_args(folder), *more)).model.net
    kernel = net.patch_embed.proj.weight.detach()
    torch.testing.assert_close(kernel[:, :, 1], image.patch_embed.proj.weight.detach(), atol=1e-6, rtol=0)
    assert kernel[:, :, 0].abs().max() < 1e-6


def test_which_frames_are_taken(folder: Path) -> None:
    assert sample_frames(10, 4, stride=None, random=False) == [1, 3, 6, 8]
    assert sample_frames(2, 4, stride=None, random=False) == [0, 0, 1, 1]
    assert sample_frames(10, 4, stride=2, random=False) == [1, 3, 5, 7]
    torch.manual_seed(0)
    drawn = [sample_frames(10, 4, stride=None, random=True) for _ in range(50)]
    assert all(int(2.5 * k) <= d[k] <= int(2.5 * (k + 1)) for d in drawn for k in range(4)) and len(set(map(tuple, drawn))) > 5
    assert {sample_frames(10, 4, stride=2, random=True)[0] for _ in range(50)} == {0, 1, 2, 3}
    clip, label = data(folder).eval_dataset("val", (4, 16, 16))[0]
    assert clip.shape == (3, 4, 16, 16) and label == 0
    sampling = ClipSampling()
    level = clip[2] * sampling.std[2] + sampling.mean[2]  # the blue channel of class 0 is the frame's number
    numbers = (level.mean((1, 2)) * 255 - 20) / 20
    assert (numbers - torch.tensor([1.0, 3.0, 6.0, 8.0])).abs().max() < 0.5


def test_training_clips_are_a_function_of_seed_and_place(folder: Path) -> None:
    train = data(folder, seed=3).train_dataset()
    again = data(folder, seed=3).train_dataset()
    torch.manual_seed(7)
    assert torch.equal(train[Key(1, 5, 2)][0], again[Key(1, 5, 2)][0])
    assert not torch.equal(train[Key(1, 5, 2)][0], train[Key(2, 5, 2)][0])


def test_larger_and_longer_clips(folder: Path) -> None:
    for clip in ((4, 16, 24), (12, 40, 16)):
        assert data(folder).eval_dataset("val", clip)[1][0].shape == (3, *clip)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    for number in range(3):
        write_video(tmp_path / "train/c0" / f"{number}.mp4", 0)
        write_video(tmp_path / "train/c1" / f"{number}.avi", 1)
    (tmp_path / "train/c0/1.mp4").write_bytes(b"no video at all")
    whole = (tmp_path / "train/c1/1.avi").read_bytes()
    (tmp_path / "train/c1/1.avi").write_bytes(whole[: len(whole) * 2 // 3])
    return tmp_path


def test_corrupted_files_are_named_and_counted(broken: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (broken / "val").symlink_to(broken / "train")
    with pytest.raises(CorruptSampleError, match=r"cannot read .*c0/1\.mp4: .* set on_corrupt to 'skip'"):
        data(broken).eval_dataset("val", (4, 16, 16))[1]
    module = data(broken, on_corrupt="skip")
    found = [sample for sample in (module.eval_dataset("val", (4, 16, 16))[i] for i in range(6)) if sample is not None]
    assert len(found) == 4 and module.corrupt.count == 2
    said = capfd.readouterr().err
    assert "c0/1.mp4" in said and "c1/1.avi" in said and "number 2" in said
    clip, label = module.train_dataset()[Key(0, 0, 1)]  # the next readable one takes its place
    assert clip.shape == (3, 4, 16, 16) and label == 0 and module.corrupt.count == 3


def test_short_videos_are_named(folder: Path) -> None:
    sampling = ClipSampling(stride=4)
    with pytest.raises(CorruptSampleError, match="4 frames with a stride of 4 need a video of 13 frames, this one has 10"):
        data(folder, sampling=sampling).eval_dataset("val", (4, 16, 16))[0]


def test_folders_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected .*/val/CLASS/VIDEO"):
        data(tmp_path).eval_dataset("val", (4, 16, 16))
    (tmp_path / "train/c0").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="no video in .*c0"):
        data(tmp_path).train_dataset()
    with pytest.raises(ValueError, match="no video stream"):
        sound = tmp_path / "sound.mkv"
        with av.open(str(sound), "w") as container:
            stream = container.add_stream("pcm_s16le", rate=8000)
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
            frame.sample_rate = 8000
            container.mux(stream.encode(frame))
            container.mux(stream.encode())
        open_video(str(sound))


def test_two_shot_task(tmp_path: Path) -> None:
    args = shot_args("--data.eval_clips=[[8,16,16],[4,16,24]]")
    more = ["--model.mixup=0.4", "--model.ema_decay=0.9", "--model.grad_checkpointing=true", "--model.eval_coords=[rescale]"]
    cli = run(command("fit", tmp_path, *args, *more, "--trainer.max_epochs=1", net=SHOTS, model="vid_s_rope3d"))
    names = {f"val/{m}{s}{c}" for m in ("top1", "pair") for s in ("", "@8x16x16", "@4x16x24") for c in ("", "/rescale")}
    assert names <= set(cli.trainer.callback_metrics)
    tested = run(command("test", tmp_path, *args, net=SHOTS, model="vid_s_rope3d")).trainer.callback_metrics
    assert tested["test/pair"] >= tested["test/top1"]


def test_pair_counts_both_orders() -> None:
    from train.metrics import Accuracies

    counts = Accuracies(20, [(8, 32, 32)], [None], groups=TwoShotClips.class_groups)
    logits = torch.nn.functional.one_hot(torch.tensor([0, 1, 5, 9]), 20).float()
    counts.update(0, 0, logits, torch.tensor([0, 0, 4, 3]))
    results = dict(counts.results("test"))
    assert results["test/top1"] == 0.25 and results["test/pair"] == 0.75


def test_refusals(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a video transformer"):
        VideoClassification("vit_ti_none", {"depth": 1})
    with pytest.raises(ValueError, match="cutmix pastes rectangles"):
        VideoClassification("vid_s_none", NET, cutmix=1.0)
    with pytest.raises(ValueError, match=r"eval_clips, \[frames, height, width\] each, no eval_sizes"):
        TwoShotClips(eval_sizes=[(16, 16)])
    with pytest.raises(ValueError, match=r"a clip size is \[frames, height, width\]"):
        as_clip((16, 16))
    with pytest.raises(ValueError, match="num_classes 2, .* 7"):
        run(command("fit", tmp_path, *folder_args(folder), net=NET | {"num_classes": 7}))


@pytest.mark.parametrize("kind", ["joint", "factorised"])
def test_a_checkpoint_becomes_a_file_for_any_size(kind: str, folder: Path, tmp_path: Path) -> None:
    """`vispe convert` writes the frames of the tables too, and `vispe.load` resamples by what it wrote."""
    import vispe
    from vispe.cli import main as vispe_program

    net = NET | {"attention": kind}
    module = run(command("fit", tmp_path, *folder_args(folder), "--trainer.max_epochs=1", net=net)).model
    out = tmp_path / "out.safetensors"
    assert vispe_program(["convert", "auto", str(tmp_path / "checkpoints/last.ckpt"), str(out)]) in (0, None)
    same = timm.create_model("vid_s_learned_spacetime", **net).eval()
    vispe.load(same, out)
    clip = torch.randn(2, 3, 4, 16, 16)
    torch.testing.assert_close(same(clip), module.net.eval()(clip))
    larger = timm.create_model("vid_s_learned_spacetime", **net | {"num_frames": 8, "img_size": 24}).eval()
    report = vispe.load(larger, out)
    assert list(report.resampled.values()) == ["2x2x2 to 4x3x3"] * 2
    same.set_input_size(24, num_frames=8)
    torch.testing.assert_close(larger.state_dict(), same.state_dict())
