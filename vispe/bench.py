"""What encodings cost: any of them against `none`, side by side in one run.

Clocks of shared machines drift by more than an encoding costs, so nothing is compared across runs. Every round runs all
contenders once, in rotating order; each sample is divided by its baseline's time at that moment, interpolated between the
baseline's samples just before and after. Reported are the median of these ratios and their quartiles. The line of a baseline
is the same quantity for its own samples: the noise of the run.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import timm
import torch
from torch import nn

from .contenders import Contender
from .models.vit_zoo import SIZES

Mode = Literal["eager", "compiled"]
Phase = Literal["forward", "train"]
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True)
class Settings:
    """What every contender shares.

    Attributes:
        size: "ti", "s", "b" or "l".
        img, batch: pixels a side, images.
        depth: blocks, None for the size's own.
        repeats: rounds; warmup: untimed passes ahead of them.
        clock: "wall", or "cpu" for this process's processor time (steadier beside other work; use one thread).
    """

    size: str = "b"
    img: int = 224
    batch: int = 4
    depth: int | None = None
    threads: int = 1
    repeats: int = 10
    warmup: int = 2
    dtype: str = "float32"
    device: str = "cpu"
    clock: str = "wall"

    def __post_init__(self) -> None:
        for name, choices in (("size", SIZES), ("dtype", DTYPES), ("clock", CLOCKS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"bench: {name} must be one of {list(choices)}, got {getattr(self, name)!r}.")
        for name in ("img", "batch", "threads", "repeats", "warmup"):
            if getattr(self, name) < 1:
                raise ValueError(f"bench: {name} must be at least 1, got {getattr(self, name)}.")
        if self.depth is not None and not 1 <= self.depth <= SIZES[self.size]["depth"]:
            raise ValueError(f"bench: depth must be 1 to {SIZES[self.size]['depth']}, got {self.depth}.")
        if self.img % 16:
            raise ValueError(f"bench: img must be a multiple of the patch size 16, got {self.img}.")
        if torch.device(self.device).type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"bench: device {self.device!r} is not available here; use device='cpu'.")


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of the ratios of one phase, and the median time of one pass in seconds."""

    median: float
    low: float
    high: float
    seconds: float


@dataclass(frozen=True)
class Result:
    """Measurements of one contender in one mode; memory in bytes, peak of a training step (of a forward when folded)."""

    label: str
    baseline: str
    mode: Mode
    forward: Spread
    train: Spread | None
    memory: int
    memory_ratio: float


