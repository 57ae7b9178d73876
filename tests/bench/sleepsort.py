"""`defrost sleepsort`, alone and with a checkpoint in the middle: does each sleeper have the time left that it had?

Gives `numbers`, `unit_s`, `largest`, and for each of `alone`, `defrost restore` and `criu restore`: `sorted`, whether all
numbers came in order; `before_s` up to the end of the first process, `pause_s` as an image, `after_s` from the restore to
the end; and `woke_ms`, for each number when the first and the last of its sleepers woke, by the clock of the timers.
"""

import os
import random
import shutil
import signal
import subprocess
import time

import server

NUMBERS, LARGEST = 100_000, 10
UNIT_S, AT_S, PAUSE_S = 1.0, 5, 3.0
END_S = 60
"""Deadline beyond the sleep itself, in seconds."""


def measure(bench, wanted):
    """All three ways."""
    count, unit = (5_000, 0.2) if wanted.quick else (NUMBERS, UNIT_S)
    at, pause = (1, 0.5) if wanted.quick else (AT_S, PAUSE_S)
    given = bench.path("numbers")
    chosen = random.Random(1)
    with open(given, "w", encoding="ascii") as file:
        file.writelines(f"{chosen.randint(1, LARGEST)}\n" for _ in range(count))
    image = bench.path("image")
    ways = {
        "defrost restore": (bench.defrost, "restore", image),
        "criu restore": (bench.criu, "restore", "-D", image),
    }
    runs = {"alone": _run(bench, given, count, unit)}
    for way, command in ways.items():
        runs[way] = _run(bench, given, count, unit, (at, pause, image, command))
    return {"numbers": count, "largest": LARGEST, "unit_s": unit, "runs": runs}


def _run(bench, given, count, unit, interrupted=None):
    out, limit = bench.path("sorted"), LARGEST * unit + END_S
    words = [bench.defrost, "sleepsort", "--unit", f"{int(unit * 1000)}ms", "--times", "--name", server.NAME]
    pause = after = 0.0
    try:
        if interrupted:
            at, pause, image, command = interrupted
            words += ["--checkpoint-at", str(at), image]
        before = _timed(bench, words, given, out, limit, ends=(-signal.SIGKILL,) if interrupted else (0,))
        if interrupted:
            time.sleep(pause)
            after = _timed(bench, command, os.devnull, bench.path("restored"), limit)
        return {"before_s": before, "pause_s": pause, "after_s": after} | _read(given, out, count)
    finally:
        if interrupted:
            shutil.rmtree(image, ignore_errors=True)
        for path in (out, bench.path("restored")):
            if os.path.exists(path):
                os.unlink(path)


def _timed(bench, command, given, out, limit, ends=(0,)):
    """Runs a command to its end; gives the seconds. A process without a supervisor is killed when its image is complete."""
    began = time.monotonic()
    with open(given, "rb") as stdin, open(out, "ab") as stdout, open(bench.path("sleepsort.log"), "w+b") as log:
        # In a session of its own: so the pid is the one of the process that is dumped.
        running = subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=log, env=bench.environment, cwd=bench.folder,
            start_new_session=True,
        )
        try:
            status = running.wait(limit)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            raise
        took = time.monotonic() - began
        if status not in ends:
            log.seek(0)
            raise server.Failed(f"{' '.join(command)}: exit status {status}: {log.read()[-500:].decode(errors='replace')}")
    return took


def _read(given, out, count):
    with open(given, encoding="ascii") as file:
        wanted = sorted(int(line) for line in file)
    with open(out, encoding="ascii") as file:
        lines = [line.split() for line in file]
    woke = {}
    for number, timer, _ in lines:
        first, _ = woke.get(number, (int(timer), None))
        woke[number] = (min(first, int(timer)), max(woke.get(number, (0, 0))[1], int(timer)))
    return {"sorted": len(lines) == count and [int(line[0]) for line in lines] == wanted, "woke_ms": woke}
