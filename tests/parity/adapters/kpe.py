"""ap229997/ambiguity: sparse encoding of boxes, and ARCTIC's dense map."""

from __future__ import annotations

from vispe.encodings.kpe import arctic_map, center_corner

from ..cases import Case
from .common import Results


def run(case: Case) -> Results:
    c, i = case.config, case.inputs
    if c["kind"] == "kpe_center_corner":
        return {"out.encoding": center_corner(i["boxes_xyxy"], i["K"], c["num_freqs"])}
    assert c["kind"] == "kpe_dense_arctic", c["kind"]
    octaves, angle, mask = arctic_map(i["boxes_xyxy"], i["K"], c["num_freqs"], c["canvas"])
    return {"out.encoding": octaves, "out.angle_canvas": angle, "out.mask_canvas": mask}
