"""A record as tables in Markdown, for the terminal and for the README.

Everything is computed from the samples in the record; nothing else is read.
"""

import figures

MIB = 1 << 20
WAYS = {
    "floor": "the least that is possible: a program without libraries that answers once",
    "empty": "cold start with nothing to warm",
    "cold": "cold start",
    "fork": "fork from a warm parent",
    "criu": "`criu restore -d`",
    "defrost criu": "`defrost restore --engine criu`",
    "defrost map": "`defrost restore`",
    "defrost fault": "`defrost restore --memory fault`",
    "defrost copy": "`defrost restore --memory copy`",
}
"""Names of the ways of starting, in the order of the table."""

TOUCHES = {
    "cold": "the original",
    "fork": "forked from a warm parent",
    "criu": "restored by CRIU",
    "defrost map": "restored by mapping",
    "defrost map, recorded": "by mapping with a recorded working set",
    "defrost fault": "restored by faulting",
    "defrost fault, recorded": "by faulting with a recorded working set",
}
"""Names of what answers the request that touches pages."""

ENGINES = {"criu": "CRIU", "defrost map": "mapping", "defrost fault": "faulting", "defrost copy": "copying"}
"""The ways that the break-even is told for."""


def least_starts(service):
    """How many answered starts stand behind each figure of a service, at the least; ways that never answer apart."""
    counts = [sum(start["answer"] is not None for start in way["starts"]) for way in service["ways"]]
    return min((count for count in counts if count), default=0)


