"""jakubcerveny/gilbert: the order in which the curve visits the cells of any grid."""

from vispe.encodings.gilbert import gilbert_order

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    return {f"out.order.h{h}w{w}": gilbert_order(h, w).reshape(h, w) for h, w in case.config["grids"]}
