"""ghrua/seqpe: digits, the network, the two losses, attention with all ways of injection, and whole tiny models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.func import functional_call

from vispe.convert.seqpe import network as official_network
from vispe.encodings.seqpe import SeqPE, SeqPEContext
from vispe.encodings.seqpe_loss import contrastive_loss, transfer_loss
from vispe.encodings.seqpe_net import DigitEncoder, digits, real_digits
from vispe.layers import Attention
from vispe.models import EncodedVisionTransformer
from vispe.positions import Positions, full_grid

from ..cases import Case
from .common import Results, gradients, leaves, run_model, vision_transformer


def run(case: Case) -> Results:
    c = case.config
    if "num_candidates" in c:
        return contrastive(case)
    if "grid_tokens" in c:
        return transfer(case)
    if "depth" in c:
        return model(case)
    if "method" in c:
        return attention(case)
    return encoder(case) if "embed_dim" in c else number(case)


def number(case: Case) -> Results:
    positions, count = case.inputs["positions"], case.config["max_digits"]
    return {"out.digit_ids": digits(positions, count), "out.pad_mask": real_digits(positions, count).float()}


def network(c: dict, axes: int) -> DigitEncoder:
    return DigitEncoder(
        axes=axes, max_digits=c["max_digits"], width=c["embed_dim"], out_dim=c["out_dim"], layers=c["num_layers"],
        num_heads=c["num_heads"], attention=c["attention"], mask_padding=c["mask_padding"], last_norm=c["last_layer_norm"],
        temperature=c.get("temperature", 1.0),
    ).eval()  # fmt: skip


def encoder(case: Case) -> Results:
    c, p = case.config, leaves(case.params)
    pe = functional_call(network(c, c["data_dim"]), official_network(p), (case.inputs["positions"],))
    return {"out.pe": pe, **gradients((pe * case.inputs["cotangent"]).sum(), p, params=True)}


def contrastive(case: Case) -> Results:
    c, x = case.config, leaves(case.inputs)
    loss = contrastive_loss(
        x["pivot"], x["candidates"].unflatten(0, (c["batch"], -1)), x["labels"], scale=c["temperature"],
        num_heads=c["num_heads"] if c["multi_head_loss"] else 1, label_smoothing=c["label_smoothing"],
    )  # fmt: skip
    return {"out.loss": loss[None], **gradients(loss, x)}


def transfer(case: Case) -> Results:
    c, x = case.config, leaves(case.inputs)
    loss = transfer_loss(
        x["main_pe"][x["indices"]], x["shifted_pe"].unflatten(0, (c["batch"], -1)), beta=c["beta"],
        num_heads=c["num_heads"] if c["multi_head_loss"] else 1, metric="mse" if c["metric"] == "mse" else "kl",
    )  # fmt: skip
    return {"out.loss": loss[None], **gradients(loss, x)}


def attention(case: Case) -> Results:
    c, p, x = case.config, leaves(case.params), leaves(case.inputs)
    encoding = SeqPE(
        dim=c["dim"], num_heads=c["num_heads"], method=c["method"], heads="split" if c["pe_multi_head"] else "shared"
    )
    layer = Attention(c["dim"], num_heads=c["num_heads"], qkv_bias="qkv.bias" in p).eval()
    pe = x["pe"]
    if c["pe_qk_projection_in_layer"]:
        pe = F.linear(pe, p["pe_qk.weight"], p["pe_qk.bias"])
    heads = c["num_heads"] if c["pe_multi_head"] else 1
    q, k = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in pe.chunk(2, dim=-1))
    y = functional_call(
        layer, {n: t for n, t in p.items() if not n.startswith("pe_qk")}, (x["x"], encoding, SeqPEContext(q, k))
    )
    loss = (y * case.inputs["cotangent"]).sum()
    return {"out.y": y, **gradients(loss, x), **gradients(loss, p, params=True)}


class Window(EncodedVisionTransformer):
    """A host whose grid begins at any cell of the range."""

    corner = (0, 0)

    def positions(self, height: int, width: int, device: torch.device | None = None) -> Positions:
        frame = tuple(a + n for a, n in zip(self.corner, (height, width)))
        return full_grid(frame, prefix=self.num_prefix_tokens, device=device).crop(self.corner, (height, width))


def model(case: Case) -> Results:
    c, p = case.config, leaves(case.params)
    net = c["pe"]
    patch = c["patch_size"]
    multi = net["out_dim"] == c["embed_dim"]
    per_layer = c["pe_qk_per_layer"] == "multi"
    options = {
        "method": c["method"], "heads": "split" if multi else "shared", "projection": "per_layer" if per_layer else "shared",
        "max_digits": net["max_digits"], "net_width": net["embed_dim"], "net_layers": net["num_layers"],
        "net_heads": net["num_heads"],
    }  # fmt: skip
    vit = vision_transformer(
        encoding="seqpe", options=options, dim=c["embed_dim"], heads=c["num_heads"], depth=c["depth"], patch=patch,
        image=[n * patch for n in c["grid"]], classes=c["num_classes"], mlp_ratio=c["mlp_ratio"], eps=c["layer_norm_eps"],
        class_token=c["class_token"], global_pool="token" if c["class_token"] else "avg", fc_norm=False,
        qkv_bias=c["qkv_bias"], cls=Window,
    )  # fmt: skip
    vit.corner = tuple(c.get("first_position", (0, 0)))
    first = vit.encoding.first("seqpe")
    first.net = network(net, 2)

    def call(forward) -> Results:
        return {"out.logits": forward(case.inputs["x"])}

    pe = functional_call(
        first.net, official_network({n.removeprefix("pe_model."): t for n, t in p.items() if n.startswith("pe_model.")}),
        (case.inputs["positions"],),
    )  # fmt: skip
    return {"out.pe": pe, **run_model(case, vit, "seqpe", call, p)}
