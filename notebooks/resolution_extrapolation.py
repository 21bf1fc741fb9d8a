# %% [markdown]
# # What happens at twice the resolution?
#
# Eight small Vision Transformers (seven with positions, one without) that differ in nothing else, trained on 32x32 pictures of
# characters (Glyph-47, shipped with vispe), and shown pictures of up to 96x96. The weights come from `checkpoints/`; nothing is
# downloaded. The pictures are rendered anew at every size, so a larger one really shows more. At the end a diffusion model
# draws such pictures at twice the size it was trained at.

# %%

import json

import matplotlib.pyplot as plt
import timm
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import vispe
from vispe.data.glyphs import CLASSES, GlyphDataset
from vispe.diagnostics import walk, wavelengths
from vispe.diagnostics.host import patches_of
from vispe.models.dit import EncodedDiT
from vispe.models.dit_pipeline import EncodedDiTPipeline
from vispe.plots.data import similarity_map
from vispe.positions import patch_grid

torch.set_grad_enabled(False)
plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False, "font.size": 9})
IMAGES = 100  # a size; the intervals are about 10 points wide, so only large differences count

# %% [markdown]
# ## The pictures

# %%
SIZES = [(32, 32), (48, 48), (64, 64), (96, 96), (32, 64)]
fig, rows = plt.subplots(2, len(SIZES), figsize=(10, 4))
for column, size in enumerate(SIZES):
    data = GlyphDataset("test", size=size, length=2)
    for axes, (picture, label) in zip(rows[:, column], (data[0], data[1])):
        axes.imshow(picture[0], cmap="gray")
        axes.set_title(f"{size[0]}x{size[1]}: {CLASSES[label]}")
        axes.axis("off")

# %% [markdown]
# ## Accuracy against resolution
#
# An encoding sees a larger grid in one of two ways. **extend** counts on: cell 8 is the first that was never trained.
# **rescale** squeezes the grid into the trained range: coordinates become fractions of a cell. A learned table is resampled.

# %%
NAMES = ["none", "learned", "learned_sincos", "rope_axial", "rope_mixed", "rope_dinov3", "comrope", "cpe"]
models = {
    name: timm.create_model(f"vit_glyph_{name}.glyph47", pretrained=True).eval() for name in NAMES
}
ROTARY = ("rope_axial", "rope_mixed", "rope_dinov3", "comrope")
drawn = {}


def pictures(size):
    """Standardised pictures and labels of a size, drawn once."""
    if size not in drawn:
        data = GlyphDataset("test", size=size, length=IMAGES)
        images, labels = zip(*(data[i][:2] for i in range(IMAGES)))
        mean, std = models["none"].pretrained_cfg["mean"][0], models["none"].pretrained_cfg["std"][0]
        drawn[size] = (torch.stack(images) - mean) / std, torch.tensor([int(label) for label in labels])
    return drawn[size]


def top1(model, size):
    """Share of the pictures that a model reads right, in percent."""
    images, labels = pictures(size)
    return 100 * float(torch.cat([model(part).argmax(-1) for part in images.split(50)]).eq(labels).float().mean())


def curve(model, coords=None, extrapolation=None, sizes=((32, 32), (48, 48), (64, 64), (96, 96))):
    """Accuracy at every size; the model comes back as it was."""
    if coords:
        model.set_coords(coords)
    if extrapolation:
        model.set_extrapolation(extrapolation)
    found = [top1(model, size) for size in sizes]
    if extrapolation:
        model.set_extrapolation(None)
    if coords:
        model.set_coords(None)
    return found


curves = {(name, coords): curve(models[name], coords) for name in NAMES for coords in (
    ("extend", "rescale") if name in ROTARY else (None,))}

# %%
fig, panels = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
side = [32, 48, 64, 96]
for (name, coords), values in curves.items():
    for panel, shown in zip(panels, ("extend", "rescale")):
        if coords in (None, shown):
            panel.plot(side, values, marker="o", label=name if coords else f"{name} (resampled)" if "learned" in name else name)
for panel, title in zip(panels, ("positions count on (extend)", "positions squeezed (rescale)")):
    panel.set(title=title, xlabel="pixels a side (trained at 32)", xticks=side, ylim=(0, 100))
panels[0].set_ylabel("top-1 (%)")
panels[1].legend(frameon=False, fontsize=8, loc="upper right", bbox_to_anchor=(1.45, 1))
fig.tight_layout()

