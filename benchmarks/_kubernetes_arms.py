"""What people write on a Kubernetes cluster: the client's exec for each call. No rayroll in here."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from _arms import Arm, Burst, Load, thread_burst
from kubernetes import client, config
from kubernetes.stream import stream

__all__ = ["PodExec"]


class PodExec(Arm):
    """An exec per step, as the client's own example has it, in the pods of ``runner-kubernetes``; a thread each.

    Args:
        pods: Their names.
    """

    name = "pod-exec"

    def __init__(self, pods: list[str]) -> None:
        self._pods = pods
        self._pool = ThreadPoolExecutor(len(pods))
        self._apis: list[Any] = []
        self._steps: list[Callable[[str], str]] = []

    async def open(self) -> None:
        kubeconfig = os.environ.get("KUBECONFIG") or os.environ.get("RAYROLL_TESTBED_KUBECONFIG")
        _, active = config.list_kube_config_contexts(kubeconfig)
        namespace = active["context"].get("namespace", "default")
        for pod in self._pods:  # the client's stream takes its API over while it runs, so each thread has one
            api = client.CoreV1Api(config.new_client_from_config(kubeconfig))
            self._apis.append(api)
            self._steps.append(functools.partial(self._step, api, namespace, pod))

    @staticmethod
    def _step(api: Any, namespace: str, pod: str, script: str) -> str:
        output: str = stream(
            api.connect_get_namespaced_pod_exec,
            pod,
            namespace,
            container="sandbox",
            command=["bash", "-c", script],
            stdin=False,
            stdout=True,
            stderr=True,
            tty=False,
        )
        return output

    async def burst(self, load: Load) -> Burst:
        return await thread_burst(load, self._pool, self._steps)

    async def close(self) -> None:
        self._pool.shutdown()
        for api in self._apis:
            api.api_client.close()
