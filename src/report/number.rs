//! Numbers as a reader meets them. It must not know what is counted.
//!
//! Two or three digits that count, with their unit; a value that is no number is a dash.

/// What stands for a value that is not there.
pub(super) const NOTHING: &str = "–";

/// A time in milliseconds: `48 µs`, `0.31 ms`, `4.8 ms`, `882 ms`, `12.3 s`.
pub(super) fn ms(value: f64) -> String {
    match value {
        _ if !value.is_finite() => NOTHING.to_owned(),
        0.0 => "0 ms".to_owned(),
        ..0.0 => format!("−{}", ms(-value)),
        ..0.01 => format!("{:.1} µs", value * 1e3),
        ..0.0995 => format!("{:.0} µs", value * 1e3),
        ..0.995 => format!("{value:.2} ms"),
        ..99.95 => format!("{value:.1} ms"),
        ..9_999.5 => format!("{value:.0} ms"),
        ..1e9 => format!("{:.1} s", value / 1e3),
        _ => format!("{:.1e} s", value / 1e3),
    }
}

/// The same where there may be none.
pub(super) fn ms_or_nothing(value: Option<f64>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), ms)
}

/// A size in bytes: `512 B`, `1.5 KiB`, `256 MiB`.
pub(super) fn bytes(value: u64) -> String {
    size(as_f64(value))
}

/// [`bytes`] of a value on an axis.
pub(super) fn size(value: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    if !value.is_finite() {
        return NOTHING.to_owned();
    }
    let mut scaled = value;
    let mut units = UNITS.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    // 1000 MiB stays so: 0.98 GiB says less.
    while scaled >= 10_000.0 || (scaled >= 1024.0 && unit != "MiB") {
        let Some(next) = units.next() else { break };
        scaled /= 1024.0;
        unit = next;
    }
    if scaled >= 99.95 || (scaled - scaled.round()).abs() < 0.05 {
        format!("{scaled:.0} {unit}")
    } else {
        format!("{scaled:.1} {unit}")
    }
}

/// How many times: `184`, `3.4`.
pub(super) fn times(value: f64) -> String {
    match value {
        _ if !value.is_finite() => NOTHING.to_owned(),
        ..9.95 => format!("{value:.1}"),
        ..1e6 => format!("{value:.0}"),
        _ => format!("{value:.0e}"),
    }
}

/// A share of the whole, 0 to 1: `4 %`, `0.3 %`.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        _ if !percent.is_finite() => NOTHING.to_owned(),
        0.0 => "0 %".to_owned(),
        ..0.05 => "less than 0.1 %".to_owned(),
        ..9.95 => format!("{percent:.1} %"),
        _ => format!("{percent:.0} %"),
    }
}

/// A count as it is.
pub(super) fn count(value: f64) -> String {
    format!("{value:.0}")
}

/// `1 start`, `7 starts`.
pub(super) fn of(number: usize, one: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {one}{s}")
}

#[allow(clippy::cast_precision_loss, reason = "two or three digits of it are shown")]
pub(super) fn as_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_the_digits_that_count() {
        let said = [0.0004, 0.048, 0.312, 4.83, 9.96, 99.96, 882.4, 12_345.0].map(ms);
        assert_eq!(said, ["0.4 µs", "48 µs", "0.31 ms", "4.8 ms", "10.0 ms", "100 ms", "882 ms", "12.3 s"]);
        assert_eq!(ms(f64::NAN), NOTHING);
        assert_eq!(ms(f64::INFINITY), NOTHING);
        assert_eq!(ms(-4.0), "−4.0 ms");
    }

    #[test]
    fn sizes_shares_and_ratios() {
        let said = [512, 1536, 256 << 20, 1 << 30, 64 << 30].map(bytes);
        assert_eq!(said, ["512 B", "1.5 KiB", "256 MiB", "1024 MiB", "64 GiB"]);
        assert_eq!([0.003, 0.04, 0.5].map(percent), ["0.3 %", "4.0 %", "50 %"]);
        assert_eq!([3.38, 183.75].map(times), ["3.4", "184"]);
    }
}
