"""What every encoding of the table must do inside a ViT: shapes, gradients, parameter groups, states, copies, modes."""

import copy
import inspect
import pickle
import re
from collections import defaultdict

import pytest
import timm
import torch
from generic_helpers import DIM, HEADS, NAMES, ZOO, close, excite, facts, images, vit
from timm.layers import set_fused_attn
from timm.optim import param_groups_weight_decay
from timm.utils import ModelEmaV3
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vispe.encodings import ENCODINGS, EncodingStack, create_encoding
from vispe.positions import video_grid

RESIZABLE = [name for name, cls in ENCODINGS.items() if "resize" in inspect.signature(cls).parameters]


@pytest.mark.parametrize("variant", ZOO)
def test_shapes_at_any_grid(variant):
    model = vit(variant)
    prefix = model.num_prefix_tokens
    for height, width in [(32, 48), (64, 40), (8, 40), (40, 8), (8, 8)]:  # the train grid, another, 1xN, Nx1, one patch
        tokens = model.forward_features(images(height, width))
        assert tokens.shape == (2, prefix + height * width // 64, DIM)
        assert tokens.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_prefix_tokens(name, prefix):
    kinds = {0: dict(class_token=False, global_pool="avg"), 1: {}, 5: dict(reg_tokens=4)}
    model = vit(name, **kinds[prefix])
    assert model.num_prefix_tokens == prefix
    assert model(images(40, 56)).isfinite().all()
    assert model.forward_features(images(40, 56)).shape == (2, prefix + 35, DIM)


@pytest.mark.parametrize("name", [n for n in ZOO if n != "none"])
def test_the_encoding_reaches_the_output(name):
    """Without positions a ViT does not see a permutation of its patches; with any encoding it does."""
    tokens = torch.randn(1, 24, DIM, generator=torch.Generator().manual_seed(4))
    order = torch.randperm(24, generator=torch.Generator().manual_seed(5))
    for variant, same in ((name, False), ("none", True)):
        model = vit(variant)
        pos = model.positions(4, 6)
        outs = []
        for t in (tokens, tokens[:, order]):
            x, ctx = model.start(t, pos)
            for i in range(len(model.blocks)):
                x = model.run_block(i, x, ctx)
            outs.append(model.forward_head(model.norm(x)))
        assert ((outs[0] - outs[1]).abs().max() < 1e-5) == same


# ---- bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_heads_that_do_not_divide(name):
    with pytest.raises(ValueError) as error:
        create_encoding(name, dim=98, num_heads=4, depth=2, **facts(name, 2))
    text = str(error.value)
    assert ENCODINGS[name].__name__ in text and "98" in text and "4" in text and "choose" in text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("head_dim", [1, 7, 10])
def test_widths_that_do_not_divide(name, head_dim):
    """An awkward width either works or is refused with the name, the number and what would fit."""
    try:
        encoding = create_encoding(name, dim=2 * head_dim, num_heads=2, depth=2, **facts(name, 2))
    except ValueError as error:
        text = str(error)
        assert name.split("_")[0] in text.lower(), text
        assert f"{head_dim}" in text or f"{2 * head_dim}" in text, text
        assert any(word in text for word in ("must be", "choose", "multiple of", "divisors")), text
        return
    model = timm.create_model(
        f"vit_ti_{name}", embed_dim=2 * head_dim, num_heads=2, depth=1, patch_size=8, img_size=32, num_classes=3
    )
    assert encoding.head_dim == head_dim and model(images(32, 40)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_unknown_options_and_axes(name):
    with pytest.raises(ValueError, match=rf"^{name}: unknown option 'thetta'; (it accepts|did you mean)"):
        create_encoding(name, dim=DIM, num_heads=HEADS, depth=2, thetta=1.0, **facts(name, 2))
    with pytest.raises(ValueError, match=r"accepts positions with .* axes, got axes=9"):
        create_encoding(name, dim=DIM, num_heads=HEADS, depth=2, axes=9, **facts(name, 2))


@pytest.mark.parametrize("name", NAMES)
def test_positions_with_another_number_of_axes(name):
    if not ENCODINGS[name].card.needs:
        return
    encoding = create_encoding(name, dim=DIM, num_heads=HEADS, depth=2, **facts(name, 2))
    with pytest.raises(ValueError, match="axes") as error:
        encoding.prepare(video_grid(2, 3, 2))
    assert name.split("_")[0] in str(error.value).lower() and "3" in str(error.value)


@pytest.mark.parametrize("name", RESIZABLE)
def test_misspelt_resize(name):
    with pytest.raises(ValueError, match="resize must be 'extend' or 'rescale', got 'extended'"):
        create_encoding(name, dim=DIM, num_heads=HEADS, depth=2, resize="extended", **facts(name, 2))


# ---- parameters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ZOO)
def test_every_parameter_gets_a_gradient_at_init(variant):
    """Also of tables that start at zero: they are multiplied with tokens that are not.

    The loss takes all tokens: a class token alone leaves a zero gradient to biases between patches of the last block.
    """
    model = vit(variant, moved=False).train()
    tokens = model.forward_features(images())
    loss = model.forward_head(tokens).square().sum() + (tokens * torch.randn_like(tokens)).sum()
    loss.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all(), name
        assert p.grad.abs().max() > 0, name


# Parameters that the papers (or their code) keep out of weight decay; one-dimensional ones are out in any case.
NO_DECAY = {
    "none": set(),
    "learned": {"pos_embed"},  # timm, DeiT
    "sincos2d": set(),
    "learnable_fourier": set(),
    "rope_axial": set(),
    "rope_mixed": {"0.freqs", "1.freqs"},  # rope-vit
    "rope_dinov3": set(),
    "comrope": {f"{i}.{p}" for i in (0, 1) for p in ("skew", "multiplier")},
    "comrope_ap": {"0.skew", "1.skew"},
    "comrope_ld": {f"{i}.{p}" for i in (0, 1) for p in ("skew", "multiplier")},
    "irpe": set(),  # Cream decays its tables
    "cpe": {"pegs.0.weight"},  # Twins
    "gta2d": set(),
}


@pytest.mark.parametrize("name", NAMES)
def test_no_decay_names(name):
    model = vit(name)
    groups = param_groups_weight_decay(model, weight_decay=0.05, no_weight_decay_list=model.no_weight_decay())
    free = {id(p) for g in groups if g["weight_decay"] == 0 for p in g["params"]}
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))
    own = {n.removeprefix(f"encoding.{name}."): p for n, p in model.named_parameters() if n.startswith("encoding.")}
    wide = {n for n, p in own.items() if id(p) in free and p.ndim > 1}
    declared = ENCODINGS[name].no_decay
    assert wide == NO_DECAY.get(name, {n for n, p in own.items() if p.ndim > 1 and set(n.split(".")) & set(declared)})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("again", ["", "jax", "reset"])
