"""Quantiles, ratios and fits of samples. Knows no unit and no server."""

import statistics


def quantile(samples, part):
    """The sample below which `part` of them lie (nearest rank, so always one that was measured)."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def spread(samples):
    """Minimum, median and the 90th percentile."""
    return {"n": len(samples), "min": min(samples), "median": statistics.median(samples), "p90": quantile(samples, 0.9)}


def line(points):
    """The least-squares line through points: its value at zero, and its slope."""
    fit = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    return fit.intercept, fit.slope
