"""The tables of lasting.py's record. Knows the record only."""

import statistics

import figures


def render(record):
    """All parts that are there, in Markdown."""
    known, parts = record["host"], record["parts"]
    lines = [
        f"{known['date'][:10]}, commit {known['commit'] or 'unknown'}: {known['cores']} cores of {known['cpu']}, "
        f"Linux {known['kernel']}, CRIU {known['criu']}",
    ]
    for name, shown in SHOWN.items():
        if name in parts:
            load = " and ".join(f"{value:.1f}" for value in parts[name]["load_average"])
            lines += ["", f"## {name}", "", *shown(parts[name]), "", f"Load average before and after: {load}."]
    return "\n".join(lines) + "\n"


def _spread(samples):
    return figures.spread(samples) | {"max": max(samples)}


def _table(head, rows):
    return [_row(head), _row(["---"] + ["--:"] * (len(head) - 1)), *map(_row, rows)]


def _row(cells):
    return f"| {' | '.join(cells)} |"


def _clients(outcome):
    """The latencies in milliseconds, and what went wrong."""
    latency = outcome["latency_us"] or {}
    times = [f"{latency[part] / 1000:.1f}" if latency else "–" for part in ("p50", "p99", "p999", "max")]
    return [f"{outcome['answered']}", f"{outcome['lost']}", f"{outcome['wrong']}", *times]


CLIENTS = ["answered", "lost", "wrong", "p50 ms", "p99 ms", "p99.9 ms", "max ms"]


def _load(part):
    rows = []
    for name, run in part["runs"].items():
        outcome = run["outcome"]
        cpu = " + ".join("–" if value is None else f"{value:.1f}" for value in (run["server_cpu_s"], run["clients_cpu_s"]))
        waits = f"{outcome['seconds']:.1f} ({outcome['longest_wait']:.1f})"
        rows.append([name, *_clients(outcome), waits, cpu, _memory(outcome)])
    return _table(["", *CLIENTS, "s (longest waits)", "CPU s, server + clients", "KiB a connection, server + client"], rows)


def _memory(outcome):
    memory = outcome["memory"]
    if not memory:
        return "–"
    ends = (memory["server_bytes"], memory["client_bytes"])
    return " + ".join("–" if value is None else f"{value / 1024:.1f}" for value in ends)


def _sleepsort(part):
    rows = []
    for name, run in part["runs"].items():
        awake = run["before_s"] + run["after_s"]
        unit = part["unit_s"] * 1000
        late = [int(last) - int(number) * unit for number, (_, last) in run["woke_ms"].items()]
        rows.append([
            name, "yes" if run["sorted"] else "NO", f"{run['before_s']:.2f}", f"{run['pause_s']:.1f}",
            f"{run['after_s']:.2f}", f"{awake:.2f}", f"{max(late):.0f}" if late else "–",
        ])
    head = ["", "all in order", "s up to the checkpoint or the end", "s as an image", "s after", "s awake", "latest, ms"]
    return [f"{part['numbers']} numbers up to {part['largest']}, {part['unit_s']:g} s each 1.", "", *_table(head, rows)]


def _periodic(part):
    rows = []
    for one in part["sizes"]:
        found = one["checkpoints"]
        if not found:
            continue
        pauses = _spread([each["pause_us"] / 1000 for each in found])
        later = [each["written_bytes"] / 2**20 for each in found[1:]]
        kept = f"{_spread(later)['median']:.1f}" if later else "–"
        took = _spread([each["took_us"] / 1000 for each in found])["median"] if "took_us" in found[0] else None
        device = one.get("device_bytes")
        memory = _spread([each["memory_bytes"] / 2**20 for each in found])["median"]
        rows.append([
            f"{one['mib']} MiB", str(len(found)), f"{pauses['median']:.0f}", f"{pauses['max']:.0f}",
            "–" if took is None else f"{took:.0f}",
            f"{memory:.1f}", f"{found[0]['written_bytes'] / 2**20:.1f}", kept,
            "–" if device is None else f"{device / 2**20:.0f}", *_clients(one["outcome"]),
        ])
    head = [
        "", "checkpoints", "pause ms, median", "max", "stored after ms, median", "memory MiB", "kept of the first, MiB",
        "of each other, median", "given to the disk in all",
        *CLIENTS,
    ]
    first = part["sizes"][0]
    said = f"Every {first['interval_s']} s, {first['clients']} clients, {first['rate']} messages a second."
    return [said, "", *_table(head, rows)]


def _kills(part):
    back = [one["back_s"] for one in part["kills"]]
    answers = [one["answers_after_s"] for one in part["kills"]]
    rows = []
    for name, samples in (("behind the kill, s", back), ("until it answers, s", answers)):
        spread = _spread(samples)
        rows.append([name, *(f"{spread[key]:.3f}" for key in ("min", "median", "p90", "max"))])
    over = sum(value > part["interval_s"] for value in back)
    said = (
        f"{len(back)} kills of a server of {part['mib']} MiB that is checkpointed every {part['interval_s']} s; "
        f"{over} of them took it back by more than that."
    )
    return [said, "", *_table(["", "min", "median", "p90", "max"], rows)]


def _events(part):
    rows = [
        [name, f"{one['median_ns']:.1f}", " to ".join(f"{end:.1f}" for end in one["between_ns"])]
        for name, one in sorted(part["events"].items(), key=lambda case: case[1]["median_ns"])
    ]
    return _table(["", "ns, median", "95 % of it"], rows)


SHOWN = {"load": _load, "sleepsort": _sleepsort, "periodic": _periodic, "kills": _kills, "events": _events}
