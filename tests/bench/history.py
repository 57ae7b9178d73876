"""Checkpoints as a server goes: what they cost its clients and the disk, and how far a crash takes it back.

`periodic` gives for each size `mib`, `interval_s`, the `outcome` of the clients (see load.py), and `checkpoints`, the list
that `defrost history --json` prints, with the pause and the bytes of each. `device_bytes` is what the disk under the
history was given meanwhile, by whoever; none if it is no disk.

`kills` gives `interval_s`, `mib`, and `kills`: for each, in seconds, `at_s` from the beginning; `answers_after_s`, from the
kill to the next answer; `back_s`, how far behind the kill the state is that came back: that is, from the moment when the
server had counted as many requests as it now remembers; and `counted`, before and after. The requests come every
10 ms, which is how exact that is. `pauses_ms` are those of the checkpoints that were left at the end.
"""

import json
import os
import re
import select
import shutil
import signal
import threading
import time

import load
import server

SIZES = (1, 64, 256)
INTERVAL_S, RUN_S = 5, 32
CLIENTS, RATE = 200, 2000
"""Clients, and the messages of all of them in a second."""
KILL_INTERVAL_S, KILL_EVERY_S, KILLS_S, KILL_MIB = 1, 5.0, 120, 64
REQUEST_EVERY_S = 0.01


def periodic(bench, wanted):
    """Each size in its turn."""
    sizes, interval, seconds = ((1,), 2, 7) if wanted.quick else (SIZES, INTERVAL_S, RUN_S)
    return {"sizes": [_periodic(bench, mib, interval, seconds) for mib in sizes]}


def _periodic(bench, mib, interval, seconds):
    folder, clients = bench.path("history"), None
    subject = server.Server(
        bench, "--warm-mib", str(mib), "--checkpoint-every", f"{interval}s", "--history", folder, "--keep", "1000"
    )
    try:
        subject.start()
        messages, before = RATE * seconds // CLIENTS, _given_to_disk(bench.path("."))
        clients = load.Load(bench, subject.echo, CLIENTS, messages, "--through-checkpoint", "--rate", str(RATE))
        outcome, used = clients.whole()
        found = json.loads(bench.run(bench.defrost, "history", "--json", folder))
        return {
            "mib": mib, "interval_s": interval, "clients": CLIENTS, "rate": RATE, "outcome": outcome,
            "clients_cpu_s": used, "checkpoints": found, "device_bytes": _since(before, bench.path(".")),
        }
    finally:
        if clients:
            clients.stop()
        _end(bench, subject)
        shutil.rmtree(folder, ignore_errors=True)


def _given_to_disk(path):
    """The bytes that were ever written to the device of this folder (Documentation/block/stat.rst); none if it is none."""
    device = os.stat(path).st_dev
    try:
        with open(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat", encoding="ascii") as stat:
            return int(stat.read().split()[6]) * 512
    except OSError:
        return None


def _since(before, path):
    now = _given_to_disk(path)
    return None if before is None or now is None else now - before


def _end(bench, subject):
    """The server ends with its supervisor; the checkpoint that is being made may take longer."""
    pid, _ = _server_pid(bench)
    subject.kill()
    end = time.monotonic() + server.DEADLINE_S
    while pid and os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        server.reap_all()
        time.sleep(0.01)
    server.reap_all()


def _server_pid(bench):
    """The process that serves, which is not the supervisor; why not, if nobody says so."""
    try:
        said = bench.run(bench.defrost, "status", server.NAME)
    except server.Failed as failed:
        return None, str(failed)
    found = re.search(r"\bpid (\d+)", said)
    return (int(found[1]), None) if found else (None, said)


class Counting:
    """Has the server count: a request every 10 ms, and when each was answered."""

    def __init__(self, port):
        self.port, self.stopped, self.answers = port, threading.Event(), []
        self.lock, self.thread = threading.Lock(), threading.Thread(target=self._ask, daemon=True)

    def _ask(self):
        due = time.monotonic()
        while not self.stopped.is_set():
            if server.get(self.port, "/healthz")[0] == 200:
                with self.lock:
                    self.answers.append(time.monotonic())
            due = max(due + REQUEST_EVERY_S, time.monotonic())
            self.stopped.wait(due - time.monotonic())

    def after(self, when):
        """When the answers after this moment came."""
        with self.lock:
            return [at for at in self.answers if at > when]


def kills(bench, wanted):
    """Kills the server again and again; each time the last checkpoint is to come back."""
    seconds = 12 if wanted.quick else KILLS_S
    folder = bench.path("history")
    subject = server.Server(
        bench, "--warm-mib", str(KILL_MIB), "--checkpoint-every", f"{KILL_INTERVAL_S}s", "--history", folder,
        "--on-crash", "restore",
    )
    counting = Counting(subject.http)
    try:
        subject.start()
        counting.thread.start()
        server.wait_for(lambda: _checkpoints(bench, folder), "the first checkpoint")
        # When the server counted its n-th request, of those that it remembers.
        began, found, counted = time.monotonic(), [], []
        while time.monotonic() < began + seconds:
            time.sleep(KILL_EVERY_S)
            one, counted = _kill(bench, subject, counting, counted, began)
            found.append(one)
        return {
            "interval_s": KILL_INTERVAL_S, "mib": KILL_MIB, "kills": found,
            "pauses_ms": [one["pause_us"] / 1000 for one in _checkpoints(bench, folder)],
        }
    finally:
        counting.stopped.set()
        if counting.thread.is_alive():
            counting.thread.join(server.DEADLINE_S)
        _end(bench, subject)
        shutil.rmtree(folder, ignore_errors=True)


def _checkpoints(bench, folder):
    try:
        return json.loads(bench.run(bench.defrost, "history", "--json", folder))
    except (server.Failed, ValueError):
        return []


def _kill(bench, subject, counting, counted, began):
    """One kill. Gives what came of it, and `counted` for the server that came back."""
    pid, why = _server_pid(bench)
    if not pid or pid == subject.pid:
        raise server.Failed(f"no server to kill: {pid or why}")
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if not select.select([pidfd], [], [], server.DEADLINE_S)[0]:
            raise server.Failed(f"process {pid} did not end within {server.DEADLINE_S} s")
    finally:
        os.close(pidfd)
    # What was under way is read by now; no restore is as fast.
    time.sleep(0.002)
    killed = time.monotonic()
    counted = counted + [at for at in counting.after(counted[-1] if counted else 0.0) if at <= killed]
    server.wait_for(lambda: counting.after(killed), "an answer after the kill")
    # A checkpoint may close the connection before the answer.
    counts = []
    server.wait_for(lambda: counts.append(_count(subject.http)) or counts[-1] is not None, "the count that came back")
    remembered = counts[-1]
    since = counting.after(killed)
    # What it has counted since is not of the image. A request that is under way may count or not.
    kept = min(max(0, remembered - len(since)), len(counted))
    state_of = counted[kept - 1] if kept else began
    found = {
        "at_s": killed - began, "answers_after_s": since[0] - killed, "back_s": killed - state_of,
        "counted": [len(counted), kept],
    }
    return found, counted[:kept] + since


def _count(port):
    """How many requests it remembers."""
    status, body = server.get(port, "/metrics")
    found = re.search(rb'http_requests_total\{path="/healthz"[^}]*\} (\d+)', body) if status == 200 else None
    return int(found[1]) if found else None
