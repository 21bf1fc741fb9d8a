"""View-synthesis transformers: frames of the world, numbers of views, sizes, rays one by one, gradients, refusals."""

import copy

import pytest
import torch
from torch import Tensor

from vispe.data import Scenes
from vispe.encodings import ENCODINGS
from vispe.models.nvs import SceneTransformer, ViewTransformer
from vispe.models.nvs_parts import patchify, unpatchify
from vispe.positions.camera_formats import make_pose

RELATIVE = ["gta", "prope", "learned+cape"]
ABSOLUTE = ["learned+plucker", "learned+camera_ape"]
SIZE = (16, 24)
KINDS = [ViewTransformer, SceneTransformer]


def build(kind: type, encoding: str, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    if kind is SceneTransformer:
        options = {"stem_width": 8, "decoder_depth": 2, "query_size": 4 if "learned" in encoding else 2} | options
    options = {"image_size": SIZE, "embed_dim": 32, "depth": 2, "num_heads": 2} | options
    model = kind(encoding, **options).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model


def scene(frame: str = "random", inputs: int = 2, targets: int = 1, size: tuple[int, int] = SIZE) -> tuple[Tensor, ...]:
    scenes = Scenes("val", size=size, views=inputs + targets, frame=frame, focal_spread=0.3, length=8)
    batch = scenes.batch([1, 6])
    return batch["images"][:, :inputs], batch["world_to_camera"], batch["intrinsics"]


def test_patches_and_back() -> None:
    images = torch.randn(2, 3, 4, 12, 8)
    tokens = patchify(images, 4)
    assert tokens.shape == (2, 3, 6, 64) and torch.equal(unpatchify(tokens, (3, 2), 4), images)
    torch.testing.assert_close(tokens[1, 2, 3], images[1, 2, :, 4:8, 4:8].flatten())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoding", RELATIVE)
def test_a_change_of_the_worlds_frame_changes_nothing(kind: type, encoding: str) -> None:
    model = build(kind, encoding)
    images, poses, intrinsics = scene("random")
    near = model(images, poses, intrinsics)
    assert near.shape == (2, 1, 3, *SIZE) and near.std() > 1e-3
    torch.testing.assert_close(near, model(images, scene("far")[1], intrinsics), atol=2e-5, rtol=0)
    torch.testing.assert_close(near, model(images, scene("canonical")[1], intrinsics), atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoding", ABSOLUTE)
def test_absolute_encodings_see_the_frame(kind: type, encoding: str) -> None:
    model = build(kind, encoding)
    images, poses, intrinsics = scene("canonical")
    moved = (model(images, poses, intrinsics) - model(images, scene("far")[1], intrinsics)).abs()
    assert moved.max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_cameras_matter_and_each_sample_has_its_own(kind: type) -> None:
    for encoding in ("gta", "prope", "learned+plucker"):
        model = build(kind, encoding)
        images, poses, intrinsics = scene()
        whole = model(images, poses, intrinsics)
        for i in range(2):
            alone = model(images[i : i + 1], poses[i : i + 1], intrinsics[i : i + 1])
            torch.testing.assert_close(whole[i : i + 1], alone, atol=1e-5, rtol=0)
        other = poses.clone()
        other[:, 2] = make_pose(torch.eye(3), torch.tensor([0.3, -0.2, 2.0]))
        assert (model(images, other, intrinsics) - whole).abs().max() > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_views(kind: type) -> None:
    model = build(kind, "gta")
    for inputs, targets in ((1, 1), (4, 1), (3, 2)):
        images, poses, intrinsics = scene(inputs=inputs, targets=targets)
        assert model(images, poses, intrinsics).shape == (2, targets, 3, *SIZE)
    order = [2, 0, 1, 3, 4]  # the order of the given views says nothing
    again = model(images[:, order[:3]], poses[:, order], intrinsics[:, order])
    torch.testing.assert_close(again, model(images, poses, intrinsics), atol=1e-5, rtol=0)


def test_targets_of_the_scene_model_do_not_see_each_other() -> None:
    model = build(SceneTransformer, "prope")
    images, poses, intrinsics = scene(targets=2)
    one = model(images, poses[:, [0, 1, 3]], intrinsics[:, [0, 1, 3]])
    torch.testing.assert_close(one, model(images, poses, intrinsics)[:, 1:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("encoding", ["gta", "prope", "coord_fourier+plucker"])
def test_rays_one_by_one(encoding: str) -> None:
    model = build(SceneTransformer, encoding, query_size=1)
    images, poses, intrinsics = scene(targets=2)
    whole = model(images, poses, intrinsics).permute(0, 1, 3, 4, 2).flatten(1, 3)
    rays = torch.tensor([[5, 700, 383], [384, 0, 767]])
    some = model(images, poses, intrinsics, rays=rays)
    assert some.shape == (2, 3, 3, 1, 1)
    torch.testing.assert_close(some[..., 0, 0], whole[torch.arange(2)[:, None], rays], atol=1e-5, rtol=0)
    torch.testing.assert_close(model(images, poses, intrinsics, rays=rays[0])[0], some[0], atol=1e-5, rtol=0)


def test_queries_of_any_size_look_along_the_same_rays() -> None:
    """A query of 2 px stands in the middle of its four pixels, also in the terms of rotary patches."""
    poses, k = scene()[1][:, 2:], scene()[2][:, 2:]
    fine, coarse = (build(SceneTransformer, "prope", query_size=q)._queries(poses, k, SIZE) for q in (1, 2))
    blocks = fine.coords.unflatten(1, (8, 2, 12, 2)).mean((2, 4)).flatten(1, 2)
    torch.testing.assert_close(blocks, coarse.coords)
    cells = build(SceneTransformer, "prope", query_size=4)._queries(poses, k, SIZE)
    torch.testing.assert_close(coarse.pixels().unflatten(1, (4, 2, 6, 2)).mean((2, 4)).flatten(1, 2), cells.pixels())


@pytest.mark.parametrize("kind", KINDS)
def test_other_sizes(kind: type) -> None:
    for encoding in ("gta", "prope", "learned+plucker"):
        model = build(kind, encoding)
        images, poses, intrinsics = scene(size=(24, 16))
        assert model(images, poses, intrinsics).shape == (2, 1, 3, 24, 16)


def test_one_ray_a_pixel_equals_appended_channels() -> None:
    """Plücker coordinates of every pixel beside its colours, through one linear layer (LVSM's form)."""
    from vispe.positions import image_rays
    from vispe.positions.rays import plucker

    model = build(ViewTransformer, "plucker", encoding_kwargs={"samples": 4, "init": "normal"})
    images, poses, intrinsics = scene()
    rays = plucker(*image_rays(poses, intrinsics, SIZE))  # (B, V, H, W, 6)
    channels = rays.unflatten(2, (-1, 4)).unflatten(4, (-1, 4)).transpose(3, 4).flatten(2, 3).flatten(3)  # (B, V, h·w, p·p·6)
    expected = torch.nn.functional.linear(channels, model.encoding["plucker"].proj.weight).flatten(1, 2)
    ctx = model.encoding.prepare(model._positions(poses, intrinsics, SIZE))
    torch.testing.assert_close(model.encoding.tokens(torch.zeros_like(expected), ctx), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoding", [*RELATIVE, *ABSOLUTE])
def test_gradients_checkpointing_and_state(kind: type, encoding: str) -> None:
    model, (images, poses, intrinsics) = build(kind, encoding), scene()
    model(images, poses, intrinsics).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    twin = build(kind, encoding)
    twin.load_state_dict(copy.deepcopy(model.state_dict()))
    twin.set_grad_checkpointing()
    twin(images, poses, intrinsics).square().mean().backward()
    for a, b in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(a.grad, b.grad)
    names = {name for name, _ in model.named_parameters()}
    assert model.no_weight_decay() <= names and len(model.no_weight_decay()) >= 1


def test_far_cameras_in_half_precision() -> None:
    """Ten kilometres away in bfloat16: relative encodings lose no more than bfloat16 itself does."""
    for encoding in ("gta", "prope"):
        model = build(ViewTransformer, encoding)
        images, poses, intrinsics = scene("canonical")
        exact = model(images, poses, intrinsics)
        shift = make_pose(torch.eye(3, dtype=torch.float64), torch.tensor([1e4, -1e4, 50.0], dtype=torch.float64))
        half = copy.deepcopy(model).bfloat16()
        near = half(images.bfloat16(), poses, intrinsics).float()
        far = half(images.bfloat16(), poses.double() @ shift, intrinsics).float()
        assert (far - exact).abs().max() <= 2 * (near - exact).abs().max() + 1e-3


@pytest.mark.parametrize("name", [name for name, cls in ENCODINGS.items() if 2 in cls.card.axes])
def test_every_encoding_of_images_runs_or_says_why_not(name: str) -> None:
    """Convolutions need one full grid and key points are an image's own; everything else takes several views."""
    args = scene()
    for kind in KINDS:
        model = build(kind, name, embed_dim=96, depth=1, **({"query_size": 4} if kind is SceneTransformer else {}))
        if name in ("cpe", "mix_ffn", "lepe", "kprpe"):
            with pytest.raises(ValueError, match=name):
                model(*args)
        else:
            with torch.no_grad():
                assert model(*args).shape == (2, 1, 3, *SIZE)


@pytest.mark.parametrize("kind", KINDS)
def test_one_graph_and_autocast(kind: type) -> None:
    for encoding in ("gta", "prope", "learned+camera_ape"):
        model, args = build(kind, encoding), scene()
        expected = model(*args)
        torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(*args), expected, atol=1e-5, rtol=0)
        with torch.autocast("cpu", torch.bfloat16):
            assert (model(*args).float() - expected).abs().max() < 0.03


def test_refusals() -> None:
    model, (images, poses, intrinsics) = build(ViewTransformer, "gta"), scene()
    for args, words in (
        ((images[:, :0], poses, intrinsics), "views at least 1"),
        ((images, poses[:, :2], intrinsics), "at least 1 target"),
        ((images, poses, intrinsics[:, :2]), "one a camera"),
        ((images[..., :22], poses, intrinsics), "multiples of 4 px"),
        ((images, 2 * poses, intrinsics), "last row"),
    ):
        with pytest.raises(ValueError, match=words):
            model(*args)
    with pytest.raises(ValueError, match="have no intrinsics"):
        build(ViewTransformer, "learned+plucker")(images, poses)
    with pytest.raises(ValueError, match="query_size must divide"):
        SceneTransformer("gta", stride=4, query_size=3)
    with pytest.raises(ValueError, match="power of 2"):
        SceneTransformer("gta", stride=6, image_size=36, query_size=2)
    with pytest.raises(ValueError, match="between the cells"):
        build(SceneTransformer, "learned", query_size=1)(images, poses, intrinsics)
