"""What a run has finished, for whoever reads it: rollouts as they come, or whole groups."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

from rayroll.types import Rollout

__all__ = ["Reading"]


class Reading:
    """The reader's side of a run."""

    def __init__(
        self, run_id: str, tasks: Sequence[str], finished: Collection[str], on_taken: Callable[[], None]
    ) -> None:
        """Nothing has finished yet.

        Args:
            run_id: For ``state_dict``.
            tasks: Ids of the tasks, one for each rollout that the run will yield.
            finished: Ids of rollouts that an earlier run has made.
            on_taken: Called for each one that is read, before it is handed out.
        """
        self.total = len(tasks)
        """Rollouts this run will yield."""
        self._run_id, self._on_taken = run_id, on_taken
        self._missing = Counter(tasks)
        self._finished: deque[tuple[str, Rollout | None]] = deque()
        self._read = list(finished)
        self._news = asyncio.Event()
        self._has_ended = False
        self._error: BaseException | None = None

    async def rollouts(self) -> AsyncIterator[Rollout]:
        """Every rollout, as it finishes. To be read once, and fast enough: a reader that is slow holds the run back.

        Ends early where the run was cancelled, with what had finished.

        Raises:
            Exception: What a policy raised, or a bug; CallerError where the calling program must change; InfraFailure
                where no host can be started any more. All that had finished was yielded before.
        """
        async for _, rollout in self.items():
            if rollout is not None:
                yield rollout

    async def groups(self) -> AsyncIterator[list[Rollout]]:
        """The rollouts of one task together, as soon as its last one has finished (GRPO); instead of ``rollouts``.

        Of a resumed run a group holds only what this run made, and of a cancelled one what was kept.
        """
        missing = Counter(self._missing)
        groups: dict[str, list[Rollout]] = {}
        async for task_id, rollout in self.items():
            group = groups.setdefault(task_id, [])
            if rollout is not None:
                group.append(rollout)
            missing[task_id] -= 1
            if not missing[task_id] and groups.pop(task_id):
                yield sorted(group, key=lambda rollout: rollout.sample_index)

    def state_dict(self) -> dict[str, Any]:
        """What a later run needs to go on from here: ``Executor.submit(..., state=...)`` skips what was read of this.

        Plain values, for JSON. Rollouts that have finished and were not read are played again.
        """
        return {"run_id": self._run_id, "finished": list(self._read)}

    async def items(self) -> AsyncIterator[tuple[str, Rollout | None]]:
        """Task id and rollout, as they finish; None: it was given up, and there is no record of it."""
        while True:
            while self._finished:
                task_id, rollout = self._finished.popleft()
                if rollout is not None:
                    self._read.append(rollout.id)
                self._on_taken()
                yield task_id, rollout
            if self._has_ended:
                break
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise self._error

    def _put(self, task_id: str, rollout: Rollout | None) -> None:
        self._finished.append((task_id, rollout))
        self._news.set()

    def _close(self, error: BaseException | None) -> None:
        """Nothing more comes. An error is raised to its reader, after what has finished."""
        self._has_ended, self._error = True, error
        self._news.set()
