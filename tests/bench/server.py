"""The server that is started, its image, and the ways of starting it.

Everything lies in one temporary folder and listens on the loopback. Knows no figure.
"""

import os
import signal
import socket
import subprocess
import time

import probe

NAME = "bench"
DEADLINE_S = 60
"""For any start, answer or end, in seconds."""


class Failed(Exception):
    """Something that was started did not do what it was started for."""


def free_port():
    """A port that nothing listens on at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Bench:
    """The folder, the programs, and the environment in which they are started."""

    def __init__(self, folder, defrost, criu):
        self.folder, self.defrost, self.criu = folder, defrost, criu
        self.output = os.path.join(folder, "output")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DEFROST_")}
        self.environment = kept | {"XDG_RUNTIME_DIR": folder, "DEFROST_CRIU": criu}

    def run(self, *command):
        """Runs a command to its end; gives its output."""
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def spawn(self, *command):
        """Starts a command; gives its pid and t0."""
        return probe.spawn(list(command), self.environment, self.output)

    def image(self, name):
        """The path of an image in the folder."""
        return os.path.join(self.folder, name)


class Server:
    """`defrost serve` with an echo and an HTTP port that are the same in every start."""

    def __init__(self, bench, *arguments, name=NAME):
        self.bench = bench
        self.echo, self.http = free_port(), free_port()
        ports = ["--echo", f"127.0.0.1:{self.echo}", "--http", f"127.0.0.1:{self.http}"]
        self.command = [bench.defrost, "serve", "--name", name, *ports, *arguments]
        self.pid = 0

    def start(self):
        """Cold, until it is ready."""
        self.pid, began = self.bench.spawn(*self.command)
        return probe.first_answer(probe.readyz(self.http), began, DEADLINE_S)

    def checkpoint(self, image):
        """To an image, which ends it. Reads the image once, so that it is in the page cache."""
        self.bench.run(self.bench.defrost, "checkpoint", NAME, image)
        self.reap()
        for entry in os.scandir(image):
            with open(entry.path, "rb") as file:
                while file.read(1 << 20):
                    pass

    def lives(self):
        """Whether the process of that pid is the server: a number can pass to somebody else's process."""
        try:
            return os.readlink(f"/proc/{self.pid}/exe") == self.bench.defrost
        except OSError:
            return False

    def kill(self):
        """Ends it, cold or restored, and waits until its pid is free."""
        if self.lives():
            os.kill(self.pid, signal.SIGKILL)
            self.reap()

    def reap(self):
        """Waits for its end. A restored one is a child too, or becomes one when its restorer ends."""
        end = time.monotonic() + DEADLINE_S
        while os.path.exists(f"/proc/{self.pid}"):
            reap_all()
            if time.monotonic() > end:
                raise Failed(f"process {self.pid} did not end within {DEADLINE_S} s")
            time.sleep(0.001)


def reap_all():
    """Reaps every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def ended(pid):
    """Waits for a command that was started; gives its exit status. Most have ended already, and none may hang."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise Failed(f"command {pid} did not end within {DEADLINE_S} s")