def test_init_statistics_survive_the_host(name, again):
    """timm re-initialises every Linear of a model; encodings keep their own distributions."""
    wide = dict(embed_dim=192, num_heads=4, depth=12)
    torch.manual_seed(0)
    model = timm.create_model(
        f"vit_ti_{name}", patch_size=8, img_size=64, num_classes=2, **wide, **({"weight_init": "jax"} if again == "jax" else {})
    )
    if again == "reset":
        excite(model.encoding)
        model.init_weights()
    torch.manual_seed(1)
    own = EncodingStack(name, dim=192, num_heads=4, depth=12, facts={"grid": (8, 8), "prefix": 1})
    pools = defaultdict(lambda: ([], []))
    for side, stack in enumerate((model.encoding, own)):
        for key, p in stack.named_parameters():
            pools[re.sub(rf"^{name}\.\d+\.", "", key)][side].append(p.flatten())  # all layers together
    for key, (ours, fresh) in pools.items():
        ours, fresh = torch.cat(ours), torch.cat(fresh)
        near = max(0.25, 4 * len(ours) ** -0.5)  # small samples scatter
        a, b = ours.std(correction=0), fresh.std(correction=0)
        assert abs(a - b) <= near * b, (key, a, b)
        assert abs(ours.abs().mean() - fresh.abs().mean()) <= near * fresh.abs().mean(), key


