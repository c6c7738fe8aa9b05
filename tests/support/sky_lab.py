"""SkyPilot on a Slurm cluster of the test's own, over ssh on loopback, in one folder.

SkyPilot lives in a virtual environment of its own, ``.venv-skypilot``, which ``make skypilot``
makes. Its API server, its client's home and the home on the login node are in the lab's folder, so
that nothing of the machine's own SkyPilot is used or changed. Nodes install SkyPilot from PyPI.

    PYTHONPATH=tests python -m support.sky_lab    # to try things on, until Ctrl-C

Three things make a cluster on one machine good enough for SkyPilot:

- It looks up the addresses of nodes by name. The nodes are therefore named by numbers that are the
  address of loopback, such as 0x7f000001.
- It downloads uv and Python 3.10 on every node. A stand-in for uv is put there first, by Slurm's
  TaskProlog, and takes the Python of this machine.
- It logs in by ssh. The lab has an sshd of its own, which sets another HOME.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from support import slurm_lab
from support.patience import until
from support.places import ROOT, SUPPORT
from support.slurm_lab import PATH, SlurmLab, free_ports

VENV = ROOT / ".venv-skypilot"
PYTHON = VENV / "bin" / "python"
PROGRAMS = ("sshd", "ssh-keygen", "rsync")
NAMES = ("0x7f000001", "0x07f000001", "0x007f000001")
MARK = "DUETUNE_SKY_LAB"

SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile {folder}/sshd.pid
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
AuthorizedKeysFile {folder}/key.pub
SetEnv HOME={folder}/home SLURM_CONF={conf} {mark}={folder}
Subsystem sftp internal-sftp
MaxStartups 100
MaxSessions 100
"""
CLUSTER = """
Host lab
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/key
  IdentitiesOnly yes
"""
# Managed jobs run in the API server; a controller of its own would be a machine more.
CONFIG = """
jobs:
  controller:
    consolidation_mode: true
"""
PLUGINS = """
plugins:
  - class: duetune.interop.skypilot_strategy.DeadlinePlugin
  - class: small_lab.SmallLab
"""
UV = """#!/bin/bash
export UV_CACHE_DIR={cache} UV_PYTHON_DOWNLOADS=never UV_HTTP_TIMEOUT=180
export SSL_CERT_FILE=${{SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}
words=(); for word in "$@"; do [ "$word" = 3.10 ] && word={python}; words+=("$word"); done
exec {venv}/bin/uv "${{words[@]}}"
"""
PROLOG = """#!/bin/bash
case "$SLURM_JOB_NAME" in *-????????)
    place="{folder}/home/.sky_clusters/$SLURM_JOB_NAME/.local/bin"
    mkdir -p "$place" && ln -sf {folder}/uv "$place/uv"; : > "{folder}/clusters/$SLURM_JOB_NAME";;
esac
"""


def missing():
    """What is not on this machine; 'make skypilot' and 'make slurm' install it."""
    programs = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    venv = (
        [] if (VENV / "bin" / "sky").exists() and (VENV / "bin" / "uv").exists() else ["SkyPilot"]
    )
    return [*slurm_lab.missing(), *programs, *venv]


