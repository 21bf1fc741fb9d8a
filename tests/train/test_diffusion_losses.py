"""Noisy samples, targets and losses of each objective against hand computation, number by number in plain Python."""

import math

import pytest
import torch
from diffusers import DDPMScheduler

from train.objectives import Ddpm, Flow
from train.variational import Steps, bin_log_probability

torch.manual_seed(0)
CLEAN, NOISE = torch.rand(3, 2, 2, 3) * 2 - 1, torch.randn(3, 2, 2, 3)
OUTPUT = torch.randn(3, 2, 2, 3)
KEPT = DDPMScheduler(num_train_timesteps=10, beta_start=0.02, beta_end=0.2).alphas_cumprod


def mean_square(a: torch.Tensor, b: torch.Tensor) -> list[float]:
    return [sum((x - y) ** 2 for x, y in zip(p.flatten().tolist(), q.flatten().tolist())) / p.numel() for p, q in zip(a, b)]


@pytest.mark.parametrize("prediction", ["flow_prediction", "sit_velocity"])
def test_flow(prediction: str) -> None:
    sigma = [0.0, 0.25, 1.0]
    given = Flow(prediction).noised(CLEAN, NOISE, torch.tensor(sigma))
    sign = 1 if prediction == "flow_prediction" else -1
    for i, s in enumerate(sigma):
        torch.testing.assert_close(given.x[i], CLEAN[i] * (1 - s) + NOISE[i] * s)
        assert given.time[i] == (1000 * s if sign > 0 else 1 - s)
    torch.testing.assert_close(given.target, sign * (NOISE - CLEAN))
    losses = Flow(prediction).losses(OUTPUT, given)
    assert set(losses) == {"mse"}
    assert losses["mse"].tolist() == pytest.approx(mean_square(OUTPUT, sign * (NOISE - CLEAN)), rel=1e-5)


def test_sit_and_sd3_are_the_same_process_with_another_sign_and_clock() -> None:
    sigma = torch.tensor([0.1, 0.5, 0.9])
    a, b = (Flow(name).noised(CLEAN, NOISE, sigma) for name in ("flow_prediction", "sit_velocity"))
    assert torch.equal(a.x, b.x) and torch.equal(a.target, -b.target)
    torch.testing.assert_close(a.time / 1000, 1 - b.time)


def test_direction_loss_counts_channels_of_a_cell() -> None:
    flow = Flow("sit_velocity", direction=0.5)
    given = flow.noised(CLEAN, NOISE, torch.tensor([0.2, 0.4, 0.6]))
    found = flow.losses(OUTPUT, given)["direction"]
    for i in range(3):
        cells = []
        for r in range(2):
            for c in range(3):
                u, v = OUTPUT[i, :, r, c].tolist(), given.target[i, :, r, c].tolist()
                dot = sum(a * b for a, b in zip(u, v))
                cells.append(1 - dot / math.hypot(*u) / math.hypot(*v))
        assert found[i].item() == pytest.approx(0.5 * sum(cells) / 6, rel=1e-5)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
def test_ddpm_is_what_diffusers_adds_and_takes_away(prediction: str) -> None:
    scheduler = DDPMScheduler(
        num_train_timesteps=10, beta_start=0.02, beta_end=0.2, prediction_type=prediction, clip_sample=False
    )
    steps = torch.tensor([0, 4, 9])
    ddpm = Ddpm(prediction, KEPT)
    given = ddpm.noised(CLEAN, NOISE, steps)
    torch.testing.assert_close(given.x, scheduler.add_noise(CLEAN, NOISE, steps))
    target = {"epsilon": NOISE, "v_prediction": scheduler.get_velocity(CLEAN, NOISE, steps), "sample": CLEAN}[prediction]
    torch.testing.assert_close(given.target, target)
    assert given.time.tolist() == [0, 4, 9] and given.time.dtype == torch.float32
    assert ddpm.losses(OUTPUT, given)["mse"].tolist() == pytest.approx(mean_square(OUTPUT, target), rel=1e-5)
    torch.testing.assert_close(ddpm.estimate(target, given), CLEAN, atol=1e-5, rtol=1e-5)
    for i, step in enumerate(steps):  # the scheduler believes the same of the same output
        theirs = scheduler.step(OUTPUT[i : i + 1], step, given.x[i : i + 1], generator=torch.Generator()).pred_original_sample
        torch.testing.assert_close(ddpm.estimate(OUTPUT, given)[i : i + 1], theirs, atol=1e-5, rtol=1e-5)


