"""Rollouts in Weights & Biases, logged by the driver alone: one run per sweep cell in a group, and a report run."""

from __future__ import annotations

import logging
import os
import struct
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import orjson

from rayroll.config import Config
from rayroll.errors import ClosedError, ConfigError
from rayroll.metrics import Context, compute
from rayroll.projection import worker_sample
from rayroll.redact import redacted
from rayroll.sinks import Sink
from rayroll.timing import PHASES
from rayroll.types import Rollout

__all__ = ["WandbConfig", "WandbSink", "log_report", "read_history"]

logger = logging.getLogger(__name__)

Mode = Literal["online", "offline", "disabled"]

# The axis of everything: rollouts finish out of order, and a row whose ``step`` is below the last is dropped.
_AXIS = "rollout/idx"
_CHARTS = ("rollout", "timing_s", "failures", "measured", "projection", "action", "start", "share", "slowdown", "sched")


class WandbConfig(Config):
    """Where and how W&B is told."""

    project: str = "rayroll"
    entity: str | None = None
    """Team or user; None: the account's default."""
    mode: Mode | None = None
    """None: what WANDB_MODE says, else online where a key is configured, else offline with one warning."""
    dir: str = "."
    """Folder for the ``wandb`` folder, made if missing."""
    group: str | None = None
    """Groups the runs of one sweep; None: the run's id."""
    tags: tuple[str, ...] = ()
    prefix: str = ""
    """Put before every name, such as ``rayroll/`` inside a trainer's own run names."""
    window: int = 500
    """Latest rollouts of a cell that quantiles, shares and projections are computed over."""
    aggregate_s: float = 30.0
    """Least seconds between two such computations for one cell; they are also done at the end."""
    init_timeout_s: float = 60.0


class WandbSink(Sink):
    """One W&B run per ``labels["cell"]`` (or one for all), opened at its first rollout.

    Each rollout is one history row under ``rollout/idx``, its place in completion order; ``step`` is never passed.
    Every ``aggregate_s`` a row of metrics over the last ``window`` rollouts is added. The log is flushed every second,
    since a killed process loses what is not. A resumed sweep continues in new runs of the same group.
    """

    kind: ClassVar[str] = "wandb"

    def __init__(
        self,
        config: WandbConfig | None = None,
        *,
        run_id: str = "rayroll",
        run_config: Mapping[str, Any] | None = None,
        context: Context | None = None,
    ) -> None:
        """Connects to nothing yet.

        Args:
            config: Where and how.
            run_id: Names the group, and the run where there are no cells.
            run_config: Kept as each run's config, what looks secret redacted.
            context: Target and price of projections.
        """
        self.config = config or WandbConfig()
        self.run_id = run_id
        self.run_config = dict(run_config or {})
        self.context = context or Context()
        self.mode: Mode | None = None
        """Set on opening, and to ``offline`` when the server cannot be reached."""
        self.files: dict[str, Path] = {}
        """Cell to the ``.wandb`` file of its run."""
        self._cells: dict[str, _Cell] = {}
        self._latest: _Cell | None = None
        self._closed = False

    def open(self) -> None:
        """Decide the mode. Raises ConfigError when wandb is not installed."""
        if self.mode is None:
            self.mode = resolve_mode(self.config.mode)

    def add(self, rollout: Rollout) -> None:
        """Log one rollout in its cell's run, opening that first."""
        if self._closed:
            raise ClosedError("rollout handed to closed W&B runs", rollout=rollout.id)
        name = rollout.labels.get("cell", "")
        if name not in self._cells:
            self._cells[name] = _Cell(self._init(name, rollout), self.config, self.context)
        self._latest = self._cells[name]
        self._latest.add(rollout)

    def gauges(self, values: Mapping[str, float]) -> None:
        """Log the scheduler's numbers in the run that last got a rollout, at most once a second."""
        if self._latest is not None:
            self._latest.gauges(values)

    def close(self, exit_code: int = 0) -> None:
        """Log the last metrics of every cell and finish its run. Idempotent."""
        self._closed = True
        while self._cells:
            _, cell = self._cells.popitem()
            cell.finish(exit_code)

    def _init(self, cell: str, rollout: Rollout) -> Any:
        self.open()
        assert self.mode is not None
        labels = {"substrate": rollout.substrate, **rollout.labels}
        run, self.mode = _start_run(
            self.config,
            self.mode,
            name=cell or self.run_id,
            group=self.config.group or self.run_id,
            job_type="sweep-cell" if cell else "rollouts",
            values={**self.run_config, "cell": labels},
        )
        self.files[cell] = Path(run.settings.sync_file)
        axis = self.config.prefix + _AXIS
        run.define_metric(axis, hidden=True)
        for chart in _CHARTS:
            run.define_metric(f"{self.config.prefix}{chart}/*", step_metric=axis)
        return run


