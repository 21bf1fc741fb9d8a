"""Joined views in diffusers' transformers: one view is the model itself, oracles of the sums, frames, orders, refusals."""

import json

import pytest
import torch
from diffusers_helpers import arguments, tiny

from vispe.adapters.diffusers import load, save, swap
from vispe.adapters.diffusers.multiview import Cameras, multiview
from vispe.adapters.diffusers.square import any_shape
from vispe.positions import camera_grid, look_at
from vispe.positions.camera_formats import make_pose

EYES = torch.tensor([[2.5, 0.4, 0.6], [-1.0, 2.2, 0.9]])
POSES = look_at(EYES, torch.tensor([0.1, -0.2, 0.3])).double()
LENSES = torch.tensor([[[30.0, 0, 20], [0, 28, 12], [0, 0, 1]], [[25.0, 0, 19], [0, 26, 13], [0, 0, 1]]])
SIZE = (24, 40)  # pixels of 3 x 5 tokens
SPECS = ["plucker", "plucker+epipolar", "gta", "prope", "cape"]
RELATIVE = ["plucker+epipolar", "gta", "prope", "cape", "ray_distance"]


def cameras(pose=POSES, lenses=LENSES, batch=None):
    pose, lenses = (t if batch is None else t.expand(batch, *t.shape) for t in (pose, lenses))
    return Cameras(pose if pose.ndim == 4 else pose[None], lenses if lenses.ndim == 4 else lenses[None], SIZE)


def shaken(model):
    torch.manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".encodings." in name:
                p.add_(0.3 * torch.randn_like(p))
    return model


def run(model, host, cams, *, batch=2, order=None):
    call = arguments(host, batch=batch)
    if order is not None:
        call = {k: v[order] if isinstance(v, torch.Tensor) else v for k, v in call.items()}
    call["cross_attention_kwargs"] = {"cameras": cams}
    with torch.no_grad():
        return model(**call, return_dict=False)[0]


def alone(model, host, batch=2):
    with torch.no_grad():
        return model(**arguments(host, batch=batch), return_dict=False)[0]


@pytest.mark.parametrize("host", ["dit", "pixart"])
@pytest.mark.parametrize("spec", ["plucker", "none"])
def test_one_view_is_the_model_itself(host, spec):
    """Plücker's projections start at zero; two scenes of one view each."""
    model = tiny(host)
    joined = multiview(model, spec)
    any_shape(model)  # 3 x 5 tokens
    one = cameras(POSES[:1], LENSES[:1], batch=2)
    torch.testing.assert_close(run(joined, host, one), alone(model, host), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(run(joined, host, cameras()), alone(model, host), atol=1e-4)  # two views of one scene
    assert not any(".encodings." in name for name, _ in model.named_parameters())  # it was left alone


@pytest.mark.parametrize("host", ["dit", "pixart"])
@pytest.mark.parametrize("spec", SPECS)
def test_cameras_are_seen_and_trained(host, spec):
    joined = shaken(multiview(tiny(host), spec)).train()
    out = joined(**arguments(host), cross_attention_kwargs={"cameras": cameras()}, return_dict=False)[0]
    out.square().mean().backward()
    new = {n: p for n, p in joined.named_parameters() if ".encodings." in n}
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in new.values())
    assert len(new) >= (2 if spec.startswith(("plucker", "gta")) else 0)
    other = POSES.clone()
    other[1, :3, 3] += 0.5
    joined.eval()
    assert not torch.allclose(run(joined, host, cameras()), run(joined, host, cameras(other)), atol=1e-5)