class SkyLab:
    """SkyPilot with the infrastructure ``slurm/lab/spot`` and ``slurm/lab/guaranteed``.

    ``environment`` is that of its clients; ``slurm`` is the cluster. ``managed`` lets it run
    managed jobs, with our strategy.
    """

    def __init__(self, nodes=2, *, grace_s=10, managed=False):
        self.folder = Path(tempfile.mkdtemp(prefix="dsky-"))
        self.folder.chmod(0o755)
        self.home = self.folder / "client"
        # Begins the names of clusters, none of which is ever used again.
        self.prefix = self.folder.name.replace("_", "-").lower() + "-"
        self.port, ssh_port = free_ports(2)
        prolog = self.folder / "prolog"
        self.slurm = SlurmLab(
            names=list(NAMES[:nodes]), grace_s=grace_s, extra=f"TaskProlog={prolog}"
        )
        self._sessions = set()
        self.environment = {
            **{name: value for name, value in os.environ.items() if "SKY" not in name},
            "HOME": str(self.home),
            "PATH": f"{VENV}/bin:{PATH}",
            "SKYPILOT_API_SERVER_LOCAL_PORT": str(self.port),
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
            "SKYPILOT_SUPPRESS_SENSITIVE_LOG": "1",
            "SLURM_CONF": self.slurm.conf,
            "PYTHONPATH": str(SUPPORT / "sky_plugins"),
            MARK: str(self.folder),
        }
        for name in ("clusters", "home", "client/.slurm", "client/.sky"):
            (self.folder / name).mkdir(parents=True)
        known = {
            "port": ssh_port,
            "folder": self.folder,
            "conf": self.slurm.conf,
            "mark": MARK,
            "user": getpass.getuser(),
            "venv": VENV,
            "python": sys.base_prefix + "/bin/python3",
            "cache": _cache(),
        }
        (self.folder / "sshd_config").write_text(SSHD.format(**known))
        (self.home / ".slurm" / "config").write_text(CLUSTER.format(**known))
        if managed:
            (self.home / ".sky" / "config.yaml").write_text(CONFIG)
            (self.home / ".sky" / "plugins.yaml").write_text(PLUGINS)
        for name, text in (("uv", UV), ("prolog", PROLOG)):
            (self.folder / name).write_text(text.format(**known))
            (self.folder / name).chmod(0o755)

    def __enter__(self):
        try:
            self.slurm.__enter__()
            for name in ("key", "host_key"):
                words = ("-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name))
                subprocess.run(["ssh-keygen", *words], check=True)
            self._sshd()
            self.start_server()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with contextlib.suppress(AssertionError):
            self.slurm.clear()
        until(lambda: not self._killed(), "the end of SkyPilot")
        self.slurm.__exit__()
        # SkyPilot leaves them on nodes whose job was cancelled. A cluster of the same name would
        # find the jobs of the old one in there.
        for cluster in self.folder.glob("clusters/*"):
            shutil.rmtree(Path("/tmp") / cluster.name, ignore_errors=True)  # noqa: S108
        until(self._removed, "an end of its files")

    def _sshd(self):
        Path("/run/sshd").mkdir(exist_ok=True)
        program = shutil.which("sshd", path=PATH)
        words = (program, "-D", "-f", str(self.folder / "sshd_config"))
        self.slurm._daemon("sshd", *words, "-E", str(self.folder / "sshd.log"))
        until((self.folder / "sshd.pid").exists, "sshd", story=self.story)

    def start_server(self):
        """Start the API server, as every command of SkyPilot would."""
        self.sky("api", "start")
        word = f"--port={self.port}"
        self._sessions |= {_session(pid) for pid in _processes() if word in _words(pid, "cmdline")}

    def server(self):
        """The processes of the API server."""
        return [pid for pid in _processes() if _session(pid) in self._sessions]

    def pause_server(self, paused):
        """Let the API server hang: connections are accepted, nothing is answered."""
        for pid in self.server():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if paused else signal.SIGCONT)

    def sky(self, *words):
        """What a command of SkyPilot prints."""
        done = subprocess.run(
            [VENV / "bin" / "sky", *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def clear(self):
        """End all that runs on the cluster."""
        self.slurm.clear()

    def story(self):
        logs = [*self.folder.glob("*.log"), *self.home.glob(".sky/api_server/server.log")]
        told = [f"{log.name}:\n{log.read_text()[-3000:]}" for log in logs]
        return "\n".join([self.slurm.story(), *told])

    def _removed(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        return not self.folder.exists()

    def _killed(self):
        """Kill what is left of the lab; its processes lose their environment with their titles."""
        sshd = self.slurm.daemons.get("sshd")
        mark = f"{MARK}={self.folder}"
        found = [
            pid
            for pid in _processes()
            if mark in _words(pid, "environ")
            or _session(pid) in self._sessions
            or (sshd is not None and _parent(pid) == sshd.pid)
        ]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found


def _cache():
    """The folder of uv's downloads, which labs share."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "duetune-sky-lab"
    place.mkdir(parents=True, exist_ok=True)
    return place


def _processes():
    """The processes of this machine, those that have ended left out."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in numbers if pid != os.getpid() and _stat(pid)[0] not in {"", "Z"}]


def _stat(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ["", "0", "0", "0"]


def _parent(pid):
    return int(_stat(pid)[1])


def _session(pid):
    return int(_stat(pid)[3])


def _words(pid, file):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace").split("\0")
    return []


def main():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with SkyLab() as lab:
        for name in ("HOME", "SLURM_CONF", "SKYPILOT_API_SERVER_LOCAL_PORT"):
            print(f"export {name}={lab.environment[name]}", flush=True)  # noqa: T201
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
