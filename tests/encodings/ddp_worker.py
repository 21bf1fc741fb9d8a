"""Two steps of DistributedDataParallel for every name: `ddp_worker.py RANK STORE_FILE NAME...`. No unused parameters."""

import sys

import torch
import torch.distributed as dist
from generic_helpers import images, vit
from torch.nn.parallel import DistributedDataParallel

rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
for variant in sys.argv[3:]:
    model = DistributedDataParallel(vit(variant, seed=rank, moved=False).train())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        model(images(32, 48) if step else images(40, 24, seed=rank)).square().sum().backward()
        optimizer.step()
    ours = torch.cat([p.detach().flatten() for p in model.parameters()])
    theirs = [torch.empty_like(ours) for _ in range(2)]
    dist.all_gather(theirs, ours)
    assert torch.equal(*theirs), variant
    if rank == 0:
        print(variant, flush=True)
dist.destroy_process_group()
