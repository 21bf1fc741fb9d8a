"""Tiny random models of transformers, and prompts made by hand: token ids, grids and pixels."""

from __future__ import annotations

import inspect
import itertools

import torch
import transformers as tf
from torch import Tensor, nn

from vispe.positions.segments import Image, Segment, Text, Video

CACHE = "cache" if "cache" in inspect.signature(tf.Qwen2VLForConditionalGeneration.forward).parameters else "past_key_values"
IMAGE, VIDEO, PAD, START, END, VOCAB = 90, 91, 0, 92, 93, 96
TEXT = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=512, pad_token_id=PAD, bos_token_id=None, eos_token_id=None, head_dim=16,
)  # fmt: skip
SECTIONS = {"qwen2_vl": [2, 3, 3], "qwen2_5_vl": [2, 3, 3], "qwen3_vl": [4, 2, 2]}
TOKENS = dict(image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END)


def qwen(kind: str, *, implementation: str = "sdpa", rope: dict | None = None, **text: object) -> nn.Module:
    """Qwen2-VL, Qwen2.5-VL or Qwen3-VL of two layers; head width 16, so 8 pairs."""
    told = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": SECTIONS[kind], **(rope or {})}
    words = {**TEXT, "hidden_size": 64, "rope_parameters": told, "rms_norm_eps": 1e-6, **text}
    words.pop("head_dim") if kind != "qwen3_vl" else None
    sight = dict(depth=1, num_heads=2, patch_size=2, temporal_patch_size=2, spatial_merge_size=2, in_channels=3)
    if kind == "qwen2_vl":
        sight |= dict(embed_dim=16, hidden_size=64, mlp_ratio=1)
        config, cls = tf.Qwen2VLConfig, tf.Qwen2VLForConditionalGeneration
    elif kind == "qwen2_5_vl":
        sight |= dict(hidden_size=16, out_hidden_size=64, intermediate_size=16, window_size=8, fullatt_block_indexes=[0],
                      tokens_per_second=2)  # fmt: skip
        config, cls = tf.Qwen2_5_VLConfig, tf.Qwen2_5_VLForConditionalGeneration
    else:
        sight |= dict(hidden_size=16, out_hidden_size=64, intermediate_size=16, deepstack_visual_indexes=[0],
                      num_position_embeddings=16)  # fmt: skip
        config, cls = tf.Qwen3VLConfig, tf.Qwen3VLForConditionalGeneration
    return built(cls, config(text_config=words, vision_config=sight, **TOKENS), implementation)


def line(kind: str, *, implementation: str = "sdpa", decoder: str | None = None) -> nn.Module:
    """InternVL (Qwen2 decoder) or LLaVA (Llama decoder); an image is 2 x 2 tokens."""
    decoder = decoder or {"internvl": "qwen2", "llava": "llama"}[kind]
    rope = {"rope_type": "default", "rope_theta": 100.0}
    if kind == "internvl":
        words = {**TEXT, "model_type": decoder, "rope_parameters": rope}
        words.pop("head_dim") if decoder == "qwen2" else None
        sight = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=[8, 8],
                     patch_size=[2, 2])  # fmt: skip
        config = tf.InternVLConfig(text_config=words, vision_config=sight, image_token_id=IMAGE, image_seq_length=4)
        return built(tf.InternVLForConditionalGeneration, config, implementation)
    words = {**TEXT, "model_type": decoder, "rope_parameters": rope, "sliding_window": None}
    sight = dict(model_type="clip_vision_model", hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                 intermediate_size=16, image_size=8, patch_size=4)  # fmt: skip
    config = tf.LlavaConfig(text_config=words, vision_config=sight, image_token_id=IMAGE, image_seq_length=4)
    return built(tf.LlavaForConditionalGeneration, config, implementation)


def built(cls: type[nn.Module], config: object, implementation: str) -> nn.Module:
    torch.manual_seed(0)
    config._attn_implementation = implementation
    model = cls._from_config(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4) if p.ndim > 1 else None  # else positions hardly matter
    model.generation_config.pad_token_id = PAD
    model.generation_config.eos_token_id = None
    return model


