"""Medians, quartiles and ratios of samples. Knows no unit and no server."""

import statistics


def quantile(samples, part):
    """The sample below which `part` of them lie (nearest rank, so always one that was measured)."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def spread(samples):
    """Minimum, median and the 90th percentile."""
    return {"n": len(samples), "min": min(samples), "median": statistics.median(samples), "p90": quantile(samples, 0.9)}


def paired(samples, others):
    """The differences of samples of the same round: median and quartiles."""
    differences = [one - other for one, other in zip(samples, others, strict=True)]
    return {
        "median": statistics.median(differences),
        "q1": quantile(differences, 0.25),
        "q3": quantile(differences, 0.75),
    }