@pytest.mark.parametrize("spec", [*RELATIVE, "plucker"])
def test_the_world_frame_changes_nothing(spec):
    """Poses count from the first view: 10 km away too."""
    joined = shaken(multiview(tiny("pixart"), spec))
    u, _, v = torch.linalg.svd(POSES[:, :3, :3])
    pose = make_pose(u @ v, POSES[:, :3, 3])
    r = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    moved = pose @ make_pose(r * r.det().sign(), torch.tensor([6e3, -7e3, 4e3], dtype=torch.float64))
    want = run(joined, "pixart", cameras(pose))
    torch.testing.assert_close(run(joined, "pixart", cameras(moved)), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", ["gta", "prope"])
def test_order_of_views_permutes_the_outputs(spec):
    joined = shaken(multiview(tiny("pixart"), spec))
    turned = run(joined, "pixart", cameras(POSES.flip(0), LENSES.flip(0)), order=[1, 0])
    torch.testing.assert_close(turned, run(joined, "pixart", cameras())[[1, 0]], rtol=1e-4, atol=1e-4)


def test_scenes_do_not_see_each_other():
    """Four latents: two scenes of two views, as in two calls."""
    joined = shaken(multiview(tiny("dit"), "prope"))
    call = arguments("dit", batch=3)
    latent = torch.cat((call["hidden_states"], call["hidden_states"][:1] + 0.5))
    both = {"timestep": torch.tensor([3, 3, 40, 40]), "class_labels": torch.tensor([0, 0, 1, 1])}
    pose = torch.stack((POSES, POSES.flip(0)))
    with torch.no_grad():
        every = joined(latent, **both, cross_attention_kwargs={"cameras": cameras(pose, LENSES.expand(2, -1, -1, -1))}).sample
        for i in range(2):
            own = {k: v[2 * i : 2 * i + 2] for k, v in both.items()}
            one = joined(latent[2 * i : 2 * i + 2], **own, cross_attention_kwargs={"cameras": cameras(pose[i])}).sample
            torch.testing.assert_close(every[2 * i : 2 * i + 2], one, rtol=1e-4, atol=1e-4)


def test_plucker_is_spads_sum():
    """Ahead of queries, keys and values the tokens get W (d, o x d), as appended channels with new columns W do."""
    joined = shaken(multiview(tiny("pixart"), "plucker"))
    seen = []
    attn = joined.transformer_blocks[0].attn1
    attn.register_forward_pre_hook(lambda m, a, k: seen.append(a[0] if a else k["hidden_states"]), with_kwargs=True)
    attn.to_q.register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    run(joined, "pixart", cameras())
    encoding = attn.processor.encodings["plucker"]
    rays = encoding.prepare(camera_grid(3, 5, POSES, LENSES, SIZE, frame="first"))["tokens"]
    torch.testing.assert_close(seen[1], seen[0].reshape(1, 30, -1) + rays)


def test_checkpointing_and_state():
    joined = shaken(multiview(tiny("pixart"), "gta")).train()
    call = {**arguments("pixart"), "cross_attention_kwargs": {"cameras": cameras()}, "return_dict": False}
    joined(**call)[0].square().sum().backward()
    want = [p.grad.clone() for p in joined.parameters() if p.grad is not None]
    joined.zero_grad()
    joined.enable_gradient_checkpointing()
    joined(**call)[0].square().sum().backward()
    for a, b in zip(want, [p.grad for p in joined.parameters() if p.grad is not None]):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    other = multiview(tiny("pixart"), "gta")
    other.load_state_dict(joined.state_dict())
    assert torch.equal(run(other, "pixart", cameras()), run(joined.eval(), "pixart", cameras()))


@pytest.mark.parametrize(("host", "spec", "options"), [
    ("pixart", "plucker+epipolar", {"plucker": {"scale": 0.5}}), ("dit", "gta", None), ("dit", "none", None),
])  # fmt: skip
def test_saving_and_loading(host, spec, options, tmp_path):
    joined = shaken(multiview(tiny(host), spec, options, train_grid=(4, 6)))
    save(joined, tmp_path)
    other = load(tmp_path)
    assert torch.equal(run(other, host, cameras()), run(joined, host, cameras()))
    with pytest.raises(ValueError, match="cameras"):
        other(**arguments(host))
    save(other, tmp_path / "again")
    assert (tmp_path / "again/vispe.json").read_text() == (tmp_path / "vispe.json").read_text()
    told = json.loads((tmp_path / "vispe.json").read_text())
    (tmp_path / "vispe.json").write_text(json.dumps(told | {"encoding": "ray_distance+plucker", "encoding_kwargs": {}}))
    with pytest.raises(ValueError, match="do not match"):
        load(tmp_path)


def test_refusals():
    model = tiny("dit")
    joined = multiview(model, "prope")
    with pytest.raises(ValueError, match="pass cross_attention_kwargs=.*cameras"):
        joined(**arguments("dit"))
    with pytest.raises(ValueError, match="3 latents are not those of 2 views"):
        run(joined, "dit", cameras(), batch=3)
    with pytest.raises(ValueError, match="not orthonormal"):
        run(joined, "dit", cameras(POSES * torch.tensor([[1.5], [1.5], [1.5], [1.0]])))
    with pytest.raises(ValueError, match="no adapter for FluxTransformer2DModel"):
        multiview(tiny("flux"), "gta")
    with pytest.raises(ValueError, match="would be lost"):
        multiview(swap(model, "harope"), "gta")
    with pytest.raises(ValueError, match="would be lost"):
        multiview(joined, "gta")
    with pytest.raises(ValueError, match="acts on .*hidden"):
        multiview(model, "mix_ffn")
    with pytest.raises(ValueError, match="leave inject='tokens'"):
        multiview(model, "plucker", {"inject": "blocks"})