# %% [markdown]
# Counting on breaks every rotary encoding here within 1.5x; squeezing loses a few points. That is what fixed tables do
# when they are resampled, and why their curves look alike on the right. The convolution (`cpe`) has no
# coordinates to squeeze: it falls more slowly than counting does, and falls.
#
# This data favours squeezing: a character fills its picture at every size. Where a larger picture shows *more scene*
# at the same scale, squeezing is the wrong prior. `python -m train study` measures both.
#
# ## What breaks
#
# Each rotary pair turns with its own wavelength. Those longer than the trained grid never made a full turn in training,
# so cells beyond it meet angles that were never seen.

# %%
fig, axes = plt.subplots(figsize=(8, 2.8))
for row, name in enumerate(ROTARY):
    waves = next(iter(wavelengths(models[name], (8, 8)).values())).patches.flatten()
    waves = waves[waves < 1e4]
    height = row + torch.linspace(-0.25, 0.25, len(waves))
    axes.plot(waves, height, ".", alpha=0.4, markersize=4)
    longer = float((waves > 8).float().mean())
    axes.text(1.02, row, f"{100 * longer:.0f} % longer than the grid", transform=axes.get_yaxis_transform(), fontsize=8)
axes.axvline(8, color="black", linewidth=1)
axes.axvline(24, color="black", linewidth=1, linestyle=":")
axes.set(
    xscale="log", xlabel="wavelength in cells (solid: the trained 8, dotted: the 24 of 96 pixels)", yticks=range(len(ROTARY)),
    yticklabels=ROTARY, title="wavelengths of all pairs",
)  # fmt: skip
fig.tight_layout()

# %% [markdown]
# How alike one patch is to all others, by the encoding alone (the same query and key everywhere), on the trained grid and on
# three times its side. Counting on keeps the near field and adds a far field that no weight has met.

