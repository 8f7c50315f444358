"""The command lines of one small cluster: pure, so that what a daemon is told can be read and tested in one place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from parts._kubernetes_keys import Keys

NODE = "rayroll-testbed"

_KUBELET_VIEW = """\
set -e
# What the kubelet writes outside of the folder it is given, whatever it is told, goes into a folder of ours as well:
# the logs of pods (a second kubelet on the machine would delete them as nobody's), and settings of the kernel.
mount --make-private "$(stat --format=%m /var/log)"
mount --make-private /proc
mount --bind "$1/log" /var/log
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \\
    kernel/keys/root_maxkeys kernel/keys/root_maxbytes net/bridge/bridge-nf-call-iptables; do
    [ -e "/proc/sys/$setting" ] || continue
    mkdir -p "$1/sys/${setting%/*}"
    cat "/proc/sys/$setting" > "$1/sys/$setting"
    mount --bind "$1/sys/$setting" "/proc/sys/$setting"
done
shift
exec "$@"
"""


def marker(state: Path) -> str:
    """By which those that serve HTTPS are recognised: where they would make certificates, had they none."""
    return f"--cert-dir={state / 'certificates'}"


@dataclass(frozen=True, slots=True)
class Ports:
    """All on loopback, but for those of the API server and of the kubelet, which are on the bridge."""

    etcd: int
    etcd_peer: int
    api: int
    controller_manager: int
    scheduler: int
    kubelet: int
    kubelet_health: int


@dataclass(frozen=True, slots=True)
class Commands:
    """What each daemon is started with."""

    state: Path
    keys: Keys
    ports: Ports
    address: IPv4Address
    """The machine's own on the bridge: the kubelet takes no loopback address for its node, and pods reach this one."""
    services: IPv4Network
    """For the addresses of Services. Nothing routes them: there is no kube-proxy."""

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.ports.api}"

    @property
    def server_names(self) -> list[str]:
        return [str(self.address), "127.0.0.1", str(self.services[1]), "localhost", "kubernetes.default.svc", NODE]

    def etcd(self, program: Path) -> list[str | Path]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.ports.etcd, self.ports.etcd_peer))
        return [
            program,
            f"--data-dir={self.state / 'etcd'}",
            f"--name={NODE}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={NODE}={peer}",
            "--log-level=warn",
        ]

    def api_server(self, program: Path) -> list[str | Path]:
        client_certificate, client_key = self.keys.api_client
        return [
            program,
            *self._tls(),
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self.ports.api}",
            "--insecure-port=0",
            f"--client-ca-file={self.keys.authority}",
            f"--token-auth-file={self.keys.tokens}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",  # ServiceAccount is among those that are on anyway
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.keys.service_accounts}",
            f"--service-account-signing-key-file={self.keys.service_accounts}",
            f"--service-cluster-ip-range={self.services}",
            f"--kubelet-certificate-authority={self.keys.authority}",
            f"--kubelet-client-certificate={client_certificate}",
            f"--kubelet-client-key={client_key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
        ]

    def controller_manager(self, program: Path, kubeconfig: Path) -> list[str | Path]:
        return [
            program,
            *self._tls(),
            f"--kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.ports.controller_manager}",
            "--port=0",
            "--leader-elect=false",  # it is alone, and a lease of a killed one would have to run out first
            "--node-monitor-period=1s",  # a node that has become ready is to take pods soon
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.keys.service_accounts}",
            f"--root-ca-file={self.keys.authority}",
            f"--flex-volume-plugin-dir={self.state / 'volume-plugins'}",
        ]

    def scheduler(self, program: Path, kubeconfig: Path) -> list[str | Path]:
        return [
            program,
            *self._tls(),
            f"--kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.ports.scheduler}",
            "--port=0",
            "--leader-elect=false",
        ]

    def kubelet(
        self, program: Path, config: Path, kubeconfig: Path, *, docker: Path, pause_image: str
    ) -> list[str | Path]:
        """Runs in a mount namespace of its own; what it mounts below its folder is seen by the engine all the same."""
        return [
            *("unshare", "--mount", "--propagation=unchanged"),
            *("sh", "-c", _KUBELET_VIEW, "sh", self.state / "machine"),
            program,
            f"--root-dir={self.state / 'kubelet'}",
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            f"--cert-dir={self.state / 'kubelet' / 'pki'}",
            f"--hostname-override={NODE}",
            f"--node-ip={self.address}",
            "--container-runtime=docker",
            f"--docker-endpoint=unix://{docker}",
            f"--docker=unix://{docker}",  # where its statistics look
            f"--experimental-dockershim-root-directory={self.state / 'dockershim'}",
            f"--pod-infra-container-image={pause_image}",
            f"--volume-plugin-dir={self.state / 'volume-plugins'}",
        ]

    def kubelet_config(self) -> str:
        certificate, key = self.keys.server(self.server_names)
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": str(self.address),
            "port": self.ports.kubelet,
            "readOnlyPort": 0,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self.ports.kubelet_health,
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self.keys.authority)},
            },
            "authorization": {"mode": "Webhook"},
            # Control groups as dockerd makes them, no others: there may be no systemd.
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "oomScoreAdj": 0,  # a negative one, the default, needs CAP_SYS_RESOURCE
            "makeIPTablesUtilChains": False,  # no rules but those of bed/bridge.py
            "featureGates": {"DevicePlugins": False},  # its socket is in /var/lib/kubelet, whatever --root-dir says
            # A full disk is the machine's affair: no pod is evicted for it, and no image deleted, which others use.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
            "maxPods": 250,
            "nodeStatusUpdateFrequency": "2s",  # by default a node is said to be ready ten seconds after it is
            # Five requests a second, the default, would be what a test of many pods measures.
            "kubeAPIQPS": 100,
            "kubeAPIBurst": 200,
        }
        return json.dumps(config, indent=1) + "\n"

    def _tls(self) -> list[str | Path]:
        certificate, key = self.keys.server(self.server_names)
        return [marker(self.state), f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"]
