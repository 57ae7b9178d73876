"""Times a start, from before the fork to the first correct answer.

One attempt at a connection on each tick of a grid of absolute times, so that the attempts of two commands that are
compared fall alike. Knows no command and no server.
"""

import ctypes
import errno
import os
import select
import socket
import struct
import time
from dataclasses import dataclass, field

GRID_NS = 100_000
"""Distance of two ticks."""
SPIN_NS = 40_000
"""How long before a tick the sleep ends; the rest is waited for awake."""
SYN_NS = 3_000_000
"""How long a connection attempt may go unanswered: a lost SYN is repeated by the kernel only after a second."""
REFUSED_NS = 1_000_000
"""The pause after an answer that says "not yet": more often would take the time that is measured from the server."""
ANSWER_LIMIT = 64 * 1024
"""Longest answer that is read, in bytes."""

_PR_SET_TIMERSLACK = 29
_PR_SET_CHILD_SUBREAPER = 36
_NO_LINGER = struct.pack("ii", 1, 0)


class Late(Exception):
    """There was no correct answer within the deadline."""


@dataclass
class Answer:
    """When what came, in milliseconds since t0."""

    connect_ms: float = 0.0
    first_byte_ms: float = 0.0
    answer_ms: float = 0.0
    attempts: int = 0
    lost_syns: int = 0
    not_yet: int = 0
    worst_gap_ms: float = 0.0


@dataclass
class Question:
    """What is asked where, and which answer is the correct one."""

    port: int
    request: bytes
    correct: bytes
    whole: bool = field(default=True)
    """Whether the server ends the connection after its answer; else the correct one ends it."""


def echo(port):
    """Asks a line echo."""
    return Question(port, b"first answer\n", b"first answer\n", whole=False)


def readyz(port):
    """Asks by HTTP whether the server is ready."""
    return Question(port, b"GET /readyz HTTP/1.0\r\n\r\n", b"ready\n")


def prepare():
    """Exact timers for this process; and what it starts is reaped by it, though the parent has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_TIMERSLACK, 1), (_PR_SET_CHILD_SUBREAPER, 1)):
        if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def spawn(command, environment, output):
    """Starts a command in a session of its own. Gives its pid, and the time just before the fork in ns."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    began = time.monotonic_ns()
    pid = os.posix_spawnp(command[0], command, environment, file_actions=actions, setsid=True)
    return pid, began


def first_answer(question, began, deadline_s):
    """Asks on each tick until the answer is correct."""
    seen = Answer()
    end = began + int(deadline_s * 1e9)
    tick, last = began, time.monotonic_ns()
    while True:
        now = time.monotonic_ns()
        if now > end:
            raise Late(f"port {question.port} gave no correct answer within {deadline_s} s")
        tick += GRID_NS * max(1, -((tick - now) // GRID_NS))
        _sleep_until(tick)
        now = time.monotonic_ns()
        seen.worst_gap_ms = max(seen.worst_gap_ms, (now - last) / 1e6)
        seen.attempts += 1
        if _ask(question, began, end, seen):
            return seen
        last = now


def _sleep_until(tick):
    ahead = tick - SPIN_NS - time.monotonic_ns()
    if ahead > 0:
        time.sleep(ahead / 1e9)
    while time.monotonic_ns() < tick:
        pass


def _ask(question, began, end, seen):
    since = lambda: (time.monotonic_ns() - began) / 1e6  # noqa: E731
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        if not _connect(client, question.port, seen):
            return False
        connect = since()
        try:
            client.send(question.request)
            answer, first_byte = _receive(client, question, end, since)
        except (ConnectionError, TimeoutError):
            return False
        if not answer.endswith(question.correct):
            seen.not_yet += 1
            time.sleep(REFUSED_NS / 1e9)
            return False
        seen.connect_ms, seen.first_byte_ms, seen.answer_ms = connect, first_byte, since()
        return True


def _connect(client, port, seen):
    error = client.connect_ex(("127.0.0.1", port))
    if error == errno.EINPROGRESS:
        poll = select.poll()
        poll.register(client, select.POLLOUT)
        if not poll.poll(SYN_NS / 1e6):
            seen.lost_syns += 1
            return False
        error = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return error == 0


def _receive(client, question, end, since):
    answer, first_byte = b"", 0.0
    poll = select.poll()
    poll.register(client, select.POLLIN)
    while question.whole or len(answer) < len(question.correct):
        if not poll.poll(max(0, (end - time.monotonic_ns()) / 1e6)):
            raise TimeoutError
        part = client.recv(ANSWER_LIMIT)
        if not part:
            break
        first_byte = first_byte or since()
        answer += part
        if len(answer) > ANSWER_LIMIT:
            raise ConnectionError("the answer is too long")
    return answer, first_byte
