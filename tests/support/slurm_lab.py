"""A Slurm cluster of the test's own on loopback: munge, a controller and some nodes in one folder.

It needs neither root nor anything of the machine's own Slurm. The daemons are children of the test
and end with it. Every node claims one GPU, which is /dev/null, or up to three.

    PYTHONPATH=tests python -m support.slurm_lab    # a cluster to try things on, until Ctrl-C
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from support.patience import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

CONFIG = """
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout={slurmd_timeout_s}
KillWait={kill_wait_s}
MinJobAge=300
MessageTimeout=10
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=spot Nodes={nodes} PriorityTier=1 PreemptMode=CANCEL GraceTime={grace_s} Default=YES MaxTime=INFINITE State=UP
PartitionName=guaranteed Nodes={nodes} PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""  # noqa: E501 - a partition is one line


def missing():
    """What of Slurm is not on this machine."""
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


def _end_all(variable, words):
    """Kill what has this in its environment, and the steps of Slurm with this in their words."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                ours = variable.encode() in (entry / "environ").read_bytes().split(b"\0")
                if ours or (b"slurmstepd" in command and words.encode() in command):
                    os.kill(int(entry.name), signal.SIGKILL)


class SlurmLab:
    """The partitions ``spot`` and ``guaranteed`` share the nodes n1, n2, ... of ``gpus`` each.

    ``names`` are other names of the nodes; ``extra`` are more lines of ``slurm.conf``.
    """

    def __init__(
        self,
        nodes=3,
        *,
        gpus=1,
        grace_s=10,
        kill_wait_s=1,
        slurmd_timeout_s=10,
        names=None,
        extra="",
    ):
        # Short: a socket's path has at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="duetune-slurm-"))
        self.nodes = names or [f"n{number}" for number in range(1, nodes + 1)]
        self.conf = str(self.folder / "slurm.conf")
        self.environment = {**os.environ, "SLURM_CONF": self.conf, "PATH": PATH}
        self.daemons = {}
        ports = free_ports(len(self.nodes) + 1)
        host = socket.gethostname().partition(".")[0]
        (self.folder / "state").mkdir()
        lines = [
            CONFIG.format(
                host=host,
                port=ports[0],
                user=getpass.getuser(),
                folder=self.folder,
                nodes=",".join(self.nodes),
                grace_s=grace_s,
                kill_wait_s=kill_wait_s,
                slurmd_timeout_s=slurmd_timeout_s,
            )
        ]
        for name, port in zip(self.nodes, ports[1:], strict=True):
            (self.folder / f"spool-{name}").mkdir()
            lines.append(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
                f"CPUs=4 RealMemory=4000 Gres=gpu:{gpus} State=UNKNOWN"
            )
        Path(self.conf).write_text("\n".join([*lines, extra]) + "\n")
        # With a bare Count the gpu plugin would report none.
        devices = ("null", "zero", "full")[:gpus]
        every = ",".join(self.nodes)
        (self.folder / "gres.conf").write_text(
            "".join(f"NodeName={every} Name=gpu File=/dev/{name}\n" for name in devices)
        )

    def __enter__(self):
        try:
            self._munge()
            self.start_controller()
            for name in self.nodes:
                self.start_node(name)
            self.until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if "slurmctld" in self.daemons:
            with contextlib.suppress(AssertionError):
                self.clear()
        # A node's daemon that is asked to end may wait for a step that failed with its machine.
        for name in reversed(list(self.daemons)):
            self.kill(name)
        _end_all(f"SLURM_CONF={self.conf}", str(self.folder))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _munge(self):
        key, sockets = self.folder / "munge.key", self.folder / "munge.socket"
        key.touch(0o400)
        key.chmod(0o600)
        key.write_bytes(secrets.token_bytes(128))
        # --force: folders above it, such as /tmp, may be written by others.
        self.folder.chmod(0o755)
        self._daemon(
            "munged",
            "munged",
            "--foreground",
            "--force",
            f"--socket={sockets}",
            f"--key-file={key}",
            f"--pid-file={self.folder}/munged.pid",
            f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
        )
        until(sockets.exists, "munge", story=self.story)

    def _daemon(self, name, *command):
        with (self.folder / f"{name}.out").open("ab") as output:
            self.daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )

    def start_controller(self):
        """It goes on where it was killed, with what it had saved by then."""
        self._daemon("slurmctld", "slurmctld", "-D")
        until(lambda: self.run("scontrol", "ping") is not None, "slurmctld", story=self.story)

    def start_node(self, name):
        self._daemon(name, "slurmd", "-D", "-N", name)

    def kill(self, name, how=signal.SIGKILL):
        """End a daemon; what a node's daemon started runs on."""
        daemon = self.daemons.pop(name)
        daemon.send_signal(how)
        daemon.wait()

    def place(self, name):
        """The machine on which the job of this name runs; empty if it does not."""
        return (self.run("squeue", "-h", f"--name={name}", "-o", "%N") or "").strip()

    def fail(self, machine):
        """Let a whole machine fail: its daemon and all that it has started."""
        self.kill(machine)
        _end_all(f"SLURMD_NODENAME={machine}", f"spool-{machine}")

    def run(self, *command):
        """What a command prints; None if it fails."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        return done.stdout if done.returncode == 0 else None

    def submit(self, name, partition, command, *more):
        asked = ("--gres=gpu:1", "--output=/dev/null", *more, f"--wrap=exec srun {command}")
        done = self.run("sbatch", f"--job-name={name}", f"--partition={partition}", *asked)
        assert done is not None

    def idle(self):
        return (self.run("sinfo", "-h", "-N", "-p", "spot", "-t", "idle", "-o", "%N") or "").split()

    def clear(self):
        """End every job, and wait until all nodes are free."""
        if "slurmctld" not in self.daemons:
            self.start_controller()
        for name in self.nodes:
            if name not in self.daemons:
                self.start_node(name)
        # A job that is given a node at this moment would escape.
        until(self._cleared, "idle nodes", story=self.story, every_s=0.1)

    def _cleared(self):
        self.run("scancel", f"--user={getpass.getuser()}")
        return self.run("squeue", "-h") == "" and set(self.idle()) == set(self.nodes)

    def until_idle(self):
        until(lambda: set(self.idle()) == set(self.nodes), "idle nodes", story=self.story)

    def story(self):
        logs = sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("*.out"))
        told = [self.run("squeue", "-t", "all"), self.run("sinfo", "-N", "-o", "%N %T %E")]
        return "\n".join(
            [*map(str, told), *(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs)]
        )


def free_ports(count):
    """Ports that nobody uses now."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


def main():
    parser = argparse.ArgumentParser(description="Run a small Slurm cluster until Ctrl-C.")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--grace-s", type=int, default=30)
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with SlurmLab(options.nodes, grace_s=options.grace_s) as lab:
        print(f"export SLURM_CONF={lab.conf}", flush=True)  # noqa: T201 - it is a program
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
