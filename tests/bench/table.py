"""A run as tables in Markdown, for the terminal and for the README.

Everything is computed from the samples in the run's file; nothing else is read.
"""

import figures

WAYS = {
    "floor": "the least that is possible: a program without libraries that answers once",
    "empty": "cold start with nothing to warm",
    "cold": "cold start",
    "criu readyz": "`criu restore -d`",
    "defrost-criu readyz": "`defrost restore --engine criu`",
    "map readyz": "`defrost restore`",
    "wait-ready": "`defrost restore --wait-ready`",
    "fault readyz": "`defrost restore --memory fault`",
    "copy readyz": "`defrost restore --memory copy`",
    "criu echo": "`criu restore -d`, to the echo",
    "defrost-criu echo": "`defrost restore --engine criu`, to the echo",
    "map echo": "`defrost restore`, to the echo",
}
"""Names of the ways of starting, in the order of the table. Without a word on it, to a 200 of /readyz."""

TOUCHES = {
    "cold touch": "the original",
    "criu touch": "restored by CRIU",
    "map touch": "restored by mapping",
    "map recorded": "by mapping with a recorded working set",
    "fault touch": "restored by faulting",
    "fault recorded": "by faulting with a recorded working set",
}
"""Names of what answers the request that touches pages."""

README = ("floor", "empty", "cold", "criu readyz", "map readyz", "fault readyz", "copy readyz")
"""The ways that the README shows."""


def readme(run, name):
    """The README's table: medians, to the first 200 of /readyz; memory, and clones."""
    sizes = run["startup"]
    head = [f"{one['mib']} MiB" for one in sizes]
    lines = ["| to the first answer, ms | " + " | ".join(head) + " |", "|---|" + "--:|" * len(head)]
    for way in README:
        cells = [f"{median(one, way):.1f}" for one in sizes]
        lines.append(f"| {WAYS[way]} | " + " | ".join(cells) + " |")
    large = sizes[-1]
    faster = [f"{median(one, 'criu readyz') / median(one, 'map readyz'):.0f} times at {one['mib']} MiB" for one in sizes]
    rounds = ", ".join(f"{one['rounds']} at {one['mib']} MiB" for one in sizes)
    host = run["host"]
    lines += [
        "",
        f"`defrost restore` is faster than `criu restore`: {', '.join(faster)}. {_clones(run['clones'])}",
        "",
        *_touching(large),
        "",
        f"Medians of rounds in turns ({rounds}), by `scripts/bench` on {host['date'][:10]} at commit {host['commit']}: "
        f"{host['cores']} cores of {host['cpu']}, Linux {host['kernel']}, CRIU {host['criu']} with its kerndat cache on a "
        f"tmpfs; images in the page cache. The cold start fills as much memory and does nothing else. All samples: "
        f"[`tests/bench/runs/{name}`](tests/bench/runs/{name}).",
    ]
    return "\n".join(lines) + "\n"


def _touching(startup):
    """The request that touches pages, and memory, as a table."""
    lines = [
        f"| {startup['mib']} MiB | a first request that reads {startup['touched']:,} random pages, ms | with the restore, ms "
        "| resident at the first answer, MiB |",
        "|---|--:|--:|--:|",
    ]
    for way, name in TOUCHES.items():
        if way == "cold touch":
            lines.append(f"| {name} | {median(startup, way):.1f} | | |")
            continue
        plain = way.replace("touch", "readyz").replace("recorded", "readyz")
        resident = figures.spread(memory(startup, plain, "rss"))["median"] / 1024
        shown = f"{resident:.1f}" if way.endswith("touch") else ""
        lines.append(f"| {name} | {median(startup, way):.1f} | {_since_start(startup, way):.1f} | {shown} |")
    return lines


def median(startup, way):
    """The median of one way in the rounds that are kept, in milliseconds."""
    return figures.spread(kept(startup, way))["median"]


def _touches(startup):
    """The request that touches pages at random, once ready."""
    said = ", ".join(f"{median(startup, way):.1f} ms {name}" for way, name in TOUCHES.items())
    whole = {way: _since_start(startup, way) for way in TOUCHES if way != "cold touch"}
    from_start = ", ".join(f"{whole[way]:.1f} ms {TOUCHES[way]}" for way in whole)
    return (
        f"A first request that reads {startup['touched']:,} random pages of {startup['mib']} MiB takes {said}; with the "
        f"restore before it, {from_start}."
    )


def _since_start(startup, way):
    """The median from the start of the restore to the end of that request, in milliseconds."""
    samples = [run["samples"][way]["since_start_ms"] for run in startup["runs"] if run["kept"]]
    return figures.spread(samples)["median"]


def _resident(startup):
    """What the process holds in memory by its first answer."""
    said = ", ".join(
        f"{figures.spread(memory(startup, way, 'rss'))['median'] / 1024:.1f} MiB {name}"
        for way, name in (("criu readyz", "by CRIU"), ("map readyz", "by mapping"), ("fault readyz", "by faulting"))
    )
    return f"Resident at the first answer, of {startup['mib']} MiB: {said}."