class _Cell:
    """The W&B run of one cell, and what its running figures are computed from."""

    def __init__(self, run: Any, config: WandbConfig, context: Context) -> None:
        self.run = run
        self._config = config
        self._context = context
        self._recent: deque[Rollout] = deque(maxlen=config.window)
        self._count = 0
        self._failures: Counter[str] = Counter()
        self._worker_s = 0.0
        self._aggregated_s = time.monotonic()
        self._gauged_s = float("-inf")

    def add(self, rollout: Rollout) -> None:
        sample = worker_sample(rollout)
        self._worker_s += sample.fixed_s + sample.action_s
        if rollout.failure is not None:
            self._failures[rollout.failure.fault] += 1
        self._recent.append(rollout)
        self._log(rollout_row(rollout) | self._so_far())
        self._count += 1
        if time.monotonic() - self._aggregated_s >= self._config.aggregate_s:
            self._log(self._aggregates())
            self._aggregated_s = time.monotonic()

    def gauges(self, values: Mapping[str, float]) -> None:
        if time.monotonic() - self._gauged_s >= 1.0:
            self._gauged_s = time.monotonic()
            self._log(dict(values))

    def finish(self, exit_code: int) -> None:
        try:
            aggregates = self._aggregates()
            self._log(aggregates)
            self.run.summary.update({self._config.prefix + name: value for name, value in aggregates.items()})
        finally:
            self.run.finish(exit_code=exit_code)

    def _so_far(self) -> dict[str, float]:
        counts = {f"failures/{fault}": float(count) for fault, count in self._failures.items()}
        return counts | {"measured/worker_hours": self._worker_s / 3600}

    def _aggregates(self) -> dict[str, float]:
        return compute(tuple(self._recent), self._context) | self._so_far() | {"rollout/n": float(self._count)}

    def _log(self, row: Mapping[str, Any]) -> None:
        prefix = self._config.prefix
        self.run.log({prefix + name: value for name, value in row.items()} | {prefix + _AXIS: self._count})


def rollout_row(rollout: Rollout) -> dict[str, Any]:
    """One rollout as numbers by W&B name; seconds exclusive per phase, so infra's and env's parts add up."""
    timing = rollout.timing
    row: dict[str, Any] = {
        "rollout/steps": len(rollout.steps),
        "rollout/valid": int(rollout.valid),
        "rollout/truncated": int(rollout.truncated),
        "rollout/attempts": rollout.attempts,
        "timing_s/total": timing.wall_s,
        "timing_s/env": timing.env_s,
        "timing_s/infra": timing.infra_s,
        "timing_s/policy": timing.policy_s,
        "timing_s/hidden": timing.hidden_s,
    }
    if rollout.reward is not None:
        row["rollout/return"] = rollout.reward
    if rollout.cold_start_s is not None:
        row["rollout/cold_start_s"] = rollout.cold_start_s
    for name, seconds in timing.phases.items():
        if PHASES[name].kind != "policy":
            row[f"timing_s/{PHASES[name].kind}/{name}"] = seconds
    return row


