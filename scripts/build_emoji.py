"""Build the emoji atlas of Emoji-CLIP (``vispe/data/emoji.zip``) from icon sets and names on the npm registry.

    npm install --ignore-scripts --prefix FOLDER $(python scripts/build_emoji.py --npm)   # for the build only
    pip install $(python scripts/build_emoji.py --pip)
    python scripts/build_emoji.py --source FOLDER            # write the atlas, about a minute on one core
    python scripts/build_emoji.py --source FOLDER --check    # rebuild, compare with the shipped file

With the same packages the index and the rendered pixels are the same; the sheets are lossy WebP, whose bytes depend on the
libwebp inside Pillow too, so ``--check`` compares the index exactly and pixels after decoding. What the atlas holds, whose
work it is and under which licences is told in ``vispe/data/EMOJI.md``.
"""

import argparse
import importlib.metadata
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ATLAS = Path(__file__).resolve().parents[1] / "vispe" / "data" / "emoji.zip"
STYLES = {  # package (under @iconify-json) and version, in the order of the index
    "twemoji": "1.2.5", "fluent-emoji-flat": "1.2.6", "fluent-emoji": "1.2.7", "noto": "1.2.9",
}  # fmt: skip
NAMES = "17.0.0"  # of emojibase-data
RENDERER = "0.5.0"  # of resvg-py
SIZE = 64  # px: edge of an emoji; a multiple of 16, so that no block of the codec holds two emoji
COLUMNS = 40  # emoji in a row of a sheet
QUALITY = 75  # of the lossy sheets; opacity is lossless
SKIN = ("light-skin-tone", "medium-skin-tone", "dark-skin-tone")
EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed time stamp, so that equal contents give equal zip files


def read(path: Path) -> Any:
    if not path.is_file():
        raise SystemExit(f"no {path}; npm install --ignore-scripts --prefix FOLDER $(python scripts/build_emoji.py --npm)")
    return json.loads(path.read_text(encoding="utf-8"))


def icon_sets(modules: Path) -> dict[str, dict[str, Any]]:
    """``icons.json`` of each style; another version than STYLES says is refused."""
    sets = {}
    for style, version in STYLES.items():
        folder = modules / "@iconify-json" / style
        found = read(folder / "package.json")["version"]
        if found != version:
            raise SystemExit(f"@iconify-json/{style} is {found}, this script is made for {version}")
        sets[style] = read(folder / "icons.json")
    return sets


