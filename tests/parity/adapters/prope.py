"""liruilong940607/prope: attention among cameras with and without intrinsics."""

from __future__ import annotations

from vispe.encodings.prope import Prope
from vispe.encodings.se3 import invert_rigid
from vispe.layers import attend
from vispe.positions import camera_grid

from ..cases import Case
from .common import Results, gradients, leaves


def run(case: Case) -> Results:
    c = case.config
    assert c["kind"] == "prope", c["kind"]
    encoding = Prope(
        dim=c["heads"] * c["head_dim"], num_heads=c["heads"], theta=c["freq_base"], freq_scale=c.get("freq_scale", 1.0),
        intrinsics=c["with_intrinsics"],
    )  # fmt: skip
    size = (c["image_height"], c["image_width"])
    w2c = case.inputs["viewmats_w2c"]
    ctx = encoding.prepare(camera_grid(c["patches_y"], c["patches_x"], w2c, case.inputs.get("Ks"), size))
    sources = leaves({n: case.inputs[n] for n in "qkv"})
    q, k, v = sources.values()
    o = attend(q, k, v, encoding, ctx, ctx, scale=c["head_dim"] ** -0.5)
    # the encoded vectors themselves count from the world, attention from the first camera
    world = encoding.meet(ctx, _in_world(encoding, case, size))[0]
    q_encoded = encoding.act(q, world.project(), world, -1)
    kv_encoded = encoding.act(k, world.unproject().mT, world, -1)
    return {
        "out.attention_output": o, "out.q_encoded": q_encoded, "out.kv_encoded": kv_encoded,
        **gradients((o * case.inputs["cotangent"]).sum(), sources),
    }  # fmt: skip


def _in_world(encoding: Prope, case: Case, size: tuple[int, int]):
    """A context whose frame is the world."""
    w2c = case.inputs["viewmats_w2c"]
    eye = w2c[:, :1] @ invert_rigid(w2c[:, :1])
    return encoding.prepare(camera_grid(1, 1, eye.round(), None, size))
