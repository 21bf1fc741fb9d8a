"""Hosts of camera rigs: matching against all permutations, losses, any encoding, missing views, orders of cameras."""

import itertools

import numpy as np
import pytest
import torch

from vispe.data.rig_scenes import RigScenes
from vispe.encodings import ENCODINGS
from vispe.models.dense_head import DenseHead
from vispe.models.detector import Detector, decode
from vispe.models.detector_loss import assign, detection_loss, focal, match, targets_of
from vispe.models.detector_parts import at_cells

SMALL = dict(embed_dim=48, num_heads=2, stem_width=4)
PETR = {"petr": {"depth_num": 4, "position_range": (-12.0, -12.0, -3.0, 12.0, 12.0, 6.0)}}
GIVEN = {"petr_3dppe": {"depth_source": "given"}}


@pytest.fixture(scope="module")
def rig():
    scene = RigScenes("val", length=3).batch(range(3))
    scene["cells"] = at_cells(scene["depth"], 4)
    return scene


def call(model, rig, **more):
    return model(rig["images"], rig["world_to_camera"], rig["intrinsics"], **more)


def build(cls, encoding="petr", options=PETR, seed=0, **more):
    torch.manual_seed(seed)
    names = encoding.split("+")
    chosen = {n: options[n] for n in names if n in options}
    chosen = chosen.get(names[0], {}) if len(names) == 1 else chosen
    return cls(encoding, chosen, **{**SMALL, **more}).eval()


# ---- matching and losses ------------------------------------------------------------------------------------------------


def test_assignments_are_the_cheapest():
    rng = np.random.default_rng(0)
    for _ in range(120):
        rows = int(rng.integers(1, 6))
        columns = int(rng.integers(rows, 7))
        cost = rng.normal(size=(rows, columns)) * 10 ** rng.uniform(-2, 3)
        if rng.random() < 0.3:
            cost = cost.round()  # ties
        row, column = assign(cost)
        assert (row == np.arange(rows)).all() and len(set(column.tolist())) == rows
        cheapest = min(cost[np.arange(rows), list(p)].sum() for p in itertools.permutations(range(columns), rows))
        assert abs(cost[row, column].sum() - cheapest) < 1e-9 * max(1, abs(cost).max())
    assert assign(np.zeros((0, 3)))[0].size == 0
    with pytest.raises(ValueError, match="at least as many columns"):
        assign(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="NaN or infinite"):
        assign(np.full((1, 2), np.nan))


def test_a_query_on_its_object_is_matched_and_costs_nothing():
    g = torch.Generator().manual_seed(0)
    boxes = torch.randn(2, 4, 7, generator=g)
    boxes[..., 3:6] = boxes[..., 3:6].abs() + 0.5
    present = torch.tensor([[True, False, True, True], [False] * 4])
    raw = 5 * torch.randn(2, 1, 9, 8, generator=g)
    logits = torch.full((2, 1, 9, 4), -12.0)
    for query, label in ((7, 0), (2, 2), (5, 3)):
        raw[0, 0, query], logits[0, 0, query, label] = targets_of(boxes)[0, label], 12.0
    labels = present[0].nonzero()[:, 0]
    queries, objects = match(logits[0, 0], raw[0, 0], labels, targets_of(boxes)[0, labels], weights=(2.0, 0.25))
    assert dict(zip(objects.tolist(), queries.tolist())) == {0: 7, 1: 2, 2: 5}
    found = {"logits": logits, "boxes": raw}
    parts = detection_loss(found, boxes, present)
    assert parts["loss"] < 1e-4 and parts["box"] == 0
    raw[0, 0, 7, 0] += 3.0  # one of three objects is 3 m off
    torch.testing.assert_close(detection_loss(found, boxes, present)["box"], torch.tensor(1.0), rtol=1e-4, atol=1e-4)
    logits[1, 0, 4, 1] = 3.0  # a false alarm where nothing is
    assert detection_loss(found, boxes, present)["class"] > 0.1


def test_focal_loss_by_hand():
    x = torch.tensor([0.4, -1.3])
    p = x.sigmoid()
    want = torch.stack((-0.25 * (1 - p[0]) ** 2 * p[0].log(), -0.75 * p[1] ** 2 * (1 - p[1]).log()))
    torch.testing.assert_close(focal(x, torch.tensor([1.0, 0.0])), want)


def test_decoded_boxes_come_back():
    boxes = torch.tensor([[[3.0, -2.0, 0.5, 1.2, 0.9, 1.4, 2.5]]])
    logits = torch.tensor([[[[-3.0, 2.0], [-5.0, -4.0]]]])
    raw = torch.cat((targets_of(boxes), torch.zeros(1, 1, 8)), dim=1)[:, None]
    found = decode({"logits": logits, "boxes": raw}, most=3)
    assert found["scores"].shape == (1, 3) and found["labels"][0, 0] == 1
    torch.testing.assert_close(found["boxes"][0, 0], boxes[0, 0])


# ---- hosts --------------------------------------------------------------------------------------------------------------


HOSTABLE = ["petr", "learned+petr", "plucker", "gta", "prope", "rayrope", "epipolar", "kpe", "streampetr", "petr_3dppe", "roce",
            "none"]  # fmt: skip


