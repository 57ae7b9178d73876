//! A service beside its figures in an earlier record.
//!
//! It must not know how either came about.

use std::fmt::Write;

use super::record::{Record, Service, quantile};

/// A line for each way that both have, by the names of the service and the way. The ratio counts as a change only
/// where the middle halves of the samples do not overlap.
#[must_use]
pub fn render(old: &Record, new: &Service) -> String {
    let mut text = String::new();
    let Some(before) = old.services.iter().find(|service| service.name == new.name) else {
        let names: Vec<&str> = old.services.iter().map(|service| service.name.as_str()).collect();
        let _ = writeln!(text, "nothing to compare: the earlier record has {names:?}, not '{}'", new.name);
        return text;
    };
    let commit = old.host.commit.as_deref().unwrap_or("an unknown commit");
    let _ = writeln!(text, "beside {} at {commit}:\n\n| way | then ms | now ms | ratio | |", old.host.date);
    let _ = writeln!(text, "|---|--:|--:|--:|---|");
    for way in &new.ways {
        let Some(earlier) = before.ways.iter().find(|earlier| earlier.name == way.name) else { continue };
        let (then, now) = (earlier.answers(), way.answers());
        let (Some(a), Some(b)) = (quantile(&then, 0.5), quantile(&now, 0.5)) else { continue };
        let _ = writeln!(text, "| {} | {a:.1} | {b:.1} | {:.2} | {} |", way.name, b / a, change(&then, &now));
    }
    text
}

fn change(then: &[f64], now: &[f64]) -> &'static str {
    let half = |times: &[f64]| Some((quantile(times, 0.25)?, quantile(times, 0.75)?));
    match (half(then), half(now)) {
        (Some((_, high)), Some((low, _))) if low > high => "slower",
        (Some((low, _)), Some((_, high))) if high < low => "faster",
        _ => "the same, within the spread",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_one_beyond_the_spread() {
        assert_eq!(change(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]), "slower");
        assert_eq!(change(&[5.0, 6.0, 7.0, 8.0], &[1.0, 2.0, 3.0, 4.0]), "faster");
        assert_eq!(change(&[1.0, 2.0, 3.0, 4.0], &[2.0, 3.0, 4.0, 5.0]), "the same, within the spread");
    }
}
