"""Who may talk to the API: a certificate authority of the test bed's own, a token for each user, kubeconfig files."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bed.shell import run

_DAYS = 3650
_DIGEST_LENGTH = 8

ADMIN = "admin"
CONTROLLER_MANAGER = "system:kube-controller-manager"
SCHEDULER = "system:kube-scheduler"

_CONFIG = """\
[req]
prompt = no
distinguished_name = subject
[subject]
{subject}
[extensions]
{extensions}
"""
_AUTHORITY = """\
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign, digitalSignature
subjectKeyIdentifier = hash
"""
_LEAF = """\
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature, keyEncipherment
authorityKeyIdentifier = keyid
extendedKeyUsage = {usage}
"""


@dataclass(frozen=True, slots=True)
class Keys:
    """What is secret of one cluster, in one folder that only root may enter."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def tokens(self) -> Path:
        """In the form that the API server reads: token, user, id, groups."""
        return self.folder / "tokens.csv"

    @property
    def service_accounts(self) -> Path:
        """The key that signs the tokens of service accounts."""
        return self.folder / "service-accounts.key"

    @property
    def api_client(self) -> tuple[Path, Path]:
        """Certificate and key by which a kubelet knows the API server."""
        return self.folder / "api-client.crt", self.folder / "api-client.key"

    def server(self, names: Sequence[str]) -> tuple[Path, Path]:
        """Certificate and key for a server of these names; another set of names gets another certificate."""
        stem = f"server-{_digest(json.dumps(names))}"
        return self.folder / f"{stem}.crt", self.folder / f"{stem}.key"

    def make(self, users: Mapping[str, Sequence[str]], server_names: Sequence[str]) -> None:
        """Make what is missing.

        Args:
            users: Groups by user name. Another set of users than last time makes everything anew.
            server_names: IP addresses and DNS names of the servers here.
        """
        if not (self.tokens.exists() and set(self._token_by_user()) == set(users)):
            self._make_all(users)
        certificate, _ = self.server(server_names)
        if not certificate.exists():
            alternatives = ", ".join(f"{'IP' if name[0].isdigit() else 'DNS'}:{name}" for name in server_names)
            usage = _LEAF.format(usage="serverAuth") + f"subjectAltName = {alternatives}\n"
            _issue(self.folder, certificate.stem, "CN = rayroll-testbed", usage, signed_by="ca")

    def token(self, user: str) -> str:
        return self._token_by_user()[user]

    def kubeconfig(self, server: str, user: str) -> str:
        """A whole kubeconfig file, as JSON, which is YAML: it names no other file, so it can be copied."""
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        name = "rayroll-testbed"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": user, "user": {"token": self.token(user)}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": user, "namespace": "rayroll"}}],
            "current-context": name,
        }
        return json.dumps(config, indent=1) + "\n"

    def _make_all(self, users: Mapping[str, Sequence[str]]) -> None:
        part = self.folder.with_suffix(".part")  # a folder with its final name is a whole one
        for folder in (part, self.folder):
            shutil.rmtree(folder, ignore_errors=True)
        part.mkdir(mode=0o700, parents=True)
        _issue(part, "ca", "CN = rayroll-testbed-ca", _AUTHORITY)
        client = "O = system:masters\nCN = kube-apiserver"
        _issue(part, "api-client", client, _LEAF.format(usage="clientAuth"), signed_by="ca")
        key = part / self.service_accounts.name
        run(["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", key])
        lines = [f'{secrets.token_hex(32)},{user},{user},"{",".join(groups)}"\n' for user, groups in users.items()]
        write_private(part / self.tokens.name, "".join(lines))
        part.rename(self.folder)

    def _token_by_user(self) -> dict[str, str]:
        fields = [line.split(",") for line in self.tokens.read_text().splitlines()]
        return {user: token for token, user, *_ in fields}


def write_private(path: Path, text: str) -> None:
    """Replace a file that only its owner may read, at once: it may be read meanwhile."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    part.rename(path)


def write_named_after_content(folder: Path, stem: str, text: str) -> Path:
    """A daemon whose file changed then has another command line than the one that runs."""
    path = folder / f"{stem}-{_digest(text)}.json"
    for old in folder.glob(f"{stem}-{'?' * _DIGEST_LENGTH}.json"):
        if old != path:
            old.unlink()
    if not path.exists():
        write_private(path, text)
    return path


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


def _issue(folder: Path, stem: str, subject: str, extensions: str, *, signed_by: str | None = None) -> None:
    """STEM.key, and STEM.crt last: where the certificate is, the key is."""
    config = folder / f"{stem}.cnf"
    config.write_text(_CONFIG.format(subject=subject, extensions=extensions))
    certificate = folder / f"{stem}.part"
    command: list[str | Path] = ["openssl", "req", "-x509", "-config", config, "-extensions", "extensions"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-days", str(_DAYS)]
    if signed_by is not None:
        command += ["-CA", folder / f"{signed_by}.crt", "-CAkey", folder / f"{signed_by}.key"]
    run([*command, "-keyout", folder / f"{stem}.key", "-out", certificate])
    certificate.rename(folder / f"{stem}.crt")
