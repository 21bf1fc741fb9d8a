"""Build the glyph atlas of Glyph-47 (``vispe/data/glyph47.zip``) from the ``fontpkg-*`` font packages.

    pip install $(python scripts/build_glyphs.py --packages)  # for the build only, vispe does not need them
    python scripts/build_glyphs.py                             # write the atlas
    python scripts/build_glyphs.py --check                     # rebuild, compare with the shipped file
    python scripts/build_glyphs.py --credits                   # the credit table of vispe/data/GLYPHS.md

With the same packages, Pillow and FreeType the pixels and the index are the same; the bytes of the file also
depend on the libwebp inside Pillow, so ``--check`` compares pixels and index, not bytes. What the atlas holds
and why is told in ``vispe/data/GLYPHS.md``.
"""

import argparse
import importlib.metadata
import io
import json
import string
import sys
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageFont, features

ATLAS = Path(__file__).resolve().parents[1] / "vispe" / "data" / "glyph47.zip"
LONGEST = 96  # px: longest side of every glyph bitmap
MAX_FILES = 8  # static font files kept for a family
WEIGHTS = (0.1, 0.5, 0.9)  # where on its weight axis a variable font is rendered
SHEET_WIDTH, GAP = 1024, 2
SPLIT_SEED, NUM_TEST, NUM_VAL = 47, 12, 6
TEXTURE = 192  # px: side of a background crop
EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed time stamp, so that equal contents give equal zip files

FAMILIES = (
    "abeezee abril-fatface alegreya-sans alfa-slab-one amiri anton arvo barlow bebas-neue bitter "
    "black-ops-one caveat chakra-petch cinzel comfortaa cormorant-garamond crimson-text dancing-script "
    "delius dosis exo-2 fira-code fjalla-one fredoka great-vibes ibm-plex-serif inconsolata indie-flower "
    "josefin-sans kalam lato lobster-two luckiest-guy merriweather oleo-script orbitron oswald pacifico "
    "permanent-marker playfair-display press-start-2p rajdhani righteous roboto-slab rowdies rubik "
    "shadows-into-light space-mono spectral titan-one unbounded zeyada zilla-slab"
).split()
# Served as test families while the data set was designed, so they must not be test families again.
LOOKED_AT = (
    "fjalla-one indie-flower oleo-script cormorant-garamond delius kalam luckiest-guy lato black-ops-one "
    "abril-fatface press-start-2p cinzel"
).split()
# Name in skimage.data; top, left, side of the square reduced to TEXTURE px. All are CC0 or public domain.
PHOTOS = {
    "brick": (0, 0, 384), "grass": (0, 0, 384), "gravel": (0, 0, 384), "camera": (100, 60, 384),
    "chelsea": (0, 60, 300), "coffee": (0, 100, 400), "rocket": (0, 150, 420),
    "hubble_deep_field": (100, 100, 576),
}  # fmt: skip
CHARS = string.digits + string.ascii_uppercase + string.ascii_lowercase
SEPARATE_LOWER = "abdefghnqrt"  # the EMNIST "balanced" convention: the other 15 letters join their capital
STYLE_ORDER = "thin extralight light regular medium semibold bold extrabold black".split()


def class_of(char: str) -> str:
    return char if char in SEPARATE_LOWER else char.upper()


def draw_split() -> dict[str, list[str]]:
    """Families of each split: one shuffle of the sorted names; see SPLIT_SEED and LOOKED_AT."""
    names = sorted(FAMILIES)
    np.random.RandomState(SPLIT_SEED).shuffle(names)
    test = [n for n in names if n not in LOOKED_AT][:NUM_TEST]
    rest = [n for n in names if n not in test]
    return {"train": sorted(rest[NUM_VAL:]), "val": sorted(rest[:NUM_VAL]), "test": sorted(test)}


def font_files(family: str) -> list[Path]:
    """The TTF files kept for a family: roman first, light before bold, at most MAX_FILES, evenly spread."""
    dist = importlib.metadata.distribution(f"fontpkg-{family}")
    files = [Path(dist.locate_file(f)) for f in dist.files or () if f.name.endswith(".ttf")]

    def order(path: Path) -> tuple[bool, int, str]:
        style = path.stem.split("-")[-1].lower()
        weight = style.replace("italic", "") or "regular"
        return "italic" in style, STYLE_ORDER.index(weight) if weight in STYLE_ORDER else -1, path.name

    files.sort(key=order)
    if len(files) <= MAX_FILES:
        return files
    return [files[i] for i in np.linspace(0, len(files) - 1, MAX_FILES).round().astype(int)]


