"""The small vision-language model: every scheme generates with a cache as it computes at once, padded or packed or alone."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from vispe.models.vlm import Sequences, VisionLanguageModel
from vispe.models.vlm_vision import crops, joined
from vispe.positions.schemes import list_schemes
from vispe.positions.segments import Audio, Image, Text, Tiles, Video
from vispe.positions.sequence import build_ids

TOWER = {"patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "class_token": False, "global_pool": "avg"}
TILED = ("rope_dhr", "id_align")  # these place tiles and no images


def model(scheme: str = "rope1d", **options: object) -> VisionLanguageModel:
    torch.manual_seed(0)
    options = {"depth": 2, "dim": 32, "num_heads": 4, "kv_heads": 2, "vision_kwargs": TOWER} | options
    if scheme == "mhrope":
        options |= {"kv_heads": 4}
    return VisionLanguageModel(23, scheme=scheme, **options).eval()


def picture(count: int, height: int, width: int) -> Tensor:
    return torch.rand(count, 3, 4 * height, 4 * width)


def batch(scheme: str = "rope1d") -> Sequences:
    """A video with an image, and a short text with an image; lengths differ."""
    if scheme in TILED:
        rows = ((Text(2), Tiles(1, 2, 2, 2, thumbnail=(2, 2)), Text(3)), (Text(1), Tiles(2, 1, 2, 3), Text(1)))
        pictures = ((picture(3, 2, 2),), (picture(2, 2, 3),))
    else:
        rows = ((Text(3), Image(3, 4), Text(2), Video(2, 3, 2, seconds=0.5), Text(3)), (Text(1), Image(2, 2), Text(2)))
        pictures = ((picture(1, 3, 4)[0], picture(2, 3, 2)), (picture(1, 2, 2),))
    text = tuple(torch.randint(23, (sum(s.n for s in row if isinstance(s, Text)),)) for row in rows)
    return Sequences(rows, text, pictures)


def alone(whole: Sequences, i: int) -> Sequences:
    return Sequences(whole.rows[i : i + 1], whole.text[i : i + 1], whole.pictures[i : i + 1])


@pytest.mark.parametrize("scheme", list_schemes())
@torch.no_grad()
def test_generation_with_a_cache_equals_the_full_forward(scheme: str) -> None:
    net, given = model(scheme, depth=3), batch(scheme)
    tokens, logits = net.generate(given, max_new_tokens=4, return_logits=True)
    assert tokens.shape == (2, 4) and torch.equal(logits.argmax(-1), tokens)
    whole = net(net.grown(given, tokens))
    torch.testing.assert_close(whole[:, -5:-1], logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("scheme", list_schemes())
@torch.no_grad()
def test_rows_are_the_same_alone_padded_and_packed(scheme: str) -> None:
    net, given = model(scheme), batch(scheme)
    left, right = net(given), net(given, side="right")
    packed, owner = net.forward_packed(given)
    for i, n in enumerate(given.lengths):
        own = net(alone(given, i))[0]
        assert own.shape == (n, 23)
        for found in (left[i, -n:], right[i, :n], packed[owner == i]):
            torch.testing.assert_close(found, own, atol=1e-5, rtol=0)
    for side, found in (("left", left[:, -1]), ("right", right[torch.arange(2), torch.tensor(given.lengths) - 1])):
        torch.testing.assert_close(net(given, side=side, last=True), found)


@torch.no_grad()
def test_each_scheme_gives_logits_of_its_own() -> None:
    given = batch()
    found = {s: model(s, kv_heads=4)(given) for s in ("rope1d", "v2pe", "mrope", "vrope", "videorope", "cca", "circle_rope")}
    names = list(found)
    for i, first in enumerate(names):
        for second in names[:i]:
            assert (found[first] - found[second])[0, -1].abs().max() > 1e-4, (first, second)


@torch.no_grad()
def test_the_decoder_is_causal_and_rings_are_not_inside_an_image() -> None:
    given = Sequences(((Text(2), Image(3, 3), Text(2)),), (torch.arange(4),), ((picture(1, 3, 3),),))
    changed = Sequences(given.rows, given.text, ((given.pictures[0][0].clone(),),))
    changed.pictures[0][0][0, :, -4:, -4:] += 1  # the last patch, of the outer ring
    for scheme, reaches in (("rope1d", False), ("cca", True)):
        net = model(scheme, vision_window=4)
        moved = (net(changed) - net(given))[0].abs().amax(-1) > 1e-6
        assert not moved[:2].any() and moved[-3:].all()
        assert bool(moved[2:10].any()) is reaches


@torch.no_grad()
def test_rates_reach_the_ids() -> None:
    net, given = model("v2pe"), batch()
    fine, coarse = (net(given, rates=[[r, r], [r]]) for r in (0.125, 1.0))
    assert (fine - coarse).abs().max() > 1e-3
    torch.testing.assert_close(coarse, model("rope1d")(given), atol=1e-5, rtol=0)
    drawn = [net(given, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    packed = net.forward_packed(given, generator=torch.Generator().manual_seed(1))[0]
    torch.testing.assert_close(packed[: given.lengths[0]], drawn[0][0], atol=1e-5, rtol=0)
    rates = [[0.5, 2.0], [0.25]]
    tokens, logits = net.generate(given, max_new_tokens=3, rates=rates, return_logits=True)
    torch.testing.assert_close(net(net.grown(given, tokens), rates=rates)[:, -4:-1], logits, atol=1e-5, rtol=0)


@torch.no_grad()
def test_generated_ids_are_those_built_from_scratch() -> None:
    for scheme in ("tad_rope", "circle_rope", "pype", "vrope"):
        net, row = model(scheme), (Text(2), Image(2, 3), Text(1))
        schemes = [net.scheme.for_layer(i, 2) for i in range(2)]
        nexts = [[build_ids(row, s)[1]] for s in schemes]
        first, nexts = net._step(schemes, nexts, torch.device("cpu"))
        second, _ = net._step(schemes, nexts, torch.device("cpu"))
        for layer, s in enumerate(schemes):
            whole = net.rotary.prepare(build_ids((*row, Text(2)), s)[0])
            torch.testing.assert_close(torch.cat((first[layer].cos, second[layer].cos), 2), whole.cos[:, :, -2:])


@torch.no_grad()
def test_a_row_stops_at_its_end() -> None:
    net, given = model(), batch()
    free = net.generate(given, max_new_tokens=6)
    end = int(free[0, 1])
    stopped = net.generate(given, max_new_tokens=6, end=end)
    for row, whole in zip(stopped.tolist(), free.tolist()):
        n = row.index(end) + 1 if end in row else len(row)
        assert row[:n] == whole[:n] and set(row[n:]) <= {end}


def test_windows_cut_and_come_back_in_place() -> None:
    pictures = torch.arange(2 * 8 * 12.0).reshape(2, 1, 8, 12)
    parts = crops(pictures, 4)
    assert parts.shape == (12, 1, 4, 4) and torch.equal(parts[4], pictures[0, :, 4:8, 4:8])
    pooled = parts.unflatten(3, (2, 2)).unflatten(2, (2, 2)).mean((3, 5)).flatten(2).transpose(1, 2)  # 2 x 2 tokens a crop
    maps = joined(pooled, (2, 3), (2, 2))
    torch.testing.assert_close(maps[..., 0], torch.nn.functional.avg_pool2d(pictures, 2)[:, 0])


@torch.no_grad()
def test_a_tower_of_windows_sees_no_neighbours_and_merging_joins_them() -> None:
    image = picture(1, 4, 4)
    changed = image.clone()
    changed[..., :4, :4] += 1
    for window, count in ((4, 1), (8, 4), (None, 16)):
        net = model(vision="vit_ti_rope_axial", vision_window=window)
        moved = (net.vision([image])[0] - net.vision([changed])[0])[0].abs().amax(-1) > 1e-6
        assert int(moved.sum()) == count
    merged = model(merge=2)
    assert merged.vision([image])[0].shape == (1, 2, 2, 32)
    given = Sequences(((Image(2, 2), Text(1)),), (torch.zeros(1, dtype=torch.int64),), ((image,),))
    assert merged(given).shape == (1, 5, 23)


@torch.no_grad()
def test_rows_of_text_alone_and_rows_that_begin_with_an_image() -> None:
    for scheme in ("rope1d", "videorope", "cca"):
        net, image = model(scheme), picture(1, 2, 3)
        rows = ((Text(4),), (Image(2, 3), Text(1)))
        given = Sequences(rows, (torch.arange(4), torch.arange(1)), ((), (image,)))
        both = net(given, last=True)
        for i in range(2):
            torch.testing.assert_close(net(alone(given, i), last=True), both[i : i + 1], atol=1e-5, rtol=0)
        assert alone(given, 0).to(torch.float64).text[0].dtype == torch.int64


def test_the_page_shows_a_program_that_runs() -> None:
    page = (Path(__file__).parents[2] / "docs/vlm_probes.md").read_text()
    names: dict = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    assert names["answer"].shape == (1, 4) and names["batch"].lengths == [28]


def test_files_bring_the_model_back(tmp_path: Path) -> None:
    net, given = model("mrope_interleave", theta=100.0, vision_window=8), batch()
    given = alone(Sequences(given.rows[::-1], given.text[::-1], given.pictures[::-1]), 0)
    net.save_pretrained(tmp_path)
    again = VisionLanguageModel.from_pretrained(tmp_path)
    assert torch.equal(again(given), net(given)) and again.rotary.theta == 100.0
    with pytest.raises(FileNotFoundError, match="no config.json"):
        VisionLanguageModel.from_pretrained(tmp_path / "none")


def test_every_parameter_is_trained_and_half_precision_stays_near() -> None:
    net, given = model("vrope"), batch()
    net(given).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in net.parameters())
    with torch.no_grad():
        exact = net(given)
        with torch.autocast("cpu", torch.bfloat16):
            rough = net(given)
    assert (rough.float() - exact).abs().max() < 0.05 * exact.abs().max()
    moved = given.to(torch.float64)
    assert moved.pictures[0][0].dtype == torch.float64 and moved.text[0].dtype == torch.int64


def test_bad_input_is_named() -> None:
    net, given = model(), batch()
    cases = [
        (Sequences(given.rows, given.text[::-1], given.pictures), "row 0 has 8 tokens of text"),
        (Sequences(given.rows, given.text, (given.pictures[0][:1], given.pictures[1])), "row 0 has 2 visual segments and 1"),
        (Sequences(given.rows[:1], given.text, given.pictures), "given for 1, 2 and 2 rows"),
        (
            Sequences(given.rows, given.text, (given.pictures[0], (picture(1, 2, 3),))),
            "row 1: the image is 2 x 2 tokens in the segments, its pictures of .* give 2 x 3",
        ),
        (
            Sequences(given.rows, given.text, (given.pictures[0][::-1], given.pictures[1])),
            r"row 0: segment 'image' needs pictures \(1, C, H, W\)",
        ),
        (Sequences(((Audio(3), Text(1)),), (given.text[0][:1],), ((picture(1, 1, 1),),)), "row 0: pictures come as"),
    ]
    for wrong, message in cases:
        with pytest.raises(ValueError, match=message):
            net(wrong)
    with pytest.raises(ValueError, match="max_new_tokens must be at least 1"):
        net.generate(given, max_new_tokens=0)
    for options, message in (
        ({"vision": "resnet18"}, "must be a ViT of vispe"), ({"kv_heads": 3}, "multiple of num_heads=4 and that of"),
        ({"vision_window": 6}, "vision_window=6 must be a multiple"), ({"scheme": "ropes"}, "unknown scheme"),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=message):
            model(**options)
