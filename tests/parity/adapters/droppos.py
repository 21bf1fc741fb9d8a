"""Haochen-Wang409/DropPos: smoothed targets as released, loss and accuracy over the tokens without position."""

import torch

from vispe.positions.pretext import position_accuracy, position_loss, smoothing_map

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    targets = smoothing_map(tuple(case.config["grid"]), case.config["sigma"], normalise="columns")
    logits, cells = case.inputs["pred"].clone().requires_grad_(), case.inputs["ids_keep"]
    weight = case.inputs["position_dropped"].bool()
    if "attention_weight" in case.inputs:  # the released accuracy is weighted too
        weight = weight * case.inputs["attention_weight"]
    loss = position_loss(logits, cells, weight, targets)
    (grad,) = torch.autograd.grad(loss, logits)
    return {
        "out.smoothing_map": targets,
        "out.loss": loss.reshape(1),
        "out.accuracy": position_accuracy(logits, cells, weight).reshape(1),
        "grad.pred": grad,
    }
