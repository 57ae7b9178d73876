"""The echo server that is measured, its images, and how commands are run.

Everything lies in one temporary folder and listens on the loopback. Knows no figure.
"""

import ctypes
import http.client
import os
import signal
import socket
import subprocess
import time

NAME = "bench"
DEADLINE_S = 60
"""For any start, answer or end, in seconds."""

_PR_SET_CHILD_SUBREAPER = 36


class Failed(Exception):
    """Something that was started did not do what it was started for."""


def prepare():
    """What is started is reaped by this process, though its parent has ended; and it has no descriptor of others.

    One that was opened outside of this mount namespace could not be dumped.
    """
    for number in os.listdir("/proc/self/fd"):
        try:
            if int(number) > 2:
                os.set_inheritable(int(number), False)
        except OSError:
            pass  # the one that the folder was read by
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


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

    def run(self, *command, deadline_s=DEADLINE_S):
        """Runs a command to its end; gives its output."""
        try:
            done = subprocess.run(
                command, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=deadline_s, check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Failed(f"{' '.join(command)}: {error}") from error
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def spawn(self, *command, output=None):
        """Starts a command in a session of its own; gives its pid."""
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, output or self.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        return os.posix_spawnp(command[0], command, self.environment, file_actions=actions, setsid=True)

    def path(self, name):
        """Of something in the folder."""
        return os.path.join(self.folder, name)


class Process:
    """A command that was started, or what a restore has brought up under its pid."""

    def __init__(self, bench, *command, output=None):
        self.bench, self.command, self.output = bench, command, output
        self.pid, self.program = 0, ""

    def start(self):
        self.pid = self.bench.spawn(*self.command, output=self.output)

    def lives(self):
        """Whether the process of that pid is the one: a number can pass to somebody else's process."""
        try:
            found = os.readlink(f"/proc/{self.pid}/exe")
        except OSError:
            return False
        self.program = self.program or found
        return found == self.program

    def kill(self):
        """Ends it, cold or restored, and waits until its pid is free."""
        if self.pid and self.lives():
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


class Server(Process):
    """`defrost serve` with an HTTP port that is the same in every start, and an echo; or with one of them."""

    def __init__(self, bench, *arguments, name=NAME, echo=True, has_http=True):
        self.echo, self.http = free_port(), free_port()
        self.ports = ["--echo", f"127.0.0.1:{self.echo}"] if echo else []
        self.ports += ["--http", f"127.0.0.1:{self.http}"] if has_http else []
        self.has_http = has_http
        super().__init__(bench, bench.defrost, "serve", "--name", name, *self.ports, *arguments)
        self.name = name

    def start(self):
        """Cold, until it is ready."""
        super().start()
        self.ready()

    def ready(self):
        """Waits until it says so, to the next millisecond."""
        if self.has_http:
            wait_for(lambda: get(self.http, "/readyz")[0] == 200, f"readiness of port {self.http}")
        else:
            wait_for(lambda: _takes_connections(self.echo), f"somebody to listen on port {self.echo}")
        self.lives()

    def restore(self, *arguments):
        """Restores, by this command."""
        self.bench.run(*arguments)
        self.ready()

    def checkpoint(self, image):
        """To an image, which ends it."""
        self.bench.run(self.bench.defrost, "checkpoint", self.name, image)
        self.reap()


def _takes_connections(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def get(port, path):
    """Status and body of a request; none and nothing where nobody answers."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return None, b""
    finally:
        client.close()


def post(port, path, body):
    """Sends a text, which has to be taken."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        client.request("POST", path, body, {"Content-Type": "text/plain"})
        answer = client.getresponse()
        if answer.status != 200:
            raise Failed(f"{path}: status {answer.status}: {answer.read(200)}")
        answer.read()
    except http.client.HTTPException as error:
        raise Failed(f"{path}: {error}") from error
    finally:
        client.close()


def wait_for(done, what):
    """Waits until it is so, to the next millisecond."""
    end = time.monotonic() + DEADLINE_S
    while not done():
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {DEADLINE_S} s")
        time.sleep(0.001)


def reap_all():
    """Reaps every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
