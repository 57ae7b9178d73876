"""A run as tables in Markdown, for the terminal and for the README.

Everything is computed from the samples in the run's file; nothing else is read.
"""

import figures

WAYS = {
    "cold": "cold start",
    "criu readyz": "`criu restore`",
    "defrost readyz": "`defrost restore`",
    "wait-ready": "`defrost restore --wait-ready`",
    "instant readyz": "`defrost restore --engine instant`",
    "criu echo": "`criu restore`, to the echo",
    "defrost echo": "`defrost restore`, to the echo",
    "instant echo": "`defrost restore --engine instant`, to the echo",
}
"""Names of the ways of starting, in the order of the table. Without a word on it, to a 200 of /readyz."""


README = ("cold", "criu readyz", "defrost readyz", "instant readyz")
"""The ways that the README shows."""


def readme(run, name):
    """The README's table: medians, to the first 200 of /readyz."""
    head = [f"{one['mib']} MiB" for one in run["startup"]]
    lines = ["| to the first answer that it is ready, ms | " + " | ".join(head) + " |", "|---|" + "--:|" * len(head)]
    for way in README:
        medians = [figures.spread(kept(one, way))["median"] for one in run["startup"]]
        lines.append(f"| {WAYS[way]} | " + " | ".join(f"{median:.1f}" for median in medians) + " |")
    rounds = " and ".join(f"{one['rounds']} rounds at {one['mib']} MiB" for one in run["startup"])
    own = [
        figures.paired(kept(one, f"defrost {question}"), kept(one, f"criu {question}"))["median"]
        for one in run["startup"]
        for question in ("readyz", "echo")
    ]
    host = run["host"]
    lines += [
        "",
        f"Medians of {rounds}, in turns, by `scripts/bench` on {host['date'][:10]} at commit {host['commit']}: "
        f"{host['cores']} cores of {host['cpu']}, Linux {host['kernel']}, CRIU {host['criu']}; kerndat cache "
        f"{host['kerndat_cache']}; images in the page cache. The cold start fills as much memory and does nothing else. "
        f"What defrost adds to `criu restore` itself is between {min(own):+.1f} and {max(own):+.1f} ms (medians of paired "
        f"rounds). All samples: [`tests/bench/runs/{name}`](tests/bench/runs/{name}).",
    ]
    return "\n".join(lines) + "\n"


def render(run):
    """All tables of a run."""
    parts = [_host(run["host"])]
    parts += [_startup(one) for one in run["startup"]]
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
    cold = figures.spread(kept(startup, "cold"))["median"]
    for way, name in WAYS.items():
        if way not in rounds[0]["samples"]:
            continue  # an earlier run, from before there was that way
        row = figures.spread(kept(startup, way))
        criu = figures.spread(kept(startup, "criu echo" if way.endswith("echo") else "criu readyz"))["median"]
        of_criu = "" if way == "cold" else f"{row['median'] / criu:.2f}"
        lines.append(
            f"| {name} | {row['min']:.1f} | {row['median']:.1f} | {row['p90']:.1f} | {row['median'] / cold:.1%} | {of_criu} |"
        )
    lines += [
        "",
        f"Break-even: a server of this size that warms up in less than "
        f"{figures.spread(kept(startup, 'defrost readyz'))['median']:.0f} ms gains nothing.",
    ]
    for question in ("readyz", "echo"):
        own = figures.paired(kept(startup, f"defrost {question}"), kept(startup, f"criu {question}"))
        lines.append(
            f"defrost's own cost over CRIU, to {question}: {own['median']:+.1f} ms "
            f"(quartiles {own['q1']:+.1f} to {own['q3']:+.1f}, paired)."
        )
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
