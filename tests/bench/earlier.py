"""The README's table of a run from before the records of src/bench/record.rs: goes when the README shows a later one."""

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
        f"[`tests/bench/runs/earlier/{name}`](tests/bench/runs/earlier/{name}).",
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


def _since_start(startup, way):
    """The median from the start of the restore to the end of that request, in milliseconds."""
    samples = [run["samples"][way]["since_start_ms"] for run in startup["runs"] if run["kept"]]
    return figures.spread(samples)["median"]


def _clones(clones):
    ready = {
        engine: figures.spread([run[engine]["ready_ms"] for run in clones["runs"]])["median"] for engine in ("criu", "instant")
    }
    shared = [sum(run["instant"]["pss_kib"]) / 1024 for run in clones["runs"]]
    return (
        f"{clones['clones']} clones of {clones['mib']} MiB are all ready after {ready['instant']:.0f} ms, by the CRIU engine "
        f"after {ready['criu']:.0f} ms; their proportional set sizes add up to {figures.spread(shared)['median']:.0f} MiB."
    )


def kept(startup, way):
    """The answers of one way in the rounds that are kept, in milliseconds."""
    return [run["samples"][way]["answer_ms"] for run in startup["runs"] if run["kept"]]


def memory(startup, way, kind):
    """What one way left in memory by its first answer, in KiB."""
    return [run["samples"][way]["memory_kib"][kind] for run in startup["runs"] if run["kept"]]
