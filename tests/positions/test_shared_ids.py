"""Rings, their masks, and tiles that take a thumbnail's ids: against rules written out cell by cell."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vispe.positions.masks import batch_mask, ring_mask
from vispe.positions.schemes import create_scheme
from vispe.positions.segments import Image, Text, Tiles, Video
from vispe.positions.sequence import build_batch, build_ids

ROW = [
    Text(2), Image(4, 7), Text(1), Video(2, 3, 5), Image(1, 3), Text(2), Tiles(1, 2, 3, 4, thumbnail=(3, 3)),
    Tiles(2, 1, 3, 3, thumbnail=(2, 5), first="thumbnail"), Text(1),
]  # fmt: skip


def ring(name, i, j, height, width, keep=None):
    """Peel the border off again and again (CCA, PyPE), or count steps to both borders (MCA)."""
    if name == "mca":
        return min(i, height - 1 - i) + min(j, width - 1 - j)
    found = 0
    while found < i < height - 1 - found and found < j < width - 1 - found:
        found += 1
    return found if keep is None else min(found, keep - 1)


def pictures(segment):
    """(height, width) of everything that has rings of its own: an image, a frame, a tile, a thumbnail."""
    own = [(segment.height, segment.width)]
    if not isinstance(segment, Tiles):
        return own * getattr(segment, "frames", 1)
    tiles = own * (segment.rows * segment.cols)
    return [*tiles, segment.thumbnail] if segment.first == "tiles" else [segment.thumbnail, *tiles]


def walk(name, step=None):
    """(id, number of the image or None) of every token of ROW."""
    out, here, image = [], 0, 0
    for segment in ROW:
        if isinstance(segment, Text):
            out += [(here + n, None) for n in range(segment.n)]
            here += segment.n
            continue
        for height, width in pictures(segment):
            own = [ring(name, i, j, height, width) for i in range(height) for j in range(width)]
            keep = None if step is None else max(max(own) + 1 - step, 1)
            own = [ring(name, i, j, height, width, keep) for i in range(height) for j in range(width)]
            out += [(here + r, image) for r in own]
            here, image = here + max(own) + 1, image + 1
    return out


@pytest.mark.parametrize("name, layer", [("cca", None), ("mca", None), ("pype", 0), ("pype", 1), ("pype", 2), ("pype", 9)])
def test_ring_ids_and_masks(name, layer):
    scheme = create_scheme(name) if layer is None else create_scheme(name, layers_per_step=1).for_layer(layer, 12)
    tokens = walk(name, layer)
    assert build_ids(ROW, scheme)[0][0].tolist() == [place for place, _ in tokens]
    seen = ring_mask(ROW, scheme)
    for m, (place, image) in enumerate(tokens):
        for n, (other, theirs) in enumerate(tokens):
            same = image is not None and image == theirs
            assert seen[m, n].item() == (other <= place if same else n <= m), (m, n)


@pytest.mark.parametrize("name", ["cca", "mrope"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_masks_of_padded_batches(name, side):
    """Rows alone, in their place; attention with the mask gives what a row alone gives, and padding no NaN."""
    rows = [ROW, [Text(3)], [Image(3, 3), Text(2)]]
    masks, batch = batch_mask(rows, name, side=side), build_batch(rows, name, side=side)
    q, k, v = torch.randn(3, 3, 1, batch.mask.shape[1], 4, generator=torch.Generator().manual_seed(0))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=masks[:, None])
    assert out.isfinite().all()
    for i, (row, valid) in enumerate(zip(rows, batch.mask)):
        n = int(valid.sum())
        alone = ring_mask(row, name) if name == "cca" else torch.ones(n, n).tril().bool()
        expected = F.scaled_dot_product_attention(*(t[i, :, valid] for t in (q, k, v)), attn_mask=alone)
        torch.testing.assert_close(out[i, :, valid], expected)
        assert masks[i, ~valid].sum() == len(valid) - n == masks[i].diagonal()[~valid].sum()
    with pytest.raises(ValueError, match="side must be"):
        batch_mask(rows, name, side="middle")


def test_masks_need_rings():
    with pytest.raises(ValueError, match="has no rings"):
        ring_mask(ROW, "mrope")


@pytest.mark.parametrize("columns, rows", [(x, y) for x in range(1, 7) for y in range(1, 7) if 1 < x * y <= 12])
def test_released_tiles_are_the_loop_of_the_code(columns, rows):
    """CoMemo's `calculate_subimage_indices`: columns outermost, edges 1e-6 early, whole numbers by truncation."""
    expected = []
    for x in range(columns):
        for y in range(rows):
            across, down = (
                [int(v) for v in np.linspace(at * (16 / n - 1e-6), (at + 1) * (16 / n - 1e-6), 16)]
                for at, n in ((x, columns), (y, rows))
            )
            expected += [16 * r + c for r in down for c in across]
    segment = Tiles(rows, columns, 16, 16, thumbnail=(16, 16))
    ids, end = build_ids([segment], create_scheme("rope_dhr", rule="released"))
    assert ids[0].tolist() == expected + list(range(256)) and end == 256


@pytest.mark.parametrize("scheme", ["rope_dhr", "id_align"])
@pytest.mark.parametrize("order", ["tiles", "raster"])
@pytest.mark.parametrize("first", ["tiles", "thumbnail"])
@pytest.mark.parametrize(
    "rows, columns, side, thumbnail", [(2, 2, (4, 4), (4, 4)), (1, 3, (4, 2), (3, 5)), (3, 2, (2, 3), (4, 4))]
)
def test_fixed_tiles_are_the_thumbnail_enlarged(scheme, order, first, rows, columns, side, thumbnail):
    """Every token has the id that the thumbnail's ids, enlarged without blending, have there."""
    own = torch.arange(thumbnail[0] * thumbnail[1]).double()
    whole = F.interpolate(own.view(1, 1, *thumbnail), size=(rows * side[0], columns * side[1]), mode="nearest")[0, 0]
    if order == "tiles":
        whole = torch.stack([tile for band in whole.split(side[0], 0) for tile in band.split(side[1], 1)])
    parts = [whole.flatten(), own]
    segment = Tiles(rows, columns, *side, thumbnail=thumbnail, order=order, first=first)
    ids, end = build_ids([Text(3), segment, Text(1)], scheme)
    assert ids[0, 3:-1].tolist() == (3 + torch.cat(parts if first == "tiles" else parts[::-1])).tolist()
    assert ids[0, -1] == 3 + len(own) and end == 4 + len(own)


def test_shared_ids_by_unit():
    row = [Text(1), Image(2, 3), Video(2, 2, 2), Tiles(1, 2, 1, 2, thumbnail=(1, 1)), Text(1)]
    expected = {
        "row": [0] + [1] * 3 + [2] * 3 + [3] * 2 + [4] * 2 + [5] * 2 + [6] * 2 + [7] * 2 + [8] * 2 + [9] + [10],
        "image": [0] + [1] * 6 + [2] * 4 + [3] * 4 + [4] * 2 + [5] * 2 + [6] + [7],
        "block": [0] + [1] * 6 + [2] * 8 + [3] * 5 + [4],
    }
    for unit, ids in expected.items():
        assert build_ids(row, create_scheme("shared_position", unit=unit))[0][0].tolist() == ids
