//! How figures are written.

/// Nanoseconds, to three digits.
pub(crate) fn time(nanoseconds: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    // A figure that would be rounded up to 1000 gets the next larger unit.
    let unit = units
        .into_iter()
        .find(|(size, _)| nanoseconds >= size * 0.9995);
    let (size, name) = unit.unwrap_or((1.0, "ns"));
    format!("{} {name}", three_digits(nanoseconds / size))
}

/// Three digits, or as many as there are before the point.
pub(crate) fn three_digits(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// A share, in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_to_three_digits() {
        let written = [95.4, 999.6, 1234.0, 12_340_000.0, 2e9].map(time);
        assert_eq!(
            written,
            ["95.4 ns", "1.00 µs", "1.23 µs", "12.3 ms", "2.00 s"]
        );
    }
}