def _clones(clones):
    ready = {
        engine: figures.spread([run[engine]["ready_ms"] for run in clones["runs"]])["median"] for engine in ("criu", "instant")
    }
    shared = [sum(run["instant"]["pss_kib"]) / 1024 for run in clones["runs"]]
    return (
        f"{clones['clones']} clones of {clones['mib']} MiB are all ready after {ready['instant']:.0f} ms, by the CRIU engine "
        f"after {ready['criu']:.0f} ms; their proportional set sizes add up to {figures.spread(shared)['median']:.0f} MiB."
    )


def render(run):
    """All tables of a run."""
    parts = [_host(run["host"])]
    parts += [_startup(one) for one in run["startup"]]
    if run.get("clones"):
        parts.append("**Clones.** " + _clones(run["clones"]))
    if run.get("afterwards"):
        parts.append(_afterwards(run["afterwards"]))
    if run.get("checkpoint"):
        parts.append(_checkpoint(run["checkpoint"]))
    if run.get("idle"):
        parts.append(_idle(run["idle"]))
    if run.get("adapters"):
        parts.append(_adapters(run["adapters"]))
    return "\n\n".join(parts) + "\n"


def _host(host):
    dirty = ", with changes" if host["dirty"] else ""
    load = " ".join(f"{one:.1f}" for one in host["load"]) + f" to {host['load_after'][0]:.1f}"
    return (
        f"{host['date']}, {host['defrost']} at {host['commit']}{dirty}, CRIU {host['criu']}, Linux {host['kernel']}, "
        f"{host['cores']} cores of {host['cpu']}, load {load}; kerndat cache: {host['kerndat_cache']}; "
        f"page cache: {host['page_cache']}; {host['rustc']}."
    )


def kept(startup, way):
    """The answers of one way in the rounds that are kept, in milliseconds."""
    return [run["samples"][way]["answer_ms"] for run in startup["runs"] if run["kept"]]


def memory(startup, way, kind):
    """What one way left in memory by its first answer, in KiB."""
    return [run["samples"][way]["memory_kib"][kind] for run in startup["runs"] if run["kept"]]


def _startup(startup):
    rounds = [run for run in startup["runs"] if run["kept"]]
    loudest = max(run["others"] for run in rounds)
    lines = [
        f"**{startup['mib']} MiB warmed** (image {startup['image_bytes'] / 2**20:.1f} MiB, {len(rounds)} rounds of "
        f"{len(startup['runs'])}, others took at most {loudest:.0%} of the CPU)",
        "",
        "| to the first correct answer | min ms | median ms | p90 ms | of cold | of CRIU |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    cold = median(startup, "cold")
    for way, name in WAYS.items():
        row = figures.spread(kept(startup, way))
        criu = median(startup, "criu echo" if way.endswith("echo") else "criu readyz")
        of_criu = "" if way in ("floor", "empty", "cold") else f"{row['median'] / criu:.3f}"
        lines.append(
            f"| {name} | {row['min']:.1f} | {row['median']:.1f} | {row['p90']:.1f} | {row['median'] / cold:.1%} | {of_criu} |"
        )
    lines += [
        "",
        f"Break-even: a server of this size that warms up in less than {median(startup, 'map readyz'):.0f} ms gains nothing; "
        f"with `criu restore`, in less than {median(startup, 'criu readyz'):.0f} ms.",
    ]
    for question in ("readyz", "echo"):
        own = figures.paired(kept(startup, f"defrost-criu {question}"), kept(startup, f"criu {question}"))
        lines.append(
            f"defrost's own cost over CRIU, to {question}: {own['median']:+.1f} ms "
            f"(quartiles {own['q1']:+.1f} to {own['q3']:+.1f}, paired)."
        )
    lines.append(f"`--wait-ready` took: {rounds[0]['samples']['wait-ready']['by']}.")
    if "map touch" in rounds[0]["samples"]:
        lines += [_touches(startup), _resident(startup)]
    lines.append(_method(rounds))
    return "\n".join(lines)


def _method(rounds):
    """What the probe saw beside the times: how far to trust them."""
    answers = [answer for run in rounds for answer in run["samples"].values() if "attempts" in answer]
    gaps = figures.spread([answer["worst_gap_ms"] for answer in answers])
    delays = figures.spread([answer["answer_ms"] - answer["connect_ms"] for answer in answers])
    return (
        f"Attempts: {sum(answer['attempts'] for answer in answers)}, lost SYNs: "
        f"{sum(answer['lost_syns'] for answer in answers)}; worst gap between two ticks: median {gaps['median']:.2f} ms, "
        f"p90 {gaps['p90']:.2f} ms; from connected to answered: median {delays['median']:.2f} ms."
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
    for way in runs[0]:
        cells = []
        for figure in ("round_trips_per_s", "checksum_ms"):
            ratios = [run[way][figure] / run["original"][figure] for run in runs]
            low, high = figures.quantile(ratios, 0.25), figures.quantile(ratios, 0.75)
            cells.append(f"{figures.spread(ratios)['median']:.3f} | {low:.3f} to {high:.3f}")
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
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
