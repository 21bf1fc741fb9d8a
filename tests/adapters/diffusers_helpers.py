"""Tiny models of every class that the adapters for diffusers know, and arguments for them."""

import torch
from diffusers import (
    DiTTransformer2DModel,
    FluxTransformer2DModel,
    Lumina2Transformer2DModel,
    PixArtTransformer2DModel,
    SD3Transformer2DModel,
    WanTransformer3DModel,
)

SHARED = dict(num_attention_heads=2, in_channels=4, num_layers=2)
CONFIGS = {
    "dit": (DiTTransformer2DModel, dict(SHARED, attention_head_dim=8, sample_size=8, num_embeds_ada_norm=10)),
    "pixart": (
        PixArtTransformer2DModel,
        dict(SHARED, attention_head_dim=8, sample_size=8, cross_attention_dim=16, num_embeds_ada_norm=10,
             caption_channels=12, use_additional_conditions=False),
    ),
    "sd3": (
        SD3Transformer2DModel,
        dict(SHARED, attention_head_dim=8, sample_size=8, patch_size=2, joint_attention_dim=12, caption_projection_dim=16,
             pooled_projection_dim=10, out_channels=4, pos_embed_max_size=8, dual_attention_layers=(0,), qk_norm="rms_norm"),
    ),
    "flux": (
        FluxTransformer2DModel,
        dict(SHARED, attention_head_dim=16, num_single_layers=2, joint_attention_dim=12, pooled_projection_dim=10,
             axes_dims_rope=(4, 6, 6)),
    ),
    "lumina2": (
        Lumina2Transformer2DModel,
        dict(sample_size=8, in_channels=4, hidden_size=24, num_layers=2, num_refiner_layers=1, num_attention_heads=2,
             num_kv_heads=1, multiple_of=8, axes_dim_rope=(4, 4, 4), axes_lens=(40, 40, 40), cap_feat_dim=12),
    ),
    "wan": (
        WanTransformer3DModel,
        dict(SHARED, attention_head_dim=12, out_channels=4, text_dim=12, freq_dim=16, ffn_dim=16, rope_max_seq_len=32),
    ),
}  # fmt: skip


def tiny(host, **changes):
    """A model in eval mode with no parameter at a special value."""
    torch.manual_seed(0)
    cls, config = CONFIGS[host]
    model = cls(**{**config, **changes}).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def shaken(model):
    """The model with its new parameters away from where they started."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".encodings." in name:
                p.add_(0.3 * torch.randn_like(p))
    return model


def flux_ids(rows, columns):
    ids = torch.zeros(rows, columns, 3)
    ids[..., 1], ids[..., 2] = torch.arange(rows)[:, None], torch.arange(columns)
    return ids.reshape(-1, 3)


def arguments(host, grid=(3, 5), *, batch=2, frames=3):
    """Arguments of a forward with `grid` tokens of the image."""
    g = torch.Generator().manual_seed(1)
    rows, columns = grid

    def normal(*shape):
        return torch.randn(*shape, generator=g)

    latent, words = normal(batch, 4, 2 * rows, 2 * columns), normal(batch, 5, 12)
    t = torch.tensor([3.0, 500.0, 40.0])[:batch]
    if host == "dit":
        return dict(hidden_states=latent, timestep=t.long(), class_labels=torch.arange(batch))
    if host == "pixart":
        none = {"resolution": None, "aspect_ratio": None}
        return dict(hidden_states=latent, timestep=t.long(), encoder_hidden_states=words, added_cond_kwargs=none)
    if host == "sd3":
        return dict(hidden_states=latent, timestep=t, encoder_hidden_states=words, pooled_projections=normal(batch, 10))
    if host == "flux":
        ids = dict(img_ids=flux_ids(rows, columns), txt_ids=torch.zeros(5, 3))
        tokens = normal(batch, rows * columns, 4)
        return dict(hidden_states=tokens, encoder_hidden_states=words, timestep=t / 1000,
                    pooled_projections=normal(batch, 10), **ids)  # fmt: skip
    if host == "lumina2":
        mask = torch.ones(batch, 5, dtype=torch.long)
        mask[-1, 3:] = 0
        return dict(hidden_states=latent, timestep=t / 1000, encoder_hidden_states=words, encoder_attention_mask=mask)
    return dict(hidden_states=normal(batch, 4, frames, 2 * rows, 2 * columns), timestep=t, encoder_hidden_states=words)


def run(model, host, grid=(3, 5), **options):
    return model(**arguments(host, grid, **options), return_dict=False)[0]


def new_parameters(model):
    return {name: p for name, p in model.named_parameters() if ".encodings." in name}
