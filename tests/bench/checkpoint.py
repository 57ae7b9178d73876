"""How long a checkpoint disturbs a server, and what a server costs that waits for one.

The server has eight resources and a hundred idle connections, and goes on after each checkpoint.
"""

import json
import os
import shutil
import socket
import time

import server

CONNECTIONS = 100
LOOK_NS = 100_000
"""How often it is looked whether the server stands still."""


def measure(bench, rounds):
    """Checkpoints with the server left running; all times in milliseconds."""
    subject = server.Server(bench, "--log", bench.path("log"), "--warm-mib", "1")
    try:
        subject.start()
        resources = json.loads(_ask(bench, b"resources json").split(b": ", 1)[-1])
        runs = [_checkpoint(bench, subject, number) for number in range(rounds + 1)][1:]
        return {"connections": CONNECTIONS, "resources": _count(resources), "runs": runs}
    finally:
        subject.kill()


def idle(bench, seconds):
    """What a waiting server uses of the CPU: ticks of 10 ms, and context switches by its own wish."""
    subject = server.Server(bench, "--warm-mib", "1")
    try:
        subject.start()
        time.sleep(1.5)  # threads that were needed to start go away after a second
        ticks, switches, began = _ticks(subject.pid), _switches(subject.pid), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        return {
            "seconds": took,
            "cpu_ticks": _ticks(subject.pid) - ticks,
            "switches_per_second": (_switches(subject.pid) - switches) / took,
        }
    finally:
        subject.kill()


def _count(resources):
    return len(resources["resources"] if isinstance(resources, dict) else resources)


def _checkpoint(bench, subject, number):
    idle_ones = [socket.create_connection(("127.0.0.1", subject.echo), server.DEADLINE_S) for _ in range(CONNECTIONS)]
    image = bench.path(f"checkpoint-{number}")
    try:
        # Each is served before the checkpoint, not only queued.
        for client in idle_ones:
            client.sendall(b"x\n")
        for client in idle_ones:
            client.recv(2)
        with _control(bench) as control:
            began = time.monotonic_ns()
            control.sendall(f"checkpoint {image} leave-running\n".encode())
            frozen = _frozen(subject.pid, began, control)
            answer = _line(control)
            whole = (time.monotonic_ns() - began) / 1e6
        if not answer.startswith(b"ok: "):
            raise server.Failed(f"checkpoint: {answer.decode(errors='replace')}")
        manifest = json.loads(bench.run(bench.defrost, "inspect", "--json", image))
        micros = {one["name"]: one["micros"] for one in manifest["subject"]["phases"] + manifest["phases"]}
        # Serves again by the time of the answer.
        subject.ready()
        return {"quiesce_ms": micros["quiesce"] / 1e3, "frozen_at_ms": frozen, "whole_ms": whole, "phases_us": micros}
    finally:
        for client in idle_ones:
            client.close()
        shutil.rmtree(image, ignore_errors=True)


def _frozen(pid, began, control):
    """Milliseconds until CRIU has stopped the server; none if the answer came first and it was never seen."""
    control.setblocking(False)
    tick = began
    try:
        while True:
            if server_state(pid) in "tT":
                return (time.monotonic_ns() - began) / 1e6
            try:
                if control.recv(1, socket.MSG_PEEK):
                    return None
            except BlockingIOError:
                pass
            tick += LOOK_NS
            time.sleep(max(0, tick - time.monotonic_ns()) / 1e9)
    finally:
        control.settimeout(server.DEADLINE_S)


def server_state(pid):
    """The letter of proc_pid_stat(5)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rsplit(b") ", 1)[1][:1].decode()


def _control(bench):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(server.DEADLINE_S)
    client.connect(os.path.join(bench.folder, "defrost", f"{server.NAME}.sock"))
    return client


def _line(client):
    line = b""
    while not line.endswith(b"\n"):
        part = client.recv(64 * 1024)
        if not part:
            raise server.Failed("the control socket was closed before the answer")
        line += part
    return line


def _ask(bench, request):
    with _control(bench) as control:
        control.sendall(request + b"\n")
        return _line(control)


def _ticks(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rsplit(b") ", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def _switches(pid):
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status", encoding="utf-8") as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
    return total