def bits_by_hand(step: int, estimate: float, v: float, clean: float, x: float) -> float:
    """One number's variational term, from the definition."""
    kept = KEPT.double().tolist()
    before = [1.0, *kept[:-1]]
    beta = [1 - a / b for a, b in zip(kept, before)]
    posterior = [b * (1 - p) / (1 - k) for b, p, k in zip(beta, before, kept)]
    low, high = math.log(posterior[max(step, 1)]), math.log(beta[step])
    log_var = low + (v + 1) / 2 * (high - low)

    def mean(sample: float) -> float:
        of_clean = beta[step] * math.sqrt(before[step]) / (1 - kept[step])
        of_noisy = (1 - before[step]) * math.sqrt(1 - beta[step]) / (1 - kept[step])
        return of_clean * sample + of_noisy * x

    if step > 0:
        gap = (mean(clean) - mean(estimate)) ** 2
        return 0.5 * (log_var - low + (math.exp(low) + gap) / math.exp(log_var) - 1) / math.log(2)
    std = math.exp(log_var / 2)

    def cdf(value: float) -> float:
        z = (value - mean(estimate)) / std
        return 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))

    upper = 1.0 if clean > 0.999 else cdf(clean + 1 / 255)
    lower = 0.0 if clean < -0.999 else cdf(clean - 1 / 255)
    return -math.log2(max(upper - lower, 1e-12))


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_learned_variance(prediction: str) -> None:
    ddpm = Ddpm(prediction, KEPT, learn_sigma=True)
    clean = CLEAN.clone()
    clean[0, 0, 0, 0], clean[0, 0, 0, 1] = 1.0, -1.0  # the open bins
    given = ddpm.noised(clean, 0.1 * NOISE, torch.tensor([0, 1, 9]))
    between = torch.rand_like(CLEAN) * 2 - 1
    prediction_part = given.target + 0.1 * OUTPUT
    found = ddpm.losses(torch.cat((prediction_part, between), dim=1), given)
    assert found["mse"].tolist() == pytest.approx(mean_square(prediction_part, given.target), rel=1e-4)
    estimate = ddpm.estimate(prediction_part, given)
    for i, step in enumerate([0, 1, 9]):
        numbers = zip(*(t[i].flatten().tolist() for t in (estimate, between, clean, given.x)))
        bits = [bits_by_hand(step, *row) for row in numbers]
        assert found["variational"][i].item() == pytest.approx(10 / 1000 * sum(bits) / len(bits), rel=2e-3)


def test_the_variational_term_trains_the_variance_alone() -> None:
    ddpm = Ddpm("epsilon", KEPT, learn_sigma=True)
    output = torch.cat((OUTPUT, 0.1 * OUTPUT), dim=1).requires_grad_()
    ddpm.losses(output, ddpm.noised(CLEAN, NOISE, torch.tensor([0, 4, 9])))["variational"].sum().backward()
    assert output.grad[:, :2].abs().max() == 0 and output.grad[:, 2:].abs().max() > 0


def test_a_perfect_model_with_the_posterior_variance_pays_nothing() -> None:
    ddpm = Ddpm("epsilon", KEPT, learn_sigma=True)
    given = ddpm.noised(CLEAN, NOISE, torch.tensor([1, 5, 9]))
    perfect = torch.cat((NOISE, -torch.ones_like(NOISE)), dim=1)
    losses = ddpm.losses(perfect, given)
    assert losses["mse"].abs().max() == 0 and losses["variational"].abs().max() < 1e-6


def test_bins_cover_everything() -> None:
    values = torch.linspace(-1, 1, 256)
    for mean, std in ((0.0, 0.3), (0.9, 1.0), (-1.2, 0.05)):
        total = bin_log_probability(values, torch.tensor(mean), torch.tensor(math.log(std))).exp().sum()
        assert abs(total - 1) < 1e-3


def test_times() -> None:
    generator = torch.Generator().manual_seed(0)
    uniform = Flow("sit_velocity").draw(20000, generator=generator)
    assert abs(uniform.mean() - 0.5) < 0.01 and abs(uniform.var() - 1 / 12) < 0.002
    normal = Flow("sit_velocity", times="logit_normal", logit_mean=0.5, logit_std=0.7).draw(20000, generator=generator).logit()
    assert abs(normal.mean() - 0.5) < 0.02 and abs(normal.std() - 0.7) < 0.02
    state = generator.get_state()
    plain = Flow("sit_velocity", times="logit_normal").draw(100, generator=generator)
    generator.set_state(state)
    shifted = Flow("sit_velocity", times="logit_normal", shift=2.0).draw(100, generator=generator)
    torch.testing.assert_close(shifted, 2 * plain / (1 + plain))
    steps = Ddpm("epsilon", KEPT).draw(5000, generator=generator)
    assert steps.dtype == torch.int64 and steps.bincount(minlength=10).min() > 400 and steps.max() == 9


def test_refusals() -> None:
    for build, words in (
        (lambda: Flow("epsilon"), "Flow: prediction must be one of"),
        (lambda: Flow("sit_velocity", times="cosine"), "times must be"),
        (lambda: Flow("sit_velocity", shift=0), "are positive"),
        (lambda: Ddpm("sit_velocity", KEPT), "Ddpm: prediction must be"),
        (lambda: Steps.of(torch.tensor([0.5, 0.6])), "falling list"),
        (lambda: Steps.of(torch.tensor([0.5, 0.0])), "zero terminal SNR"),
    ):
        with pytest.raises(ValueError, match=words):
            build()
