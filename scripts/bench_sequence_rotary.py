"""Cosines and sines of a long multimodal sequence: ours against transformers' rotary modules, and the time to build ids.

    OMP_NUM_THREADS=1 python scripts/bench_sequence_rotary.py --tokens 18500          (needs transformers)

Interleaved runs in one process: each round runs every contender once, in rotating order; medians over the rounds of the ratio
to transformers in the same round. "same tables" gives (B, S, D) as transformers does; "pairs" is what our rotation takes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from vispe.encodings.axis_map import default_sections
from vispe.encodings.rope_sequence import SequenceRotary, full_tables
from vispe.positions.segments import Image, Segment, Text, Video
from vispe.positions.sequence import build_ids


def theirs(name: str, head_dim: int) -> Callable[[torch.Tensor], object]:
    """transformers' rotary module of Qwen2-VL or Qwen3-VL as a function of ids (3, B, S)."""
    if name == "mrope":
        from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig as Config
        from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding as Rotary
    else:
        from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig as Config
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding as Rotary
    allocation = "chunked" if name == "mrope" else "interleaved"
    sections = list(default_sections(allocation, pairs=head_dim // 2))
    parameters = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections}
    config = Config(hidden_size=head_dim * 2, num_attention_heads=2, num_key_value_heads=2, rope_parameters=parameters)
    config.head_dim = head_dim
    module, x = Rotary(config), torch.zeros(1)
    return lambda ids: module(x, ids)


def ours(name: str, head_dim: int, *, tables: bool) -> Callable[[torch.Tensor], object]:
    rotary = SequenceRotary(head_dim=head_dim, scheme=name, theta=1e6)
    return (lambda ids: full_tables(rotary.prepare(ids))) if tables else rotary.prepare


def layout(tokens: int) -> list[Segment]:
    """An image, and a video of 12 x 24 tokens a frame between texts, of about so many tokens."""
    frames = max((tokens - 600) // 288, 1)
    return [Text(64), Image(16, 24), Text(20), Video(frames, 12, 24), Text(tokens - 468 - 288 * frames)]


def ratios(contenders: dict[str, Callable[[], object]], base: str, rounds: int) -> dict[str, tuple[float, float]]:
    """Median milliseconds and median ratio to the base of each contender."""
    names = list(contenders)
    spent: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds + 2):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            start = time.process_time()
            contenders[name]()
            spent[name].append(time.process_time() - start)
    spent = {name: times[2:] for name, times in spent.items()}
    out = {}
    for name, times in spent.items():
        against = statistics.median(t / b for t, b in zip(times, spent[base]))
        out[name] = (1e3 * statistics.median(times), against)
    return out


def compare(scheme: str, *, tokens: int, head_dim: int, rounds: int) -> None:
    segments = layout(tokens)
    ids = build_ids(segments, scheme)[0][:, None]
    official = theirs(scheme, head_dim)
    tables, pairs = (ours(scheme, head_dim, tables=t) for t in (True, False))
    for name, one, other in zip(("cos", "sin"), official(ids), tables(ids)):
        print(f"{scheme} {name}: largest difference {(one - other).abs().max():.1e}")
    made = {
        "transformers": lambda: official(ids),
        "same tables": lambda: tables(ids),
        "pairs": lambda: pairs(ids),
        "ids": lambda: build_ids(segments, scheme),
    }
    for name, (milliseconds, ratio) in ratios(made, "transformers", rounds).items():
        print(f"{scheme:18} {name:14} {milliseconds:7.2f} ms  {ratio:5.2f} of transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=18500)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for scheme in ("mrope", "mrope_interleave"):
        compare(scheme, tokens=args.tokens, head_dim=args.head_dim, rounds=args.rounds)


if __name__ == "__main__":
    main()
