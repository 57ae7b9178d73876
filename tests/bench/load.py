"""Clients of the echo, each of which checks every answer: many of them, and some through a checkpoint and a restore.

Gives, for each of `idle server`, `checkpoint` and `restore`: `outcome`, what `defrost load --json --latencies` told (each
latency in microseconds and how often it was, the memory of a connection at both ends); `server_cpu_s` and
`clients_cpu_s`, none where the process was replaced meanwhile.
"""

import json
import os
import shutil
import subprocess
import time

import server

MANY, THROUGH, MESSAGES = 10_000, 1_000, 10
"""Clients at a server that is left alone, clients through a checkpoint, and messages of each."""
LOAD_S = 120
"""Deadline for a run of the clients, in seconds."""
ANSWER_S = 60
"""How long one message may take, in seconds."""
TICKS = os.sysconf("SC_CLK_TCK")


class Load:
    """`defrost load`, under way."""

    def __init__(self, bench, port, clients, messages, *arguments):
        self.out, self.log = bench.path("load.json"), bench.path("load.log")
        words = ["load", "127.0.0.1", str(port), str(clients), str(messages), "--json", "--latencies"]
        words += ["--timeout", str(ANSWER_S), *arguments]
        with open(self.out, "wb") as out, open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [bench.defrost, *words], env=bench.environment, cwd=bench.folder,
                stdin=subprocess.DEVNULL, stdout=out, stderr=log,
            )

    def whole(self, deadline_s=LOAD_S):
        """Waits for its end; gives what it told, and the seconds of CPU that it took, if it could be asked."""
        end = time.monotonic() + deadline_s
        usage = None
        try:
            while True:
                pid, status, used = os.wait4(self.process.pid, os.WNOHANG)
                if pid:
                    usage = used.ru_utime + used.ru_stime
                    self.process.returncode = os.waitstatus_to_exitcode(status)
                    break
                if time.monotonic() > end:
                    raise server.Failed(f"the clients did not end within {deadline_s} s")
                time.sleep(0.01)
        except ChildProcessError:
            self.process.wait()  # somebody else has reaped it
        with open(self.out, encoding="utf-8") as out, open(self.log, encoding="utf-8", errors="replace") as log:
            told = out.read()
            if not told:
                raise server.Failed(f"the clients told nothing: {log.read().strip()}")
        return json.loads(told), usage

    def stop(self):
        """Ends it, if it is still there."""
        if self.process.returncode is None:
            self.process.kill()
            self.process.wait()


def measure(bench, wanted):
    """The three of them."""
    many, through = (MANY // 20, THROUGH // 10) if wanted.quick else (MANY, THROUGH)
    return {"runs": {
        "idle server": _alone(bench, many),
        "checkpoint": _through(bench, through, _checkpoint),
        "restore": _through(bench, through, _restore),
    }}


def cpu_s(pid):
    """The seconds of CPU that a process has taken."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rsplit(b") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _alone(bench, clients):
    # Each listener may take so many descriptors: with a second one they would be twice as many.
    subject = server.Server(bench, "--connections", str(clients + 50), has_http=False)
    clients_ = None
    try:
        subject.start()
        before = cpu_s(subject.pid)
        clients_ = Load(bench, subject.echo, clients, MESSAGES, "--pid", str(subject.pid))
        outcome, used = clients_.whole()
        return {"outcome": outcome, "server_cpu_s": cpu_s(subject.pid) - before, "clients_cpu_s": used}
    finally:
        if clients_:
            clients_.stop()
        subject.kill()


def _through(bench, clients, disturb):
    subject = server.Server(bench, "--connections", str(clients + 50))
    clients_, image = None, bench.path("image")
    try:
        subject.start()
        clients_ = Load(bench, subject.echo, clients, MESSAGES, "--through-checkpoint")
        server.wait_for(lambda: _descriptors(subject.pid) > clients, "the clients' connections")
        disturb(bench, subject, image)
        outcome, used = clients_.whole()
        return {"outcome": outcome, "server_cpu_s": None, "clients_cpu_s": used}
    finally:
        if clients_:
            clients_.stop()
        subject.kill()
        shutil.rmtree(image, ignore_errors=True)


def _descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def _checkpoint(bench, subject, image):
    bench.run(bench.defrost, "checkpoint", subject.name, image, "--leave-running")


def _restore(bench, subject, image):
    subject.checkpoint(image)
    subject.restore(bench.defrost, "restore", image, "--wait-ready")
