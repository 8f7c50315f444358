"""What a machine is told before it boots, and what starts the runner in it: shell text, for any image with cloud-init.

Nothing of ours has to be in the image. User data brings the host key that we made, so that we know the machine when it
answers; lets one client key of ours in, and no other key; and switches the machine off if we never come.
"""

from __future__ import annotations

import shlex

from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates._hosted import FOLDER, RUNNER
from rayroll.substrates._ssh import GO, GONE, Keys

__all__ = ["connect_command", "pool_user_data", "start_command", "user_data"]

STARTED = f"{FOLDER}/started"
SOCKET = f"{FOLDER}/socket"
_GO = GO.decode().strip()
CAPABILITIES = "-all,+chown,+dac_override,+fowner,+setuid,+setgid,+kill"
"""What root is left with, as in a container of ``docker``."""
OFF = "poweroff -f || poweroff || shutdown -h now"
"""At once: nothing on the disk is wanted any more."""

_USER_DATA = """\
#!/bin/sh
# From rayroll: lets its host in by SSH and nobody else, and switches this machine off if that host does not come.
mkdir -p {folder} && cd {folder} || exit 1
rm -f {started}
(sleep {patience_s:.0f}; [ -e {started} ] || {{ {off}; }}) </dev/null >/dev/null 2>&1 &
umask 077
mkdir -p ssh /run/sshd
cat >ssh/host_key <<'END'
{host_key}END
echo '{client_key}' >ssh/authorized_keys
cat >ssh/config <<'END'
HostKey {folder}/ssh/host_key
AuthorizedKeysFile {folder}/ssh/authorized_keys
AuthenticationMethods publickey
AllowUsers root
PermitRootLogin prohibit-password
UsePAM yes
UseDNS no
PidFile {folder}/ssh/pid
END
stop_others() {{
    for unit in ssh.socket sshd.socket ssh.service sshd.service; do
        systemctl disable --now $unit
    done
    service ssh stop
}}
sshd=$(command -v sshd || echo /usr/sbin/sshd)
# Again and again: one that ends slowly keeps the port, and ours, which has said that all is well, then ends by itself.
rm -f ssh/pid
until [ -s ssh/pid ] && kill -0 "$(cat ssh/pid)"; do
    stop_others
    $sshd -f {folder}/ssh/config
    sleep 0.2
done
"""

_ALWAYS = """\
Content-Type: multipart/mixed; boundary="rayroll"
MIME-Version: 1.0

--rayroll
Content-Type: text/cloud-config; charset="us-ascii"

#cloud-config
cloud_final_modules:
- [scripts-user, always]

--rayroll
Content-Type: text/x-shellscript; charset="us-ascii"

{script}
--rayroll--
"""


def user_data(keys: Keys, patience_s: float, *, has_booted: bool = False) -> str:
    """For a machine that shall take our runner within ``patience_s`` of its boot.

    Args:
        has_booted: It has, before; cloud-init would not run a second script unless told so.
    """
    script = _USER_DATA.format(
        folder=FOLDER,
        started=STARTED,
        patience_s=patience_s,
        off=OFF,
        host_key=keys.host_private,
        client_key=keys.client_public,
    )
    return _ALWAYS.format(script=script) if has_booted else script


def pool_user_data() -> str:
    """For a machine that shall boot once and then wait, stopped."""
    return "#!/bin/sh\n# From rayroll: waits, stopped, until a host of rayroll starts it again.\npoweroff\n"


def start_command(spec: SandboxSpec, lease: Lease, runner_bytes: int) -> str:
    """Reads the runner from its input and becomes it, as PID 1 of namespaces of its own; then the machine goes off.

    Off as well where this stream has broken: the shell waits for the runner, not for us.
    """
    folder = shlex.quote(spec.workdir)
    env = " ".join(shlex.quote(f"{name}={value}") for name, value in spec.env.items())
    serve = (
        f"{RUNNER} serve --socket {SOCKET} --lease-ms {round(lease.duration_s * 1000)} "
        f"--rlimit fsize={spec.disk_mib << 20}"
    )
    inside = (
        "ip link set lo up\n"
        # What belongs to the whole machine can be read and not written: its clock, its kernel's settings, its power.
        "for place in sys sysrq-trigger irq bus; do\n"
        "    [ ! -e /proc/$place ] || { mount --bind /proc/$place /proc/$place"
        " && mount -o remount,bind,ro /proc/$place; } || exit 74\n"
        "done\n"
        f"mkdir -p {folder} && cd {folder} || exit 74\n"
        f"exec setpriv --no-new-privs --inh-caps=-all --bounding-set={CAPABILITIES} env -u MOTD_SHOWN {env} {serve}\n"
    )
    namespaces = "--mount-proc --pid --fork" + ("" if spec.network else " --net")
    script = (
        "trap '' HUP PIPE; umask 022\n"
        f"set -C; : >{STARTED} || exit 74; set +C\n"
        f"head -c {runner_bytes} >{RUNNER} && chmod 711 {RUNNER} && echo $$ >{STARTED} && printf '{_GO}\\n' &&\n"
        f"unshare {namespaces} sh -c {shlex.quote(inside)}\n"
        f"{OFF}\n"
    )
    return f"exec sh -c {shlex.quote(script)}"


def connect_command() -> str:
    """A second way to the same runner, while it lives."""
    alive = f'kill -0 "$(cat {STARTED})" 2>/dev/null || exit {GONE}'
    script = f"{alive}\nprintf '{_GO}\\n'\nexec {RUNNER} connect {SOCKET}"
    return f"exec sh -c {shlex.quote(script)}"
