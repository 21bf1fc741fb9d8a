"""Token ids and grids through a swapped model's reader, scheme and rotary module: the official codes' ids and tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers_helpers import qwen

import vispe
from vispe.adapters import transformers as adapter

CASES = Path(__file__).resolve().parents[1] / "parity/cases"
FIVE, FOUR = {"preset": "transformers_5"}, {"preset": "transformers_4"}
FILES = {
    "mrope/qwen2vl_hf4_batch2_leftpad_d16": ("qwen2_vl", "mrope", {}),
    "mrope/qwen2vl_hf4_batch2_rightpad_d16": ("qwen2_vl", "mrope", {}),
    "mrope/qwen2_5vl_hf5_spg0p75_batch2_leftpad_d16": ("qwen2_5_vl", "mrope_time", FIVE),
    "mrope/qwen2_5vl_hf5_spg1p5_batch2_rightpad_d16": ("qwen2_5_vl", "mrope_time", FIVE),
    "mrope/qwen2_5vl_hf4_spg0p75_batch2_leftpad_d16": ("qwen2_5_vl", "mrope_time", FOUR),
    "mrope_interleave/qwen3vl_hf5_batch2_leftpad_d16": ("qwen3_vl", "mrope_interleave", {}),
    "mrope_interleave/mrope_i_noreset_batch2_leftpad_d16": ("qwen3_vl", "mrope_interleave", {}),
    "mrope_interleave/mrope_i_reset_batch2_rightpad_d16": ("qwen3_vl", "mrope_interleave_reset", {}),
    "videorope/videorope_batch2_leftpad_d16": ("qwen2_vl", "videorope", {}),
    "videorope/videorope_batch2_rightpad_d16": ("qwen2_vl", "videorope", {}),
    "hope/hope_s0p75_batch2_leftpad_d16": ("qwen2_vl", "hope", {"scale": 0.75}),
    "hope/hope_s1p5_batch2_rightpad_d16": ("qwen2_vl", "hope", {"scale": 1.5}),
    "tad_rope/tad_batch2_leftpad_d16": ("qwen2_vl", "tad_rope", {}),
    "il_rope/mmropes_batch2_leftpad_d16": ("qwen3_vl", "il_rope", {}),
}


@pytest.mark.parametrize("name", FILES)
def test_ids_and_tables_are_the_official_ones(name):
    kind, scheme, options = FILES[name]
    with safe_open(CASES / f"{name}.safetensors", framework="pt") as file:
        config = json.loads(file.metadata()["config"])
        given = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118  not a mapping
    batch = {k.removeprefix("in."): v for k, v in given.items() if k.startswith("in.") and v.dtype == torch.int64}
    if "in.second_per_grid_ts" in given:
        batch["second_per_grid_ts"] = given["in.second_per_grid_ts"]
    rope = {"rope_theta": float(config["rope_theta"]), "mrope_section": config["mrope_section"]}
    model = vispe.swap(qwen(kind, rope=rope), scheme, encoding_kwargs=options)
    inner = model.model.vispe_adapter
    inner.reader = replace(inner.reader, image_token=151655, video_token=151656)
    keep = batch["attention_mask"].bool()
    without_types = {k: v for k, v in batch.items() if k != "mm_token_type_ids"}
    for call in (batch, without_types):
        slot = adapter.positions(model, call)["position_ids"]
        want = given["out.position_ids"][:, keep]
        torch.testing.assert_close(slot[1:, keep].to(want.dtype).expand_as(want), want, atol=2e-5, rtol=0)
    for table, official in zip(model.model.language_model.rotary_emb(torch.zeros(1), slot), ("out.cos", "out.sin")):
        torch.testing.assert_close(table[keep], given[official][keep], atol=1e-5, rtol=0)
