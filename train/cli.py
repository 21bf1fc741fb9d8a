"""The command line: a LightningCLI with short class names, one run folder, and no surprises on a resume."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.utilities import rank_zero_only

import train.clip  # noqa: F401
import train.clip_distill  # noqa: F401
import train.clip_student  # noqa: F401
import train.data  # noqa: F401  makes the short class names known
import train.detection  # noqa: F401
import train.diffusion  # noqa: F401
import train.droppos  # noqa: F401
import train.image  # noqa: F401
import train.mp3  # noqa: F401
import train.nvs  # noqa: F401
import train.video  # noqa: F401
import train.vlm  # noqa: F401
from train.callbacks import PredictionFile, Throughput
from train.checkpoint import Checkpoints, SafeCheckpointIO, readable


class VispeCLI(LightningCLI):
    """``fit``, ``validate``, ``test`` and ``predict`` for the tasks and data modules of this package."""

    def __init__(self, args: list[str] | None = None) -> None:
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            args=args,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={"callbacks": [Throughput()], "use_distributed_sampler": False},
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--run_dir", type=str, default="runs/default", help="Folder of everything this run writes.")
        parser.add_argument(
            "--overwrite", type=bool, default=False, help="Let fit delete the checkpoints of an earlier run in run_dir."
        )
        parser.add_lightning_class_args(Checkpoints, "checkpoint")
        parser.set_defaults({"checkpoint.save_last": True, "checkpoint.filename": "{epoch:04d}-{step:08d}"})
        parser.link_arguments("run_dir", "trainer.default_root_dir")
        parser.link_arguments("run_dir", "checkpoint.dirpath", compute_fn=checkpoint_dir)

    # hyper-parameters of a checkpoint: below configs and command line, above defaults

    def parse_arguments(self, parser: LightningArgumentParser, args: list[str] | None) -> None:
        args = list(sys.argv[1:] if args is None else args)
        if args and (stored := stored_model(args)):
            args[1:1] = ["--config", stored]
        self.config = parser.parse_args(args)

    def _parse_ckpt_path(self) -> None:
        """Lightning would let the checkpoint win over the command line here (Lightning#20310)."""

    # what every run has

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self._get(self.config_init, "trainer")
        run_dir = self._get(self.config, "run_dir")
        plugins = config.get("plugins") or []
        plugins = list(plugins) if isinstance(plugins, list) else [plugins]
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            plugins.append(SafeCheckpointIO())
        kwargs["plugins"] = plugins
        if config.get("logger") in (None, True) and self.subcommand == "fit":
            csv = CSVLogger(run_dir, name="logs", flush_logs_every_n_steps=1)  # a new version folder for each start
            kwargs["logger"] = [csv, TensorBoardLogger(run_dir, name="logs", version=csv.version)]
        elif config.get("logger") in (None, True):
            kwargs["logger"] = CSVLogger(run_dir, name=self.subcommand)
        if self.subcommand == "predict":
            kwargs["callbacks"] = [*(config.get("callbacks") or []), PredictionFile(run_dir)]
        return super().instantiate_trainer(**kwargs)

    def before_fit(self) -> None:
        """An earlier run in the folder is resumed or overwritten on request, and never by accident."""
        run_dir = self._get(self.config, "run_dir")
        requeued = list(Path(run_dir).glob("hpc_ckpt_*.ckpt"))
        if self._get(self.config, "ckpt_path") == "last":  # SLURM's own checkpoint is one of the last, if there is one
            last = max([*requeued, *Path(checkpoint_dir(run_dir)).glob("last*.ckpt")], key=modified, default=None)
            self.config_init[self.subcommand]["ckpt_path"] = str(last) if last in requeued else "last"
        resumed = self._get(self.config, "ckpt_path") or requeued
        if rank_zero_only.rank != 0 or resumed or self.trainer.fast_dev_run:
            return
        earlier = sorted(Path(checkpoint_dir(run_dir)).glob("*.ckpt"))
        if earlier and not self._get(self.config, "overwrite"):
            raise FileExistsError(
                f"{run_dir} holds an earlier run ({earlier[-1].name}). Go on with it by --ckpt_path last, take "
                "another --run_dir, or delete its checkpoints by --overwrite true"
            )
        source = getattr(self.model.hparams, "init_from", None)
        if source and Path(source).resolve() in [path.resolve() for path in earlier]:
            raise FileExistsError(f"init_from {source} is one of the checkpoints that --overwrite would delete")
        for path in earlier:
            path.unlink()


def checkpoint_dir(run_dir: str) -> str:
    """Where a run keeps its checkpoints."""
    return os.path.join(run_dir, "checkpoints")


def modified(path: Path) -> float:
    """When the file was last written."""
    return path.stat().st_mtime


def stored_model(args: list[str]) -> str | None:
    """The ``model`` section in a checkpoint named on the command line by path, as YAML; None without one."""
    path = None
    for i, arg in enumerate(args):
        if arg.startswith("--ckpt_path="):
            path = arg.partition("=")[2]
        elif arg == "--ckpt_path" and i + 1 < len(args):
            path = args[i + 1]
    if path is None or not Path(path).is_file():
        return None
    with readable(path):
        stored = dict(torch.load(path, map_location="cpu", weights_only=True).get("hyper_parameters") or {})
    stored.pop("_instantiator", None)
    if not (class_path := stored.pop("_class_path", None)):
        return None
    return yaml.safe_dump({"model": {"class_path": class_path, "init_args": stored}})


def main(args: list[str] | None = None) -> VispeCLI:
    """Run the command line; ``--print_config`` explains every key where ruamel.yaml is installed."""
    args = list(sys.argv[1:] if args is None else args)
    if importlib.util.find_spec("ruamel"):
        args = ["--print_config=comments" if arg == "--print_config" else arg for arg in args]
    torch.set_float32_matmul_precision("high")
    return VispeCLI(args)
