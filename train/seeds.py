"""Randomness as a function of where the run is, never of what happened before.

Every random decision is drawn from a seed made of (run seed, epoch, place, ...). A run that is stopped and resumed
anywhere therefore continues with the numbers that it would have seen, on any number of loader workers.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def run_seed() -> int:
    """The run's ``seed_everything``; 0 when none was set."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def mix(*parts: int) -> int:
    """One 63-bit seed from several non-negative integers; near inputs give unrelated seeds."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


def seed_all(*parts: int) -> None:
    """Seed Python, numpy and torch (every device) from the parts."""
    seed = mix(*parts)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.manual_seed(seed)


@contextmanager
def seeded(*parts: int) -> Iterator[None]:
    """Inside, the global CPU generators are seeded from the parts; afterwards they are as they were before."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed = mix(*parts)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)  # the CPU generator only: a loader must not touch a device
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