def faces(family: str) -> list[tuple[Path, list[float] | None, float | None]]:
    """``(file, axis values, weight)`` of each face; a variable file has a face for each of WEIGHTS."""
    found = []
    for path in font_files(family):
        try:
            axes = ImageFont.truetype(path, LONGEST).get_variation_axes()
        except OSError:  # Pillow's way of saying "not a variable font"
            found.append((path, None, None))
            continue
        for at in WEIGHTS:
            values = [float(a["default"]) for a in axes]
            k = [bytes(a["name"]) for a in axes].index(b"Weight")
            values[k] = round(axes[k]["minimum"] + at * (axes[k]["maximum"] - axes[k]["minimum"]))
            found.append((path, values, values[k]))
    return found


def ink(path: Path, axes: list[float] | None, char: str, size: float) -> np.ndarray:
    font = ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)
    if axes is not None:
        font.set_variation_by_axes(axes)
    mask = font.getmask(char, mode="L")
    a = np.frombuffer(bytes(mask), np.uint8).reshape(mask.size[1], mask.size[0])
    ys, xs = np.flatnonzero(a.max(1) > 8), np.flatnonzero(a.max(0) > 8)
    return a[ys[0] : ys[-1] + 1, xs[0] : xs[-1] + 1]


def glyph(path: Path, axes: list[float] | None, char: str) -> np.ndarray:
    """One character, its ink's longest side LONGEST px (up to hinting), 16 grey levels: 0, 17, ..., 255."""
    first = ink(path, axes, char, LONGEST)
    image = ink(path, axes, char, LONGEST * LONGEST / max(first.shape))
    return ((image.astype(np.int32) * 15 + 127) // 255 * 17).astype(np.uint8)


def similarity(images: dict[str, np.ndarray]) -> np.ndarray:
    """Pairwise correlation of the glyphs of a face, each stretched to 32 x 32; 1 for two near solid bars."""
    square = [Image.fromarray(a).resize((32, 32), Image.Resampling.BOX) for a in images.values()]
    v = np.stack([np.asarray(s, float).ravel() / 255 for s in square])
    solid = v.mean(1) > 0.85
    v -= v.mean(1, keepdims=True)
    v /= np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-9)
    return np.where(solid[:, None] & solid, 1.0, v @ v.T)


def look_alikes(images: dict[str, np.ndarray]) -> set[str]:
    """Lower-case letters of a face that are drawn like a character of another class: nobody could tell them.

    All 11 separate lower-case letters go if they correlate by more than 0.8 on average with their capitals
    (typefaces of capitals or small capitals); any other lower-case letter goes if it correlates by more than
    0.94, at nearly the same aspect ratio, with a character of another class that stays (l and I, o and 0).
    """
    score = similarity(images)
    at = {c: k for k, c in enumerate(images)}
    unicase = np.mean([score[at[c], at[c.upper()]] for c in SEPARATE_LOWER]) > 0.8
    out = set(SEPARATE_LOWER) if unicase else set()
    aspect = np.log([a.shape[0] / a.shape[1] for a in images.values()])
    for c in string.ascii_lowercase:
        rivals = [at[o] for o in CHARS if class_of(o) != class_of(c) and o not in out]
        if c not in out and any(score[at[c], r] > 0.94 and abs(aspect[at[c]] - aspect[r]) < 0.15 for r in rivals):
            out.add(c)
    return out


def build_family(family: str) -> tuple[dict, np.ndarray]:
    """Index entry and sheet of a family; a glyph is ``[char, face, top, left, height, width]`` in it."""
    meta = importlib.metadata.metadata(f"fontpkg-{family}")
    entry = {"package": f"fontpkg-{family}", "version": meta["Version"], "licence": meta["License-Expression"]}
    about = json.loads(importlib.metadata.distribution(f"fontpkg-{family}").locate_file(
        f"fontpkg_{family.replace('-', '_')}/metadata.json").read_text("utf-8"))  # fmt: skip
    entry |= {"name": about["family"], "copyright": about["copyright"], "faces": [], "left_out": [], "glyphs": []}
    images, y, x, row = [], GAP, GAP, 0
    for k, (path, axes, weight) in enumerate(faces(family)):
        face = {c: glyph(path, axes, c) for c in CHARS}
        gone = look_alikes(face)
        entry["faces"].append({"file": path.name, "weight": weight})
        entry["left_out"].append("".join(sorted(gone)))
        for c, image in face.items():
            if c in gone:
                continue
            h, w = image.shape
            if x + w + GAP > SHEET_WIDTH:
                x, y, row = GAP, y + row + GAP, 0
            entry["glyphs"].append([c, k, y, x, h, w])
            images.append(image)
            x, row = x + w + GAP, max(row, h)
    sheet = np.zeros((y + row + GAP, SHEET_WIDTH), np.uint8)
    for (_, _, top, left, h, w), image in zip(entry["glyphs"], images, strict=True):
        sheet[top : top + h, left : left + w] = image
    return entry, sheet


