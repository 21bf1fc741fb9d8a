# %% [markdown]
# # Choose an encoding for your pretrained ViT
#
# You have a ViT with a learned table of positions, trained at one size. You want another encoding, because your pictures are
# larger or are not square, and you do not want to train from scratch. `vispe.swap` puts any encoding of the table into a timm
# model, keeps every weight, and starts from the same function where the new encoding can be set to change nothing.
#
# The pretrained model here is one that vispe ships (Glyph-47, 32x32, learned table). With a model of yours, only the first cell
# changes: `timm.create_model("vit_small_patch16_224", pretrained=True)` (or DeiT, DINOv2, DINOv3, EVA-02, BEiT, a CLIP tower).

# %%
import copy

import matplotlib.pyplot as plt
import timm
import torch
import torch.nn.functional as F

import vispe
from vispe.data.glyphs import GlyphDataset

torch.manual_seed(0)
plt.rcParams.update({"figure.dpi": 70, "axes.spines.top": False, "axes.spines.right": False, "font.size": 9})

shipped = timm.create_model("vit_glyph_learned_sincos.glyph47", pretrained=True).eval()
MEAN, STD = shipped.pretrained_cfg["mean"][0], shipped.pretrained_cfg["std"][0]
pretrained = timm.create_model(  # timm's own class, with the same weights under timm's names
    "vit_tiny_patch16_224", img_size=32, patch_size=4, in_chans=1, num_classes=47, embed_dim=128, depth=6, num_heads=4,
    class_token=shipped.cls_token is not None, no_embed_class=False, global_pool=shipped.global_pool,
    dynamic_img_size=True,
).eval()  # fmt: skip
state = {key: value for key, value in shipped.state_dict().items() if not key.startswith("encoding.")}
pretrained.load_state_dict(state | {"pos_embed": shipped.state_dict()["encoding.learned.pos_embed"]})
pretrained.pretrained_cfg.update(mean=(MEAN,), std=(STD,), input_size=(1, 32, 32))
type(pretrained).__module__, sum(p.numel() for p in pretrained.parameters())

# %%
fig, panels = plt.subplots(1, 8, figsize=(9, 1.4))
for number, (axes, size) in enumerate(zip(panels, [32, 48] * 4)):
    axes.imshow(GlyphDataset("test", size=(size, size), length=8)[number][0][0], cmap="gray")
    axes.set_title(f"{size}x{size}", fontsize=8)
    axes.axis("off")

# %% [markdown]
# ## What does the model know about positions now?

# %%
found = vispe.diagnose(pretrained, only=("attention_distance", "decodability"))
found.figure("decodability")

# %% [markdown]
# ## Swap: the same function, then more freedom
#
# `old="keep"` leaves the table in place and adds the new encoding; `old="remove"` takes the table away, which changes the
# function, so that `start="init"` must be said aloud. `vispe.list_encodings()` has all names, `vispe show NAME` their cards.

# %%
picture = torch.randn(2, 1, 32, 32)
with torch.no_grad():
    before = pretrained(picture)
    for name in ("comrope", "irpe", "cpe", "fire2d", "rope_mixed"):
        try:
            after = vispe.swap(pretrained, name, old="keep").eval()(picture)
            print(f"{name:12} starts from the same function: largest difference {float((after - before).abs().max()):.1e}")
        except ValueError as error:
            print(f"{name:12} {error}")

# %% [markdown]
# ## Fine-tune for larger pictures
#
# Four ways to serve 48x48 with the model trained at 32x32, each for the same short budget at 48x48: the table resampled, the
# table kept and ComRoPE or a convolution added, and the table replaced by RoPE-Mixed. The zero step is what resampling alone
# gives.

# %%
SIZE, STEPS, BATCH = (48, 48), 40, 32
train = GlyphDataset("train", size=SIZE, length=STEPS * BATCH)
test = {}
for size in ((32, 32), SIZE, (48, 64)):
    data = GlyphDataset("test", size=size, length=100)
    images, labels = zip(*(data[i][:2] for i in range(len(data))))
    test[size] = (torch.stack(images) - MEAN) / STD, torch.tensor([int(label) for label in labels])


@torch.no_grad()
def top1(model, size):
    images, labels = test[size]
    model.eval()
    return 100 * float(torch.cat([model(part).argmax(-1) for part in images.split(50)]).eq(labels).float().mean())


def finetune(model):
    """A short run with a falling learning rate, ten times as high for the new encoding; returns the losses."""
    model.train()
    new = [p for name, p in model.named_parameters() if name.startswith("encoding.") and "learned" not in name]
    old = [p for p in model.parameters() if not any(p is q for q in new)]
    groups = [{"params": old, "peak": 3e-4}, {"params": new, "peak": 3e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        images, labels = zip(*(train[step * BATCH + i][:2] for i in range(BATCH)))
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * (1 - step / STEPS)
        loss = F.cross_entropy(model((torch.stack(images) - MEAN) / STD), torch.tensor([int(label) for label in labels]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def resized(model):
    model.set_input_size(SIZE)
    return model


candidates = {
    "table, resampled": resized(copy.deepcopy(pretrained)),
    "table + comrope": resized(vispe.swap(pretrained, "comrope", old="keep")),
    "table + cpe": resized(vispe.swap(pretrained, "cpe", old="keep")),
    "rope_mixed instead": resized(vispe.swap(pretrained, "rope_mixed", old="remove", start="init")),
}

# %%
results, curves = {}, {}
for name, model in candidates.items():
    zero = top1(model, SIZE)
    curves[name] = finetune(model)
    results[name] = [zero, *(top1(model, size) for size in test)]
print(f"{'':20}{'untrained 48':>14}" + "".join(f"{h}x{w}".rjust(9) for h, w in test))
for name, values in results.items():
    print(f"{name:20}{values[0]:>14.0f}" + "".join(f"{value:>9.0f}" for value in values[1:]))

# %%
fig, axes = plt.subplots(figsize=(7, 3))
for name, losses in curves.items():
    axes.plot(torch.tensor(losses).unfold(0, 6, 1).mean(-1), label=name)
axes.set(xlabel="step", ylabel="loss at 48x48 (mean of 6 steps)")
axes.legend(frameon=False, fontsize=8)
fig.tight_layout()

# %% [markdown]
# ## Keep it
#
# What `swap` returns is saved and loaded by timm like any other model; the encoding is part of its name and arguments.

# %%
import tempfile  # noqa: E402

from timm.models import save_for_hf  # noqa: E402

with tempfile.TemporaryDirectory() as folder:
    chosen = candidates["table + comrope"].eval()
    save_for_hf(chosen, f"{folder}/mine", safe_serialization=True)
    again = timm.create_model(f"local-dir:{folder}/mine", pretrained=True).eval()
    with torch.no_grad():
        print("reloaded, largest difference:", float((again(test[SIZE][0][:8]) - chosen(test[SIZE][0][:8])).abs().max()))

# %% [markdown]
# ## Which one?
#
# * The old table is good and only the size changes: keep it; adding an encoding that starts from nothing costs little.
# * You will meet many sizes and shapes: a relative encoding in place of the table, with enough fine-tuning to replace it.
# * 40 steps and one seed show the mechanics, not a ranking. For yours, run `vispe extrapolate MODEL --data FOLDER --sizes
#   ...` before and after, and see `docs/study.md` for how much seeds differ.
