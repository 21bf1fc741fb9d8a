"""Convolutions inside blocks: Mix-FFN in the MLP, LePE beside the attention; alone and together with other encodings."""

import pytest
import timm
import torch
from generic_helpers import DIM, TINY, build, close, excite, heads, images, vit
from test_depthwise import loop
from timm.layers import SwiGLUPacked

from vispe.layers import MixFfnMlp, attend, feed
from vispe.models import EncodedVisionTransformer
from vispe.positions import full_grid


@pytest.mark.parametrize("grid", [(6,), (3, 4), (2, 3, 2)])
@pytest.mark.parametrize("prefix", [0, 2])
def test_lepe_against_a_loop(grid, prefix):
    encoding = build("lepe", len(grid))
    pos = full_grid(grid, prefix=prefix)
    q, k, v = heads(prefix + pos.coords.shape[1])
    ctx = encoding.prepare(pos)
    plain = torch.softmax(q @ k.mT * 0.2, dim=-1) @ v
    patches = v[:, :, prefix:].transpose(1, 2).flatten(2)  # channels head by head, as the output's
    y = loop(patches, grid, encoding.conv.weight, encoding.conv.bias, 1, 1) - patches
    want = plain.transpose(1, 2).flatten(2).clone()
    want[:, prefix:] += y
    close(attend(q, k, v, encoding, ctx, ctx, scale=0.2).transpose(1, 2).flatten(2), want, 1e-4)


def test_lepe_refuses_cross_attention():
    encoding = build("lepe")
    q, k, v = heads(12)
    one, two = (encoding.prepare(full_grid((3, 4))) for _ in range(2))
    with pytest.raises(ValueError, match="lepe: .* cross-attention"):
        attend(q, k, v, encoding, one, two, scale=0.2)


def test_mix_ffn_is_the_layer_of_the_pyramid():
    """The encoding inside timm's MLP, and the layer with the same weights; prefix tokens see a plain MLP in both."""
    torch.manual_seed(0)
    layer, encoding = MixFfnMlp(DIM, 2 * DIM), build("mix_ffn", mlp_dim=2 * DIM)
    plain = timm.layers.Mlp(DIM, 2 * DIM)
    layer.load_state_dict({**plain.state_dict(), **encoding.state_dict()})
    x = torch.randn(2, 2 + 12, DIM)
    y = layer(x, (3, 4), prefix=2)
    close(feed(plain, x, encoding, encoding.prepare(full_grid((3, 4), prefix=2))), y, 1e-6)
    close(y[:, :2], plain(x[:, :2]), 1e-6)
    h = plain.fc1(x[:, 2:])
    h = loop(h, (3, 4), layer.dwconv.weight, layer.dwconv.bias, 1, 1) - h  # no identity around the convolution
    close(y[:, 2:], plain.fc2(plain.act(h)), 1e-4)


def test_mix_ffn_in_a_host():
    """It takes the width of the host's MLPs, loads a plain ViT beside it, and needs timm's plain MLP."""
    model = vit("mix_ffn", mlp_ratio=3.0)
    assert model.encoding.first("mix_ffn").dwconv.weight.shape == (3 * DIM, 1, 3, 3)
    plain = vit("none", mlp_ratio=3.0)
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected and missing == [f"encoding.mix_ffn.{i}.dwconv.{n}" for i in (0, 1) for n in ("weight", "bias")]
    with torch.no_grad():
        for conv in (layer.dwconv for layer in model.encoding["mix_ffn"]):
            conv.weight.zero_()[:, :, 1, 1] = 1.0  # the identity
            conv.bias.zero_()
    close(model(images()), plain(images()), 1e-5)
    gated = EncodedVisionTransformer(encoding="mix_ffn", mlp_layer=SwiGLUPacked, **TINY)
    with pytest.raises(ValueError, match="needs timm's Mlp .* got GluMlp"):
        gated(images())


def test_in_compositions():
    """Both with a rotary encoding: every part takes part."""
    torch.manual_seed(0)
    spec = "rope_axial+mix_ffn+lepe"
    model = excite(EncodedVisionTransformer(encoding=spec, **TINY)).eval()
    want = model.forward_features(images(40, 24))
    for name in ("mix_ffn.0.dwconv.weight", "lepe.1.conv.weight"):
        parameter = model.encoding.get_parameter(name)
        before = parameter.detach().clone()
        with torch.no_grad():
            parameter.zero_()
        assert (model.forward_features(images(40, 24)) - want).abs().max() > 1e-3
        with torch.no_grad():
            parameter.copy_(before)
    assert torch.equal(model.forward_features(images(40, 24)), want)