def readme(record, name):
    """The README's tables, and the sentences that explain them."""
    host = record["host"]
    rounds = ", ".join(f"{least_starts(one)} for {one['name']}" for one in record["services"])
    parts = [_sizes(record), _faster(record), _touching(record), _others(record), _forks(record), _break_even(record)]
    parts.append(
        f"Medians of rounds in turns ({rounds}), by `scripts/bench` on {host['date'][:10]} at commit {host['commit']}: "
        f"{host['cores']} cores of {host['cpu']}, Linux {host['kernel']}, CRIU {host['criu']} with its kerndat cache "
        f"{_cache(record)}; images in the page cache. The echo server's cold start fills as much memory and does nothing "
        f"else. All samples: [`tests/bench/runs/{name}`](tests/bench/runs/{name})."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _cache(record):
    found = [way["kerndat"] for one in record["services"] for way in one["ways"] if way["name"] == "criu"]
    return "in place" if all(found) else "missing"


def way(service, name):
    """One way of a service, if it was measured."""
    return next((one for one in service["ways"] if one["name"] == name), None)


def median(service, name):
    """The median time to the whole answer in milliseconds; none if it never came."""
    found = way(service, name)
    times = [start["answer"]["whole"] for start in found["starts"] if start["answer"]] if found else []
    return figures.spread(times)["median"] if times else None


def echoes(record):
    """The echo server's services, each with its size in MiB, in rising order."""
    found = [(int(one["name"].split()[1]), one) for one in record["services"] if one["name"].startswith("echo, ")]
    return sorted(found, key=lambda pair: pair[0])


def _cell(value, digits=1):
    return "–" if value is None else f"{value:.{digits}f}"


def _sizes(record):
    sizes = echoes(record)
    if not sizes:
        return ""
    lines = [
        "| echo server, to the first answer, ms | " + " | ".join(f"{mib} MiB" for mib, _ in sizes) + " |",
        "|---|" + "--:|" * len(sizes),
    ]
    for name, text in WAYS.items():
        lines.append(f"| {text} | " + " | ".join(_cell(median(one, name)) for _, one in sizes) + " |")
    return "\n".join(lines)


def _ratio(service, one, other):
    upper, lower = median(service, one), median(service, other)
    return upper / lower if upper and lower else None


def _faster(record):
    ratios = [(mib, _ratio(one, "criu", "defrost map")) for mib, one in echoes(record)]
    said = ", ".join(f"{ratio:.0f} times at {mib} MiB" for mib, ratio in ratios if ratio)
    sentence = f"`defrost restore` is faster than `criu restore`: {said}." if said else ""
    return " ".join(part for part in (sentence, _clones(record)) if part)


def _clones(record):
    said = []
    for mib, one in echoes(record):
        instant, criu = median(one, "defrost map, 10 clones"), median(one, "defrost criu, 10 clones")
        memory = _started(one, "defrost map, 10 clones")
        if instant and criu and memory:
            said.append(
                f"10 clones of {mib} MiB are all ready after {instant:.0f} ms, by the CRIU engine after {criu:.0f} ms; their "
                f"proportional set sizes add up to {memory['pss'] / MIB:.0f} MiB."
            )
            break
    return " ".join(said + [_clones_of(one) for one in record["services"] if not one["name"].startswith("echo, ")]).strip()


def _clones_of(service):
    """Clones of a service by mapping and by faulting, with their memory; nothing where there were none."""
    said = []
    for found in service["ways"]:
        time, memory = median(service, found["name"]), _started(service, found["name"])
        engine = ENGINES.get(found["name"].split(",")[0])
        if found["clones"] > 1 and engine and time is not None and memory:
            sizes = f"{memory['pss'] / MIB:.0f} MiB of memory then ({memory['rss'] / MIB:.0f} MiB resident)"
            said.append(f"after {time:.0f} ms by {engine}, with {sizes}")
            count = found["clones"]
    return f"{count} clones of the service \"{service['name']}\" are all ready {', and '.join(said)}." if said else ""


def _started(service, name):
    """The memory of a way right after its first answer, if that was looked at."""
    found = way(service, name)
    return next((one for one in found["memory"] if one["at"] == "started"), None) if found else None


def _forks(record):
    """What a fork from a warm parent takes beside a restore, and what it needs."""
    said = []
    for one in record["services"]:
        fork, mapped, memory = median(one, "fork"), median(one, "defrost map"), _started(one, "fork")
        if fork is None:
            continue
        beside = f"; {mapped:.1f} ms by `defrost restore`" if mapped is not None else ""
        resident = f" ({memory['rss'] / MIB:.0f} MiB resident)" if memory else ""
        said.append(f"{one['name']}{resident}: {fork:.1f} ms{beside}")
    if not said:
        return ""
    return (
        f"Fork from a warm parent, the other way to start warm: {'. '.join(said)}. It needs that parent alive on the same "
        "host, with its memory and without other threads. An image needs none of it, and outlives a reboot."
    )


def first_request(one):
    """The median latency of the first request after a start; none without such."""
    firsts = [requests[0] for requests in one["requests"] if requests]
    return figures.spread(firsts)["median"] if firsts else None


def _touching(record):
    """The request that touches pages, and memory."""
    sizes = [(mib, one) for mib, one in echoes(record) if way(one, "defrost map, recorded")]
    if not sizes:
        return ""
    mib, service = sizes[-1]
    lines = [
        f"| {mib} MiB | a first request that reads 5,000 random pages, ms | with the start, ms | resident at the first "
        "answer, MiB |",
        "|---|--:|--:|--:|",
    ]
    for name, text in TOUCHES.items():
        one = way(service, name)
        first = first_request(one) if one else None
        if first is None:
            continue
        start = median(service, name)
        memory = _started(service, name)
        resident = memory["rss"] / MIB if memory else None
        together = start + first if start is not None else None
        lines.append(f"| {text} | {first:.1f} | {_cell(together)} | {_cell(resident)} |")
    return "\n".join(lines)


def _others(record):
    """The services beside the echo server, a line each."""
    services = [one for one in record["services"] if not one["name"].startswith("echo, ")]
    if not services:
        return ""
    lines = ["| to the first answer, ms | image, MiB | cold | `criu restore -d` | `defrost restore` | other |", "|---|--:|--:|--:|--:|---|"]
    refused = []
    for one in services:
        cells = [_cell(median(one, name), 0) for name in ("cold", "criu", "defrost map")]
        size = one["image"]["bytes"] / MIB if one["image"] else None
        lines.append(f"| {one['name']} | {_cell(size, 0)} | " + " | ".join(cells) + f" | {_other(one)} |")
        found = way(one, "defrost map")
        why = next((start["failure"] for start in found["starts"] if start["failure"]), None) if found else None
        if why and median(one, "defrost map") is None:
            refused.append(f"`defrost restore` refuses the image of {one['name']}: {_reason(why)}.")
    return "\n".join(lines) + ("\n\n" + " ".join(refused) if refused else "")


def _reason(why):
    """What the command itself said, without the path of an image that is gone."""
    said = why.split("defrost: ", 1)[-1].split("; hint:")[0].rstrip(".")
    return "it " + said.split("/image ", 1)[1] if "/image " in said else said


def _other(service):
    said = []
    lazy, fork = way(service, "cold-lazy"), median(service, "fork")
    if lazy and median(service, "cold-lazy") is not None:
        first = first_request(lazy)
        then = f", then {first:.0f} ms for its first request" if first else ""
        said.append(f"warming up when asked: {median(service, 'cold-lazy'):.0f}{then}")
    mapped = way(service, "defrost map")
    if ", cache " in service["name"] and mapped and first_request(mapped):
        said.append(f"when mapped, then {first_request(mapped):.1f} ms for a result that was in the cache")
    if fork is not None:
        said.append(f"fork from a warm parent: {fork:.0f}")
    return "; ".join(said)


def fits(record):
    """For each engine: the time of a restore at no size, and per MiB of image, by least squares over the echo images."""
    found = {}
    for name in ENGINES:
        points = [(one["image"]["bytes"] / MIB, median(one, name)) for _, one in echoes(record) if one["image"]]
        points = [(size, time) for size, time in points if time is not None]
        if len(points) >= 2:
            found[name] = figures.line(points)
    return found


def _break_even(record):
    """From which size and warm-up on a restore is worth it."""
    lines, empties = fits(record), [median(one, "empty") for _, one in echoes(record)]
    empties = [time for time in empties if time is not None]
    if not lines or not empties:
        return ""
    empty = figures.spread(empties)["median"]
    said = []
    for name, (base, slope) in lines.items():
        at = lambda mib: max(0.0, base + slope * mib - empty)  # noqa: E731, B023
        said.append(f"by {ENGINES[name]} {at(1):.0f}, {at(256):.0f} and {at(1024):.0f} ms ({slope:.2f} ms more per MiB)")
    return (
        "A restore is worth it where the warm-up takes longer than the restore does beyond an empty cold start "
        f"({empty:.1f} ms). With images of 1, 256 and 1024 MiB that is {'; '.join(said)}." + _worth(record, lines, empty)
    )


def _worth(record, lines, empty):
    """From which size on the echo server's own warm-up, which is filling memory, is slower than a restore."""
    colds = [(one["image"]["bytes"] / MIB, median(one, "cold")) for _, one in echoes(record) if one["image"]]
    colds = [(size, time) for size, time in colds if time is not None]
    if len(colds) < 2:
        return ""
    start, fill = figures.line(colds)
    said = []
    for name, (base, slope) in lines.items():
        if slope >= fill:
            said.append(f"never by {ENGINES[name]}")
        else:
            said.append(f"from {max(0.0, (base - start) / (fill - slope)):.0f} MiB on by {ENGINES[name]}")
    return f" For the echo server, whose warm-up only fills memory ({fill:.2f} ms per MiB), it is: {', '.join(said)}."


def render(record):
    """All tables of a record: the README's, and what was measured beside the starts."""
    parts = []
    if record["host"]:  # none where no service was measured
        parts = [_host(record["host"]), *(_service(one) for one in record["services"]), readme(record, "…").rstrip()]
    beside = record.get("beside", {})
    for name, show in (("afterwards", _afterwards), ("checkpoint", _checkpoint), ("idle", _idle), ("adapters", _adapters)):
        if beside.get(name):
            parts.append(show(beside[name]))
    return "\n\n".join(parts) + "\n"


def _host(host):
    dirty = ", with changes" if host["dirty"] else ""
    notes = "".join(f"; {name}: {value}" for name, value in sorted(host["notes"].items()))
    return (
        f"{host['date']}, defrost {host['defrost']} at {host['commit']}{dirty}, CRIU {host['criu']}, Linux {host['kernel']}, "
        f"{host['cores']} cores of {host['cpu']}, load {' '.join(f'{one:.1f}' for one in host['load'])}{notes}."
    )


def _service(service):
    """What `defrost bench startup` printed is above; here is how far to trust it."""
    starts = [start for one in service["ways"] for start in one["starts"]]
    others = [start["others"] for start in starts]
    failed = sum(1 for start in starts if start["failure"])
    return (
        f"**{service['name']}**: {service['rounds']} rounds, {service['repeated']} run again, {failed} of {len(starts)} starts "
        f"failed, {sum(start['lost_syns'] for start in starts)} lost SYNs; others took "
        f"{figures.spread(others)['median']:.0%} of the CPU (median of the starts)."
    )


def _afterwards(afterwards):
    """Each way beside the original of the same round."""
    runs = afterwards["runs"]
    lines = [
        f"**Requests to a restored server** of {afterwards['mib']} MiB, beside the original's of the same round, n = {len(runs)}",
        "",
        "| | round trips a second | quartiles | time of a checksum | quartiles |",
        "|---|--:|--:|--:|--:|",
    ]
    for name in runs[0]:
        cells = []
        for figure in ("round_trips_per_s", "checksum_ms"):
            ratios = [run[name][figure] / run["original"][figure] for run in runs]
            low, high = figures.quantile(ratios, 0.25), figures.quantile(ratios, 0.75)
            cells.append(f"{figures.spread(ratios)['median']:.3f} | {low:.3f} to {high:.3f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _checkpoint(checkpoint):
    runs = checkpoint["runs"]
    lines = [
        f"**A checkpoint** of {checkpoint['resources']} resources and {checkpoint['connections']} idle connections, "
        f"left running, n = {len(runs)}",
        "",
        "| from the command | min ms | median ms | p90 ms |",
        "|---|--:|--:|--:|",
    ]
    for key, name in (("quiesce_ms", "to quiesced"), ("frozen_at_ms", "to frozen"), ("whole_ms", "to the answer")):
        samples = [run[key] for run in runs if run[key] is not None]
        if samples:
            row = figures.spread(samples)
            lines.append(f"| {name} | {row['min']:.1f} | {row['median']:.1f} | {row['p90']:.1f} |")
    return "\n".join(lines)


def _idle(idle):
    return (
        f"**A waiting server** used {idle['cpu_ticks']} ticks of CPU in {idle['seconds']:.0f} s, "
        f"with {idle['switches_per_second']:.1f} context switches per second."
    )


def _adapters(adapters):
    lines = ["| adapters beside tokio's own | ratio | quartiles |", "|---|--:|--:|"]
    for one in adapters:
        lines.append(f"| {one['name']} | {one['ratio']:.3f} | {one['q1']:.3f} to {one['q3']:.3f} |")
    return "\n".join(lines)