def concepts(modules: Path, sets: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Name, code points, label, tags and group of the emoji that every style draws; no flags, no skin tones."""
    noto = modules / "@iconify-json" / "noto"
    group = {name: title for title, names in read(noto / "metadata.json")["categories"].items() for name in names}
    codes = {name: plain(code) for code, name in read(noto / "chars.json").items()}
    known = {plain(entry["hexcode"]): entry for entry in read(modules / "emojibase-data" / "en" / "data.json")}
    found = []
    for name in set.intersection(*(set(s["icons"]) for s in sets.values())):
        if group.get(name, "Flags") == "Flags" or any(tone in name for tone in SKIN) or codes.get(name) not in known:
            continue
        entry = known[codes[name]]
        found.append({
            "name": name, "code": codes[name], "label": entry["label"], "tags": entry.get("tags", []),
            "group": group[name], "order": entry["order"],
        })  # fmt: skip
    found.sort(key=lambda entry: (entry.pop("order"), entry["name"]))
    return found


def plain(code: str) -> str:
    """Code points in lower case without the variation selector."""
    return "-".join(part for part in code.lower().split("-") if part != "fe0f")


def draw(icons: dict[str, Any], name: str) -> np.ndarray:
    """One emoji, uint8 (SIZE, SIZE, 4); one that is not square stands in the middle."""
    from resvg_py import svg_to_bytes

    icon = icons["icons"][name]
    left, top = (icon.get(key, icons.get(key, 0)) for key in ("left", "top"))
    width, height = (icon.get(key, icons.get(key, 16)) for key in ("width", "height"))
    edge = max(width, height)
    left, top = left - (edge - width) / 2, top - (edge - height) / 2
    head = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    svg = f'{head} viewBox="{left} {top} {edge} {edge}" width="{edge}" height="{edge}">{icon["body"]}</svg>'
    data = svg_to_bytes(svg_string=svg, width=SIZE, height=SIZE, skip_system_fonts=True)
    with Image.open(io.BytesIO(bytes(data))) as image:
        pixels = np.asarray(image.convert("RGBA"))
    if pixels.shape != (SIZE, SIZE, 4) or not pixels[..., 3].any():
        raise SystemExit(f"{icons['prefix']} {name}: rendered as {pixels.shape}, or as nothing")
    return pixels


def sheet(icons: dict[str, Any], names: list[str]) -> np.ndarray:
    """Emoji of a style in reading order, uint8 (rows * SIZE, COLUMNS * SIZE, 4)."""
    rows = -(-len(names) // COLUMNS)
    out = np.zeros((rows * SIZE, COLUMNS * SIZE, 4), np.uint8)
    for k, name in enumerate(names):
        top, left = SIZE * (k // COLUMNS), SIZE * (k % COLUMNS)
        out[top : top + SIZE, left : left + SIZE] = draw(icons, name)
    return out


def encoded(pixels: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "WEBP", quality=QUALITY, alpha_quality=100, method=6)
    return data.getvalue()


def build(source: Path) -> dict[str, bytes]:
    """Files of the atlas by name."""
    modules = source / "node_modules"
    if (found := importlib.metadata.version("resvg-py")) != RENDERER:
        raise SystemExit(f"resvg-py is {found}, this script is made for {RENDERER}")
    if (found := read(modules / "emojibase-data" / "package.json")["version"]) != NAMES:
        raise SystemExit(f"emojibase-data is {found}, this script is made for {NAMES}")
    sets = icon_sets(modules)
    emoji = concepts(modules, sets)
    index = {
        "format": 1, "size": SIZE, "columns": COLUMNS, "styles": list(STYLES), "emoji": emoji,
        "built_with": {**{f"@iconify-json/{k}": v for k, v in STYLES.items()}, "emojibase-data": NAMES, "resvg-py": RENDERER},
    }  # fmt: skip
    files = {"index.json": json.dumps(index, separators=(",", ":"), ensure_ascii=False).encode()}
    for style, icons in sets.items():
        files[f"{style}.webp"] = encoded(sheet(icons, [entry["name"] for entry in emoji]))
        print(f"{style}: {len(emoji)} emoji, {len(files[f'{style}.webp']) / 1e6:.2f} MB", flush=True)
    return files


def write(files: dict[str, bytes], path: Path) -> None:
    with zipfile.ZipFile(path, "w") as z:
        for name, data in files.items():
            packing = zipfile.ZIP_DEFLATED if name.endswith(".json") else zipfile.ZIP_STORED
            z.writestr(zipfile.ZipInfo(name, EPOCH), data, packing, 9)


def differences(files: dict[str, bytes], path: Path) -> list[str]:
    """What differs between a rebuilt atlas and the file at ``path``, one line each."""
    lines = []
    with zipfile.ZipFile(path) as z:
        lines += [f"only in one atlas: {name}" for name in sorted(set(z.namelist()) ^ files.keys())]
        for name in sorted(set(z.namelist()) & files.keys()):
            shipped, fresh = z.read(name), files[name]
            if name.endswith(".webp"):
                shipped, fresh = (np.asarray(Image.open(io.BytesIO(data)).convert("RGBA")) for data in (shipped, fresh))
                same = shipped.shape == fresh.shape and (shipped == fresh).all()
            else:
                same = shipped == fresh
            lines += [] if same else [f"{name} differs"]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="the folder that was npm's --prefix")
    parser.add_argument("--out", type=Path, default=ATLAS, help="the atlas to write, or to compare with")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="compare a rebuilt atlas with --out, write nothing")
    mode.add_argument("--npm", action="store_true", help="print the npm packages, pinned")
    mode.add_argument("--pip", action="store_true", help="print the Python packages, pinned")
    args = parser.parse_args()
    if args.npm or args.pip:
        packages = [*(f"@iconify-json/{k}@{v}" for k, v in STYLES.items()), f"emojibase-data@{NAMES}"]
        print(" ".join(packages) if args.npm else f"resvg-py=={RENDERER} pillow")
        return
    if args.source is None:
        parser.error("--source FOLDER is needed: where npm installed the packages of --npm")
    files = build(args.source)
    if args.check:
        lines = differences(files, args.out)
        print("\n".join(lines) or f"{args.out.name}: the rebuilt atlas has the same index and pixels")
        raise SystemExit(bool(lines))
    write(files, args.out)
    print(f"{args.out.name}: {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