class Runner:
    """One built model with its input; calls run one pass."""

    def __init__(self, contender: Contender, settings: Settings, mode: Mode) -> None:
        torch.manual_seed(0)
        self.contender, self.device = contender, torch.device(settings.device)
        model = timm.create_model(contender.model, img_size=settings.img, **contender.kwargs)
        model = model.to(self.device, DTYPES[settings.dtype])
        self.model: nn.Module = model.eval().fold() if contender.fold else model.train()
        self.call = torch.compile(self.model) if mode == "compiled" else self.model
        self.x = torch.randn(settings.batch, 3, settings.img, settings.img, device=self.device, dtype=DTYPES[settings.dtype])
        self.phases: tuple[Phase, ...] = ("forward",) if contender.fold else ("forward", "train")

    def run(self, phase: Phase) -> None:
        if phase == "forward":
            with torch.no_grad():
                self.call(self.x)
        else:
            self.call(self.x).sum().backward()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def sample(self, phase: Phase, clock: Callable[[], float]) -> tuple[float, float]:
        """(moment, seconds) of one pass; gradients are dropped outside the timed part."""
        moment, start = time.perf_counter(), clock()
        self.run(phase)
        taken = clock() - start
        moment = (moment + time.perf_counter()) / 2
        self.model.zero_grad(set_to_none=True)
        return moment, taken

    def memory(self, phase: Phase) -> int:
        """Peak bytes of tensors in one pass, parameters and buffers included."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            self.run(phase)
            grown = torch.cuda.max_memory_allocated(self.device) - before
        else:
            grown = peak_allocation(lambda: self.run(phase))
        self.model.zero_grad(set_to_none=True)
        return grown + sum(t.nbytes for t in (*self.model.parameters(), *self.model.buffers()))


def peak_allocation(fn: Callable[[], Any]) -> int:
    """Highest number of bytes that `fn` holds at once on the CPU on top of what existed before, workspaces included."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        fn()
    changes = [(e.start_ns(), e.nbytes()) for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for _, change in sorted(changes, key=lambda item: item[0]):
        held += change
        peak = max(peak, held)
    return peak


@contextmanager
def quiet(threads: int) -> Iterator[None]:
    """No garbage collection, no denormal arithmetic, a fixed number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)
        if collecting:
            gc.enable()


def bench(
    contenders: list[Contender], settings: Settings, *, mode: Mode = "eager", progress: Callable[[str], None] = lambda _: None
) -> list[Result]:
    """Measure contenders and, ahead of them, whichever baselines they name. `progress` is told what runs."""
    if mode not in ("eager", "compiled"):
        raise ValueError(f"bench: mode must be 'eager' or 'compiled', got {mode!r}.")
    kwargs = {} if settings.depth is None else {"depth": settings.depth}
    everyone = {"none": Contender("none", f"vit_{settings.size}_none", "none", kwargs)}
    everyone.update({c.label: c for c in contenders})
    with quiet(settings.threads):
        runners = []
        for contender in everyone.values():
            progress(f"{mode}: building and warming up {contender.label}")
            runner = Runner(contender, settings, mode)
            for _ in range(settings.warmup):
                for phase in runner.phases:
                    runner.sample(phase, time.perf_counter)
            runners.append(runner)
        memory = {(r.contender.label, phase): r.memory(phase) for r in runners for phase in r.phases}
        samples = _rounds(runners, settings, mode, progress)
    return [_result(r, samples, memory, mode) for r in runners]


Samples = dict[tuple[str, str], list[tuple[float, float]]]


def _rounds(runners: list[Runner], settings: Settings, mode: Mode, progress: Callable[[str], None]) -> Samples:
    samples: Samples = {}
    clock = CLOCKS[settings.clock]
    for i in range(settings.repeats):
        progress(f"{mode}: round {i + 1} of {settings.repeats}")
        shift = i % len(runners)
        for runner in runners[shift:] + runners[:shift]:
            for phase in runner.phases:
                samples.setdefault((runner.contender.label, phase), []).append(runner.sample(phase, clock))
        gc.collect()
    for runner in runners:  # one more sample of each baseline, so that the last round has one after it
        if runner.contender.baseline == runner.contender.label:
            for phase in runner.phases:
                samples[runner.contender.label, phase].append(runner.sample(phase, clock))
    return samples


def ratios(own: list[tuple[float, float]], base: list[tuple[float, float]], *, same: bool = False) -> list[float]:
    """Each own sample over the baseline at its moment, interpolated between the samples before and after.

    Args:
        own, base: (moment, seconds), in order of time.
        same: own is the baseline: its samples are compared with their neighbours.
    """
    found = []
    for moment, seconds in own:
        before = [b for b in base if b[0] < moment][-1:]
        after = [b for b in base if b[0] > moment][:1]
        near = before + after
        if not near or (same and len(near) < 2):
            continue
        level = near[0][1]
        if len(near) == 2:
            (t0, y0), (t1, y1) = near
            level = y0 + (y1 - y0) * (moment - t0) / (t1 - t0)
        found.append(seconds / level)
    return found


def spread(values: list[float], seconds: list[float]) -> Spread:
    """Median and quartiles of ratios (one value stands for all three)."""
    low, mid, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return Spread(mid, low, high, statistics.median(seconds))


def _result(runner: Runner, samples: Samples, memory: dict[tuple[str, str], int], mode: Mode) -> Result:
    label, base = runner.contender.label, runner.contender.baseline
    parts: dict[str, Spread] = {}
    for phase in runner.phases:
        own = samples[label, phase]
        values = ratios(own, samples[base, phase], same=label == base) or [1.0]
        parts[phase] = spread(values, [s for _, s in own])
    phase = runner.phases[-1]
    peak = memory[label, phase]
    return Result(label, base, mode, parts["forward"], parts.get("train"), peak, peak / memory[base, phase])


def report(results: list[Result], settings: Settings) -> dict[str, Any]:
    """Everything as plain JSON values."""
    versions = {"torch": torch.__version__, "timm": timm.__version__}
    return {"settings": asdict(settings), "versions": versions, "results": [asdict(r) for r in results]}