def log_report(
    config: WandbConfig,
    rows: Sequence[Mapping[str, Any]],
    *,
    group: str,
    summary: Mapping[str, float],
    run_config: Mapping[str, Any],
    html: Path | None = None,
) -> str:
    """Log the comparison of a sweep as one more run of its group.

    Args:
        config: Where and how.
        rows: One per cell or substrate; all keys of the first are columns.
        group: The sweep's group.
        summary: Numbers kept as the run's summary.
        run_config: Kept as its config, redacted.
        html: The local report, kept as a file of the run.

    Returns:
        Where to look: the run's address, or its folder when offline.
    """
    import wandb

    mode = resolve_mode(config.mode)
    run, mode = _start_run(config, mode, name=f"{group} report", group=group, job_type="report", values=run_config)
    try:
        columns: list[str | int] = list(rows[0]) if rows else []
        data = [[row.get(str(column)) for column in columns] for row in rows]
        run.log({f"{config.prefix}report/cells": wandb.Table(columns=columns, data=data)})
        run.summary.update({config.prefix + name: value for name, value in summary.items()})
        if html is not None:
            artifact = wandb.Artifact(f"report-{run.id}", type="report")
            artifact.add_file(str(html))
            run.log_artifact(artifact)
        return _where(run, mode)
    finally:
        run.finish()


def resolve_mode(asked: Mode | None) -> Mode:
    """What was asked for, else WANDB_MODE, else online where a key works, else offline with one warning.

    Raises:
        ConfigError: wandb is not installed, or WANDB_MODE is no mode.
    """
    try:
        import wandb
    except ImportError:
        raise ConfigError("logging to W&B needs wandb: pip install 'rayroll[wandb]'") from None
    if asked is not None:
        return asked
    named = os.environ.get("WANDB_MODE", "")
    if named:
        for mode in ("online", "offline", "disabled"):
            if named == mode:
                return mode
        raise ConfigError("WANDB_MODE is no mode that the driver can log in", mode=named, known=["online", "offline"])
    try:
        if wandb.login(prompt=False):
            return "online"
        reason = "no API key is configured"
    except wandb.Error as error:
        reason = str(error).split("\n")[0]
    logger.warning("W&B runs are kept offline: %s. Upload them later with `wandb sync`.", reason)
    return "offline"


def _start_run(
    config: WandbConfig, mode: Mode, *, name: str, group: str, job_type: str, values: Mapping[str, Any]
) -> tuple[Any, Mode]:
    """A W&B run and the mode it got: offline when an online one cannot be had, for a run must not die of its log."""
    import wandb

    folder = Path(config.dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(
        root_dir=str(folder),  # by default the current folder, which a submitted job may have lost
        console="off",
        silent=True,
        disable_code=True,
        disable_git=True,
        init_timeout=config.init_timeout_s,
        x_disable_stats=True,
        # By default 15 s: a process killed before that leaves an empty file.
        x_transaction_log_flush_interval=1.0,
    )
    for chosen in dict.fromkeys((mode, "offline")):
        try:
            run = wandb.init(
                project=config.project,
                entity=config.entity,
                dir=str(folder),
                name=name,
                group=group,
                job_type=job_type,
                tags=list(config.tags) or None,
                config=redacted(values),
                mode=chosen,
                reinit="create_new",  # cells are interleaved, and a trainer may have a run of its own
                settings=settings,
            )
        except wandb.Error as error:
            if chosen == "offline":
                raise
            logger.warning("W&B runs are kept offline: %s. Upload them later with `wandb sync`.", error)
        else:
            logger.info("W&B run %s: %s", name, _where(run, chosen))
            return run, chosen
    raise AssertionError("offline runs either start or raise")


def _where(run: Any, mode: Mode) -> str:
    return str(run.url if mode == "online" else run.dir)  # asked for its url, an offline run prints a warning


def read_history(path: Path) -> Iterator[dict[str, Any]]:
    """History rows of a ``.wandb`` file, in the order logged; stops quietly where a killed process tore it.

    The file is a 7-byte header and LevelDB log blocks: 32 KiB each, the header part of the first, records split where
    a block ends (type 1 whole, 2 first, 3 middle, 4 last).
    """
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    block, at, parts = 32_768, 7, b""
    while at + 7 <= len(data):
        if block - at % block < 7:  # a record never begins in the last 6 bytes of a block: padding
            at += block - at % block
            continue
        _crc, length, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0 or at + 7 + length > len(data):
            return
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record.FromString(parts)  # type: ignore[attr-defined]
            parts = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                yield {"/".join(i.nested_key) or i.key: orjson.loads(i.value_json) for i in items}