def prompt(
    kind: str, rows: list[list[Segment]], *, seed: int = 0, side: str = "left", mask: bool = True, pixels: bool = True
) -> dict[str, Tensor]:
    """Arguments of a forward for rows of segments; grids in patches (2 x 2 a token), Qwen3-VL's videos frame by frame."""
    g = torch.Generator().manual_seed(seed)
    ids, images, videos, seconds, sights = [], [], [], [], {"image": [], "video": []}
    for row in rows:
        tokens = []
        for s in row:
            if isinstance(s, Text):
                tokens += torch.randint(2, 80, (s.n,), generator=g).tolist()
            elif isinstance(s, Image):
                tokens += [IMAGE] * s.length
                images.append([1, 2 * s.height, 2 * s.width])
                sights["image"].append(torch.randn(4 * s.length, 24, generator=g))
            else:
                per = [VIDEO] * (s.height * s.width)
                tokens += list(itertools.chain.from_iterable([*per, 7] for _ in range(s.frames))) if kind == "qwen3_vl" \
                    else per * s.frames  # fmt: skip
                videos.append([s.frames, 2 * s.height, 2 * s.width])
                seconds.append(s.seconds)
                sights["video"].append(torch.randn(4 * s.length, 24, generator=g))
        ids.append(tokens)
    out = padded(ids, side, mask)
    if kind in ("internvl", "llava"):
        count = (out["input_ids"] == IMAGE).sum().item() // 4
        return out | ({"pixel_values": torch.randn(count, 3, 8, 8, generator=g)} if count and pixels else {})
    out["mm_token_type_ids"] = (out["input_ids"] == IMAGE).long() + 2 * (out["input_ids"] == VIDEO).long()
    for name, grids, key in (("image", images, "pixel_values"), ("video", videos, "pixel_values_videos")):
        if grids:
            out[f"{name}_grid_thw"] = torch.tensor(grids)
            if pixels:
                out[key] = torch.cat(sights[name])
    if kind == "qwen2_5_vl" and videos:
        out["second_per_grid_ts"] = torch.tensor(seconds)
    return out


def padded(ids: list[list[int]], side: str, mask: bool) -> dict[str, Tensor]:
    longest = max(map(len, ids))
    rows = [[PAD] * (longest - len(r)) + r if side == "left" else r + [PAD] * (longest - len(r)) for r in ids]
    keep = [[0] * (longest - len(r)) + [1] * len(r) if side == "left" else [1] * len(r) + [0] * (longest - len(r)) for r in ids]
    return {"input_ids": torch.tensor(rows)} | ({"attention_mask": torch.tensor(keep)} if mask else {})


def logits(model: nn.Module, batch: dict[str, Tensor], **options: object) -> Tensor:
    with torch.no_grad():
        return model(**batch, **options).logits


def grown(batch: dict[str, Tensor], new: Tensor) -> dict[str, Tensor]:
    """A batch with tokens of text (B, n) behind it."""
    out = {**batch, "input_ids": torch.cat((batch["input_ids"], new), 1)}
    if "attention_mask" in batch:
        out["attention_mask"] = torch.cat((batch["attention_mask"], torch.ones_like(new)), 1)
    if "mm_token_type_ids" in batch:
        out["mm_token_type_ids"] = torch.cat((batch["mm_token_type_ids"], torch.zeros_like(new)), 1)
    return out


def generated(model: nn.Module, batch: dict[str, Tensor], n: int = 4, **options: object) -> tuple[Tensor, Tensor]:
    """Greedy tokens (B, n) and the logits that gave them (B, n, V)."""
    options = {"do_sample": False, "suppress_tokens": [IMAGE, VIDEO], "max_new_tokens": n, "min_new_tokens": n, **options}
    out = model.generate(**batch, output_logits=True, return_dict_in_generate=True, **options)
    return out.sequences[:, batch["input_ids"].shape[1] :], torch.stack(out.logits, dim=1)


def follows(model: nn.Module, batch: dict[str, Tensor], n: int = 4) -> float:
    """The largest difference between logits of generation with a cache and those of one forward over all."""
    new, steps = generated(model, batch, n)
    whole = logits(model, grown(batch, new[:, :-1]), use_cache=False)
    return (whole[:, -n:] - steps).abs().max().item()


MIXED = [
    [Text(3), Image(2, 3), Text(2)],
    [Text(1), Image(2, 2), Text(2), Video(3, 2, 2, seconds=1.0), Text(3)],
    [Text(5)],
]
PICTURES = [[Text(2), Image(2, 2), Text(3), Image(2, 2), Text(2)], [Text(1), Image(2, 2), Text(2)], [Text(4)]]
