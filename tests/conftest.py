"""Every test runs on one thread: small models are faster so, and two test processes share two cores."""

import torch

torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption("--parity-dir", default=None, help="folder of parity cases to run instead of tests/parity/cases")
