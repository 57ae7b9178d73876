//! When a restore pays: what it costs at the sizes of image that were measured, against the cold starts.
//!
//! It says what was measured and reads nothing into sizes beyond.

use std::collections::BTreeMap;

use super::findings::Finding;
use super::number::{as_f64, bytes, ms};
use super::way::summary;
use crate::bench::record::{Kind, Record, Way};

/// Restores of one way at one size of image.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    /// Of the image.
    bytes: u64,
    /// Median, in milliseconds.
    restore: f64,
}

/// One way at all sizes, from the smallest.
fn points(record: &Record) -> Vec<(String, Vec<Point>)> {
    let mut ways: BTreeMap<(Kind, String), Vec<Point>> = BTreeMap::new();
    for service in &record.services {
        let Some(image) = &service.image else { continue };
        let restores = |way: &&Way| {
            let usual = way.clones <= 1 && !way.evicted && way.kerndat != Some(false);
            usual && matches!(way.kind, Kind::Criu | Kind::Defrost)
        };
        for way in service.ways.iter().filter(restores) {
            let Some(summary) = summary(way) else { continue };
            let point = Point { bytes: image.bytes, restore: summary.median };
            ways.entry((way.kind, way.name.clone())).or_default().push(point);
        }
    }
    let sorted = |((_, name), mut points): ((Kind, String), Vec<Point>)| {
        points.sort_by(|one, other| one.bytes.cmp(&other.bytes).then(one.restore.total_cmp(&other.restore)));
        (name, points)
    };
    ways.into_iter().map(sorted).collect()
}

/// A sentence for each way that restored images of several sizes, and one for each size that stands alone.
pub(super) fn findings(record: &Record) -> Vec<Finding> {
    let ways = points(record);
    let mut alone: BTreeMap<u64, Vec<(f64, &str)>> = BTreeMap::new();
    for (name, points) in &ways {
        if let (Some(first), Some(last)) = (points.first(), points.last())
            && first.bytes == last.bytes
        {
            alone.entry(last.bytes).or_default().push((last.restore, name));
        }
    }
    let several = ways.iter().filter_map(|(name, points)| sentence(name, points));
    let alone = alone.into_iter().map(|(bytes, ways)| of_one_size(bytes, ways));
    several.chain(alone).map(Finding::good).collect()
}

fn of_one_size(size: u64, mut ways: Vec<(f64, &str)>) -> String {
    ways.sort_by(|one, other| one.0.total_cmp(&other.0));
    let ways: Vec<String> =
        ways.iter().map(|(restore, name)| format!("{} by {name}", ms(*restore))).collect();
    format!(
        "Break-even with an image of {}: {}. A server gains by a restore if its cold start takes longer than that.",
        bytes(size),
        ways.join(", ")
    )
}

/// Nothing of one size alone.
fn sentence(name: &str, points: &[Point]) -> Option<String> {
    let (first, last) = (points.first()?, points.last()?);
    let least = points.iter().map(|point| point.restore).fold(f64::INFINITY, f64::min);
    let most = points.iter().map(|point| point.restore).fold(0.0, f64::max);
    if first.bytes == last.bytes {
        return None;
    }
    let range = format!("{} to {}", bytes(first.bytes), bytes(last.bytes));
    if most <= 2.0 * least {
        return Some(format!(
            "Break-even by {name}: {} to {} for images of {range}, so it pays for a server of any of these sizes \
             whose cold start takes more than {}.",
            ms(least),
            ms(most),
            ms(most)
        ));
    }
    let slope = slope(points).filter(|slope| *slope > 0.0);
    let grows = slope.map(|slope| format!(", {} more for each MiB", ms(slope))).unwrap_or_default();
    Some(format!(
        "Break-even by {name}: {} with an image of {}, {} with {}{grows}: a server of that size gains only if its cold \
         start takes longer.",
        ms(first.restore),
        bytes(first.bytes),
        ms(last.restore),
        bytes(last.bytes),
    ))
}

/// Milliseconds for each MiB more, by least squares.
fn slope(points: &[Point]) -> Option<f64> {
    let size = |point: &Point| as_f64(point.bytes) / 1_048_576.0;
    let number = as_f64(u64::try_from(points.len()).ok()?);
    let middle = points.iter().map(size).sum::<f64>() / number;
    let mean = points.iter().map(|point| point.restore).sum::<f64>() / number;
    let both: f64 = points.iter().map(|point| (size(point) - middle) * (point.restore - mean)).sum();
    let square: f64 = points.iter().map(|point| (size(point) - middle).powi(2)).sum();
    let slope = both / square;
    slope.is_finite().then_some(slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mib: u64, restore: f64) -> Point {
        Point { bytes: mib << 20, restore }
    }

    #[test]
    fn what_grows_with_the_image_is_told_by_its_slope() {
        let said = sentence("criu", &[at(0, 10.0), at(100, 60.0), at(200, 110.0)]).unwrap();
        assert!(
            said.contains("10.0 ms with an image of 0 B, 110 ms with 200 MiB, 0.50 ms more for each MiB"),
            "{said}"
        );
        let said = sentence("map", &[at(1, 3.6), at(1024, 4.8)]).unwrap();
        assert!(said.contains("3.6 ms to 4.8 ms for images of 1 MiB to 1024 MiB"), "{said}");
        assert_eq!(sentence("map", &[at(5, 3.6)]), None);
        let said = of_one_size(5 << 20, vec![(40.0, "copy"), (3.6, "map")]);
        assert!(
            said.starts_with("Break-even with an image of 5 MiB: 3.6 ms by map, 40.0 ms by copy. "),
            "{said}"
        );
        assert_eq!(sentence("map", &[]), None);
    }
}
