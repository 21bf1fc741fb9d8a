# %% [markdown]
# # Position ids of a vision-language model, seen
#
# A decoder that reads text, images and videos in one sequence has to number their tokens. The published schemes differ in
# nothing but these numbers (and in which rotary pair reads which of them). Here they are, drawn over one and the same
# sequence: text, an image of 4x6 tokens, text, a video of 3 frames of 3x4 tokens, text.

# %%
import matplotlib.pyplot as plt
import torch

from vispe.positions.schemes import SCHEMES
from vispe.positions.segments import Image, Text, Video
from vispe.positions.sequence import build_ids

plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False, "font.size": 9})

SEGMENTS = [Text(5), Image(4, 6), Text(4), Video(3, 3, 4, seconds=0.5), Text(5)]
COLOURS = {"text": "#f0f0f0", "image": "#cfe3f5", "video": "#fbe0c8"}


def shade(axes):
    """Backgrounds of the segments; returns where they end."""
    here = 0
    for segment in SEGMENTS:
        axes.axvspan(here - 0.5, here + segment.length - 0.5, color=COLOURS[segment.kind], linewidth=0)
        here += segment.length
    axes.set_xlim(-0.5, here - 0.5)
    return here


# %% [markdown]
# ## Every scheme over the same sequence
#
# One line an axis. Blue is the image, orange the video. Look at three things: whether the text behind a picture starts far away
# (flattened ids: as many as there are tokens) or close by; whether the axes part inside pictures; and whether the picture's own
# ids touch those of the text (the bias that VRoPE and Circle-RoPE take away).

# %%
names = list(SCHEMES)
fig, panels = plt.subplots(-(-len(names) // 3), 3, figsize=(11, 1.9 * -(-len(names) // 3)), sharex=True)
for axes, name in zip(panels.flat, names):
    ids, next_id = build_ids(SEGMENTS, name)
    shade(axes)
    for axis, line in enumerate(ids):
        axes.plot(line, ".-", markersize=2.5, linewidth=0.8, label=f"axis {axis}")
    axes.set_title(f"{name} (next id {next_id:g})", fontsize=8)
    if len(ids) > 1:
        axes.legend(frameon=False, fontsize=6, loc="upper left")
for axes in panels.flat[len(names) :]:
    axes.axis("off")
fig.tight_layout()

# %% [markdown]
# ## The image alone
#
# The same ids laid out as the picture, one map an axis: what a query behind the image subtracts from. Rings (CCA, PyPE) rise
# towards the middle; Circle-RoPE puts every patch at the same distance from the text.

# %%
SHOWN = ["rope1d", "v2pe", "mrope", "vrope", "videorope", "circle_rope", "cca", "mca", "pype", "rope_dhr"]
MAPS = [
    (name, axis, line[5 : 5 + 24].view(4, 6)) for name in SHOWN for axis, line in enumerate(build_ids(SEGMENTS, name)[0])
]
fig, panels = plt.subplots(-(-len(MAPS) // 4), 4, figsize=(11, 2 * -(-len(MAPS) // 4)))
for axes, (name, axis, grid) in zip(panels.flat, MAPS):
    low, high = float(grid.min()), float(grid.max())
    axes.imshow(grid, cmap="cividis", vmin=low, vmax=max(high, low + 1))
    for y, x in torch.cartesian_prod(torch.arange(4), torch.arange(6)).tolist():
        bright = float(grid[y, x]) - low > 0.6 * max(high - low, 1)
        axes.text(x, y, f"{float(grid[y, x]):.3g}", ha="center", va="center", fontsize=7, color="black" if bright else "white")
    axes.set_title(f"{name}, axis {axis}", fontsize=8)
for axes in panels.flat:
    axes.axis("off")
fig.tight_layout()

# %% [markdown]
# ## Length
#
# How far the ids get with a growing video, 6x6 tokens a frame: what decides when a model leaves the range that
# it was trained on.

# %%
fig, axes = plt.subplots(figsize=(7, 3.2))
frames = [1, 4, 16, 64, 256]
for name in ("rope1d", "v2pe", "mrope", "mrope_time", "vrope", "videorope", "hope", "tad_rope", "mrope_interleave"):
    axes.plot(frames, [build_ids([Text(5), Video(n, 6, 6, seconds=0.5)], name)[1] for n in frames], marker="o", label=name)
axes.set(xscale="log", yscale="log", xlabel="frames", ylabel="id of the next text token")
axes.legend(frameon=False, fontsize=7, ncols=2)
fig.tight_layout()

# %% [markdown]
# ## Going on
#
# `next_id` is all that decoding needs: ids that go on there are those of the whole sequence built at once.

# %%
for name in SCHEMES:
    whole, _ = build_ids([*SEGMENTS, Text(3)], name)
    first, next_id = build_ids(SEGMENTS, name)
    rest, _ = build_ids([Text(3)], name, start=next_id)
    assert torch.allclose(torch.cat([first, rest], dim=1), whole), name
print(f"{len(SCHEMES)} schemes go on exactly")

# %% [markdown]
# Batches: `pack` puts rows of different lengths together (either padding side), and documents that share a row get a mask.
# The rules that draw V2PE's steps in training, tiles with thumbnails, audio and boxes are in `vispe.positions.sequence` and
# `vispe.positions.schemes`.