@pytest.mark.parametrize("cls", [DenseHead, Detector])
@pytest.mark.parametrize("name", HOSTABLE)
def test_any_encoding_by_name(cls, name, rig):
    more = {} if cls is DenseHead else {"num_queries": 5, "decoder_depth": 2, "depth": 1}
    model = build(cls, name, PETR, **more).train()
    out = call(model, rig)
    if cls is DenseHead:
        assert out.shape == (3, 4, 6, 12, 3)
        loss = out.square().mean()
    else:
        assert out["logits"].shape == (3, 2, 5, 4) and out["boxes"].shape == (3, 2, 5, 8)
        torch.testing.assert_close(out["boxes"][..., 6:].norm(dim=-1), torch.ones(3, 2, 5))
        loss = detection_loss(out, rig["boxes"], rig["present"])["loss"]
    loss.backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert all(n in dict(model.named_parameters()) for n in model.no_weight_decay())
    assert set(name.split("+")) <= set(ENCODINGS)


def test_depth_reaches_the_encoding(rig):
    model = build(DenseHead, "petr_3dppe", GIVEN)
    near, far = call(model, rig, depth=rig["cells"]), call(model, rig, depth=rig["cells"] + 1)
    assert (near - far).abs().max() > 1e-4
    with pytest.raises(ValueError, match="carry none"):
        call(model, rig)
    with pytest.raises(ValueError, match=r"depth is that of the cells, \(3, 4, 6, 12\)"):
        call(model, rig, depth=rig["depth"])


@pytest.mark.parametrize("cls", [DenseHead, Detector])
def test_missing_views_are_not_looked_at(cls, rig):
    """What a missing view shows, and where its camera is said to be, changes nothing for the others."""
    model = build(cls, "petr", PETR, **({} if cls is DenseHead else {"num_queries": 5, "depth": 1}))
    valid = torch.tensor([[True, True, False, True]] * 3)
    other = dict(rig, images=rig["images"].clone())
    other["images"][:, 2] = torch.rand_like(other["images"][:, 2])
    a, b = call(model, rig, valid=valid), call(model, other, valid=valid)
    if cls is DenseHead:
        assert torch.equal(a[:, [0, 1, 3]], b[:, [0, 1, 3]]) and a.isfinite().all()
        assert not torch.equal(call(model, rig)[:, 0], call(model, other)[:, 0])
    else:
        assert torch.equal(a["boxes"], b["boxes"]) and not torch.equal(call(model, rig)["boxes"], call(model, other)["boxes"])
    with pytest.raises(ValueError, match="no valid view"):
        call(model, rig, valid=torch.tensor([[False] * 4, [True] * 4, [True] * 4]))
    with pytest.raises(ValueError, match=r"valid must be \(3, 4\) bool"):
        call(model, rig, valid=torch.ones(3, 4))


def test_order_of_cameras_permutes_the_cells(rig):
    model = build(DenseHead, "petr", {"petr": {"depth_num": 4, "multiview": False}}, views=None)
    order = [2, 0, 3, 1]
    turned = {key: rig[key][:, order] for key in ("images", "world_to_camera", "intrinsics")}
    torch.testing.assert_close(call(model, turned), call(model, rig)[:, order], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cls", [DenseHead, Detector])
def test_one_graph_and_autocast(cls, rig):
    model = build(cls, **({} if cls is DenseHead else {"num_queries": 5, "depth": 1}))

    def numbers(out):
        return out if cls is DenseHead else out["boxes"]

    with torch.no_grad():
        want = numbers(call(model, rig))
        assert torch.equal(numbers(call(torch.compile(model, backend="eager", fullgraph=True), rig)), want)
        with torch.autocast("cpu", torch.bfloat16):
            assert (numbers(call(model, rig)).float() - want).abs().max() < 0.2  # metres, of 24


def test_checkpointing_and_state(rig):
    model = build(Detector, num_queries=5, depth=1).train()
    call(model, rig)["boxes"].sum().backward()
    want = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model.set_grad_checkpointing()
    call(model, rig)["boxes"].sum().backward()
    for a, b in zip(want, [p.grad for p in model.parameters() if p.grad is not None]):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    other = build(Detector, seed=1, num_queries=5, depth=1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(call(other.eval(), rig)["boxes"], call(model.eval(), rig)["boxes"])


def test_refusals(rig):
    model = build(DenseHead)
    with pytest.raises(ValueError, match="made for 4 cameras, got 3"):
        model(rig["images"][:, :3], rig["world_to_camera"][:, :3], rig["intrinsics"][:, :3])
    with pytest.raises(ValueError, match=r"world_to_camera must be \(3, 4, 4, 4\)"):
        model(rig["images"], rig["world_to_camera"][:, :2], rig["intrinsics"])
    with pytest.raises(ValueError, match="images must be"):
        model(rig["images"][0], rig["world_to_camera"], rig["intrinsics"])
    with pytest.raises(ValueError, match="multiples of 4 px"):
        model(rig["images"][..., :46], rig["world_to_camera"], rig["intrinsics"])
    with pytest.raises(ValueError, match="must be at least 1"):
        build(Detector, num_queries=0)
    with pytest.raises(ValueError, match="position_range"):
        build(Detector, position_range=(0.0, 1.0))