# %%
fig, rows = plt.subplots(2, len(ROTARY), figsize=(9, 4.6))
for column, name in enumerate(ROTARY):
    encoding = next(member for _, member in models[name].encoding.encodings())
    for axes, n in zip(rows[:, column], (8, 24)):
        values = similarity_map(encoding, patch_grid(n, n, train=(8, 8)), n * (n // 2) + n // 2).mean(0)
        axes.imshow(values.view(n, n), cmap="RdBu_r", vmin=-1, vmax=1)
        axes.set_title(f"{name}, {n}x{n}", fontsize=8)
        axes.axis("off")
fig.suptitle("similarity to the patch in the middle (mean of the heads of block 1)", fontsize=10)
fig.tight_layout()

# %% [markdown]
# ## What repairs it, without training
#
# The published methods change frequencies as the grid grows: position interpolation (`pi`, the same as rescaling), NTK-aware
# bases, NTK by parts, YaRN. `model.set_extrapolation(...)` takes them all for encodings with a series of frequencies; learned
# frequencies take the two that need no base.

# %%
METHODS = {"rope_axial": ["pi", "ntk", "by_parts", "yarn", "vision_yarn"], "rope_mixed": ["pi", "yarn", "vision_yarn"]}
fig, panels = plt.subplots(1, 2, figsize=(10, 3.4), sharey=True)
for panel, (name, methods) in zip(panels, METHODS.items()):
    panel.plot(side[:3], curves[name, "extend"][:3], color="gray", marker="o", label="none (counting on)")
    for method in methods:
        values = curve(models[name], extrapolation=method, sizes=[(32, 32), (48, 48), (64, 64)])
        panel.plot(side[:3], values, marker="o", label=method)
    panel.set(title=name, xlabel="pixels a side (trained at 32)", xticks=side[:3], ylim=(0, 100))
    panel.legend(frameon=False, fontsize=8)
panels[0].set_ylabel("top-1 (%)")
fig.tight_layout()

# %% [markdown]
# On a picture that is filled at every size, interpolation is the answer. NTK and YaRN keep the fast pairs as they are, so that
# neighbours stay one cell apart, which helps a language model and hardly helps here: what this ViT reads is where a stroke lies
# in the frame. (YaRN on RoPE-Mixed interpolates nearly everything, as few of its pairs make a full turn.)
#
# Random positions in training (RPE-2D, `vispe.positions.random`) are another way out: the model then meets
# gaps of many widths beforehand. They belong to diffusion models here, see `docs/diffusion.md`.
#
# ## Where attention goes
#
# How much of it each patch of the first picture gets in the last block.

# %%
def received(model, size, coords):
    """Attention that each patch gets from all others in the last block, (H, W), mean of the heads."""
    model.set_coords(coords)
    images, _ = pictures(size)
    patches, pos = patches_of(model, images[:1])
    last = list(walk(model, patches, pos))[-1]
    weights = last.logits().softmax(-1)[0].mean(dim=(0, 1))
    model.set_coords(None)
    return weights.view(pos.grid)


fig, rows = plt.subplots(2, 4, figsize=(9, 4.6))
for row, name in zip(rows, ("rope_axial", "rope_mixed")):
    row[0].imshow(pictures((96, 96))[0][0, 0], cmap="gray")
    row[0].set_title("picture, 96x96", fontsize=8)
    for axes, (size, coords) in zip(row[1:], [((32, 32), "extend"), ((96, 96), "extend"), ((96, 96), "rescale")]):
        axes.imshow(received(models[name], size, coords), cmap="cividis")
        axes.set_title(f"{name}, {size[0]} px, {coords}", fontsize=8)
for axes in rows.flat:
    axes.axis("off")
fig.tight_layout()

# %% [markdown]
# ## Pictures that are not square
#
# The same weights on the same characters in wide and tall fields. Both axes have a frame of their own, so "rescale" squeezes
# only the longer one.

# %%
SHAPES = [(32, 32), (32, 48), (48, 32), (32, 64), (64, 32)]
rows = [("encoding", "positions", *(f"{h}x{w}" for h, w in SHAPES))]
for name in NAMES:
    for coords in ("extend", "rescale") if name in ROTARY else (None,):
        rows.append((name, coords or "-", *(f"{value:.0f}" for value in curve(models[name], coords, sizes=SHAPES))))
print("\n".join("".join(f"{cell:>{17 if i == 0 else 10}}" for i, cell in enumerate(row)) for row in rows))

# %% [markdown]
# ## Drawing at twice the resolution
#
# A diffusion transformer of 2.4 million parameters with axial RoPE, trained for minutes to draw the same characters at 32x32,
# and asked for them at 64x64. First what it does at its own size, then the same four ways as above, with the same noise.

# %%
dit = EncodedDiT.from_pretrained(vispe.shipped("dit_glyph_rope_axial"), low_cpu_mem_usage=False).eval()
pipe = EncodedDiTPipeline(dit, FlowMatchEulerDiscreteScheduler(shift=2.0))
pipe.set_progress_bar_config(disable=True)
ASKED = "238ACEHN"


def samples(side, coords="extend", extrapolation=None):
    """One sample of each character, (8, 1, side, side) in [0, 1]; the model comes back as it was."""
    dit.set_coords(coords)
    dit.set_extrapolation(extrapolation)
    images = pipe(
        [CLASSES.index(character) for character in ASKED], height=side, width=side, num_inference_steps=12, guidance_scale=2.0,
        generator=torch.Generator().manual_seed(0), output_type="pt",
    ).images  # fmt: skip
    dit.set_extrapolation(None)
    dit.set_coords(None)
    return images


WAYS = {
    "32x32, as trained": (32,),
    "64x64, extend": (64,),
    "64x64, NTK": (64, "extend", "ntk"),
    "64x64, YaRN": (64, "extend", "yarn"),
    "64x64, rescale": (64, "rescale"),
}
fig, rows = plt.subplots(len(WAYS), len(ASKED), figsize=(8.5, 5.6))
for line, (title, way) in zip(rows, WAYS.items()):
    for axes, image in zip(line, samples(*way)):
        axes.imshow(image[0], cmap="gray", vmin=0, vmax=1)
        axes.axis("off")
    line[0].set_title(title, fontsize=8, loc="left")
fig.tight_layout()

# %% [markdown]
# Drawing asks for more than reading: every patch has to fit its neighbours, and a patch of 64x64 shows a smaller part of a
# stroke than one of 32x32. Counting on breaks the whole character. NTK hardly differs from it: it leaves the fast pairs as they
# are, and on a grid of 8 cells it is these that tell places. Squeezed positions keep the character as a whole and tear it apart
# from patch to patch, as neighbours are half a cell from each other; YaRN lies between.
#
# The card of the weights has the share of samples (in percent) that the judge, a classifier, reads as what was asked for:

# %%
measured = json.loads((vispe.shipped("dit_glyph_rope_axial") / "metrics.json").read_text())["measured"]
for way, accuracy in measured.items():
    print(f"{way:>8}: " + "   ".join(f"{size} {value:4.0f}" for size, value in accuracy.items()))

# %% [markdown]
# Training on random positions (RPE-2D) and time-dependent methods are in `docs/diffusion.md`.
#
# ## In short
#
# * A fixed rule that counts on (rope in "extend") fails soon after the trained size; whatever keeps coordinates within
#   the trained range survives, on pictures that scale with their frame.
# * Among those that survive, the encoding decides the level: relative ones learn this task far faster than tables.
# * A model that draws is harder to enlarge than one that reads: whatever moves neighbours to other distances shows in strokes.
# * One seed and 100 pictures a point: for means, spreads and paired differences see `docs/glyphs.md` and `docs/study.md`.
