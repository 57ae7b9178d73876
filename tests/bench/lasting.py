"""What a server does under load, over time and through crashes: measured for minutes, where the starts take milliseconds.

The parts are `load` and `sleepsort` (load.py, sleepsort.py), `periodic` and `kills` (history.py), and `events`
(events.py). They have a record of their own, which --keep puts into runs/lasting:

    {"lasting": 1,
     "host":  {"date", "commit", "kernel", "cpu", "cores", "memory_mib", "criu", "notes": {program: version}},
     "parts": {NAME: {"load_average": [before, after], "took_s", …}}}

with what each part found, as its module says: all samples, in the unit that their names end with. Only the table rounds.
Times are of a monotonic clock. The record is written after each part, so that a failure leaves what was measured before.
"""

import datetime
import json
import os
import platform
import subprocess
import tempfile
import time

import events
import history
import host
import load
import server
import services
import sleepsort

PARTS = {
    "load": load.measure,
    "sleepsort": sleepsort.measure,
    "periodic": history.periodic,
    "kills": history.kills,
    "events": events.measure,
}
"""By name, in the order in which they are measured."""


def measure(bench, wanted, note):
    """Measures what was asked for; gives the record, its file, and whether something failed. None if it was nothing."""
    chosen = {name: part for name, part in PARTS.items() if not wanted.only or name in wanted.only}
    if not chosen:
        return None
    record = {"lasting": 1, "host": _host(bench, wanted), "parts": {}}
    path, failed = _path(wanted, record["host"]), False
    for name, part in chosen.items():
        note(name)
        before, began = os.getloadavg()[0], time.monotonic()
        try:
            found = part(bench, wanted)
            around = {"load_average": [before, os.getloadavg()[0]], "took_s": time.monotonic() - began}
            record["parts"][name] = around | found
        except services.Missing as reason:
            note(f"{name} is skipped: {reason}")
        except (server.Failed, subprocess.SubprocessError, OSError, ValueError, KeyError, IndexError) as error:
            failed = True
            note(f"{name} failed: {error}")
        server.reap_all()
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        os.rename(path + ".new", path)
    return record, path, failed


def _path(wanted, known):
    name = f"{known['date'][:10]}-{known['commit'] or 'unknown'}.json"
    if not wanted.keep:
        return os.path.join(tempfile.mkdtemp(prefix="defrost-bench-run-"), name)
    folder = os.path.join(wanted.root, "tests/bench/runs/lasting")
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, name)


def _host(bench, wanted):
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": wanted.commit,
        "kernel": platform.release(),
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory_mib": pages >> 20,
        "criu": host.say(bench.criu, "--version").removeprefix("Version: ").split("\n")[0],
        "notes": host.notes(),
    }