def build_texture(name: str) -> np.ndarray:
    import skimage.data

    top, left, side = PHOTOS[name]
    image = np.asarray(getattr(skimage.data, name)())[top : top + side, left : left + side]
    return np.asarray(Image.fromarray(image).convert("RGB").resize((TEXTURE, TEXTURE), Image.Resampling.LANCZOS))


def build(say=print) -> tuple[dict, dict[str, np.ndarray]]:
    """The index and the images by their name in the zip file."""
    names = [*FAMILIES, "scikit-image"]
    missing = [n for n in names if not _installed(n if n == "scikit-image" else f"fontpkg-{n}")]
    if missing:
        raise SystemExit(f"not installed: {', '.join(missing)}; pip install $(python {sys.argv[0]} --packages)")
    index = {
        "format": 1, "longest": LONGEST, "gap": GAP, "families": {}, "textures": sorted(PHOTOS),
        "split": draw_split(),
        "built_with": {
            "pillow": importlib.metadata.version("pillow"), "freetype": features.version("freetype2"),
            "scikit-image": importlib.metadata.version("scikit-image"),
        },
    }  # fmt: skip
    images = {f"textures/{name}.webp": build_texture(name) for name in index["textures"]}
    for k, family in enumerate(FAMILIES):
        index["families"][family], images[f"sheets/{family}.webp"] = build_family(family)
        say(f"[{k + 1}/{len(FAMILIES)}] {family}: {len(index['families'][family]['glyphs'])} glyphs", flush=True)
    return index, images


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def write(index: dict, images: dict[str, np.ndarray], path: Path) -> None:
    with zipfile.ZipFile(path, "w") as z:
        text = json.dumps(index, separators=(",", ":"))
        z.writestr(zipfile.ZipInfo("index.json", EPOCH), text, zipfile.ZIP_DEFLATED, 9)
        for name, image in sorted(images.items()):
            data = io.BytesIO()
            Image.fromarray(image).save(data, "WEBP", lossless=True, quality=100, method=6, exact=True)
            z.writestr(zipfile.ZipInfo(name, EPOCH), data.getvalue(), zipfile.ZIP_STORED)


def differences(index: dict, images: dict[str, np.ndarray], path: Path) -> list[str]:
    """What differs between a rebuilt atlas and the file at ``path``, one line each."""
    with zipfile.ZipFile(path) as z:
        shipped = json.loads(z.read("index.json"))
        fresh = json.loads(json.dumps(index))
        lines = [f"index[{k!r}] differs" for k in fresh.keys() | shipped.keys() if fresh.get(k) != shipped.get(k)]
        names = {n for n in z.namelist() if n != "index.json"}
        lines += [f"only in one atlas: {n}" for n in sorted(names ^ images.keys())]
        for name in sorted(names & images.keys()):
            old = Image.open(io.BytesIO(z.read(name)))
            old = np.asarray(old.convert("L" if images[name].ndim == 2 else "RGB"))
            if old.shape != images[name].shape or (old != images[name]).any():
                lines.append(f"pixels differ: {name}")
    return lines


def credits(index: dict) -> str:
    rows = ["| family | package | licence | faces | glyphs | split | copyright |", "|---|---|---|---|---|---|---|"]
    for key, f in index["families"].items():
        split = next(s for s, names in index["split"].items() if key in names)
        package = f"`{f['package']}` {f['version']}"
        cells = (f["name"], package, f["licence"], len(f["faces"]), len(f["glyphs"]), split, f["copyright"])
        rows.append("| " + " | ".join(" ".join(str(c).replace("|", ",").split()) for c in cells) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ATLAS, help="the atlas to write, or to compare with")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="compare a rebuilt atlas with --out, write nothing")
    mode.add_argument("--packages", action="store_true", help="print the packages of the shipped atlas, pinned")
    mode.add_argument("--credits", action="store_true", help="print the credit table of the shipped atlas")
    args = parser.parse_args()
    if args.packages or args.credits:
        with zipfile.ZipFile(args.out) as z:
            index = json.loads(z.read("index.json"))
        pins = [f"{f['package']}=={f['version']}" for f in index["families"].values()]
        pins += [f"{n}=={index['built_with'][n]}" for n in ("pillow", "scikit-image")]
        print(credits(index) if args.credits else " ".join(pins))
        return
    index, images = build()
    if args.check:
        lines = differences(index, images, args.out)
        print("\n".join(lines) or f"{args.out.name}: the rebuilt atlas has the same index and pixels")
        raise SystemExit(bool(lines))
    write(index, images, args.out)
    count = sum(len(f["glyphs"]) for f in index["families"].values())
    print(f"{args.out.name}: {count} glyphs, {len(FAMILIES)} families, {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