def test_init_statistics_of_the_papers():
    def std(name, key, **options):
        torch.manual_seed(0)
        layers = [create_encoding(name, dim=768, num_heads=12, depth=4, **facts(name, 2), **options) for _ in range(8)]
        return torch.stack([dict(e.named_parameters())[key].detach() for e in layers]).std().item()

    assert std("learned", "pos_embed") == pytest.approx(0.02, rel=0.1)
    assert std("learnable_fourier", "freqs", gamma=4.0) == pytest.approx(0.25, rel=0.1)
    assert std("learnable_fourier", "fc1.weight") == pytest.approx((3 * 384) ** -0.5, rel=0.1)
    assert std("comrope_ld", "skew") == pytest.approx(2**0.5, rel=0.1)
    assert std("comrope_ld", "multiplier") == pytest.approx(1.0, rel=0.15)
    assert std("irpe", "k.0") == 0
    assert std("cpe", "pegs.0.weight") == pytest.approx((2 / 9) ** 0.5, rel=0.1)
    assert std("cpe", "pegs.0.bias") == 0
    mixed = create_encoding("rope_mixed", dim=768, num_heads=12).freqs
    sizes = 10.0 ** -(torch.arange(16) / 16)
    close(mixed.norm(dim=1), torch.cat((sizes, sizes)).expand(12, 32))
    close((mixed[..., :16] * mixed[..., 16:]).sum(1), torch.zeros(12, 16))  # at right angles


# ---- states -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ZOO)
def test_state_dict(variant):
    """A strict round trip; nothing derived and nothing complex in it; no buffer comes or goes in a forward."""
    model, other = vit(variant, seed=0), vit(variant, seed=1)
    x = images(40, 56)
    assert not torch.equal(model(x), other(x))
    state = model.state_dict()
    assert set(state) == {n for n, _ in model.named_parameters()}
    assert not any(t.is_complex() for t in state.values())
    before = [n for n, _ in model.named_buffers()]
    model(images(64, 24))
    assert [n for n, _ in model.named_buffers()] == before and set(model.state_dict()) == set(state)
    other.load_state_dict(state, strict=True)
    assert torch.equal(model(x), other(x))


@pytest.mark.parametrize("variant", ZOO)
def test_copies(variant):
    model, x = vit(variant), images(40, 56)
    want = model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), want)
        with torch.no_grad():
            for p in twin.parameters():
                p.zero_()
    assert torch.equal(model(x), want)


@pytest.mark.parametrize("variant", ZOO)
def test_averages_at_rest(variant):
    """Four averaging steps over weights that do not move leave every output bit as it is, buffers averaged or not."""
    model, x = vit(variant), images(40, 56)
    want = model(x)
    for average in (
        ModelEmaV3(model, decay=0.9999),
        AveragedModel(model, use_buffers=True, multi_avg_fn=get_ema_multi_avg_fn(0.9999)),
    ):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for _ in range(4):
            optimizer.zero_grad()
            model(images(32, 48)).sum().backward()
            optimizer.step()
            average.update(model) if isinstance(average, ModelEmaV3) else average.update_parameters(model)
        assert torch.equal(average.module(x), want)


# ---- modes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ZOO)
def test_checkpointing(variant):
    """Equal gradients, also when a second forward at another size runs before the backward of the first."""
    model = vit(variant).train()
    grads = []
    for enabled in (False, True):
        model.set_grad_checkpointing(enabled)
        model.zero_grad()
        loss = model(images(32, 48)).square().sum() + model(images(40, 24)).square().sum()
        loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*grads):
        close(a, b, 1e-6)


@pytest.mark.parametrize("variant", ZOO)
def test_without_fused_attention(variant):
    model, x = vit(variant), images(40, 56)
    try:
        set_fused_attn(False)
        plain = vit(variant)
    finally:
        set_fused_attn(True)
    assert model.blocks[0].attn.fused_attn and not plain.blocks[0].attn.fused_attn
    close(plain(x), model(x))


@pytest.mark.parametrize("variant", ZOO)
def test_half_precision(variant):
    """Features of a bfloat16 model, and of autocast, keep a cosine of at least 0.999 with the float32 ones, token by token."""
    model, x = vit(variant), images(64, 64)
    want = model.forward_features(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = model.forward_features(x)
    half = copy.deepcopy(model).bfloat16()
    reference = copy.deepcopy(half).float().forward_features(x)  # the same rounded weights
    for got, right in ((cast, want), (half.forward_features(x.bfloat16()), reference)):
        assert got.isfinite().all()
        assert torch.cosine_similarity(got.float(), right, dim=-1).min() > 0.999
    assert half(x.bfloat16()).dtype == torch.bfloat16
