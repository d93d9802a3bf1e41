//! Medians, percentiles, and how they are written.

/// What a series of times comes to, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) longest: f64,
}

impl Spread {
    /// Of times in any order; nothing of none.
    #[allow(clippy::cast_precision_loss, reason = "times far below 2^52 ns")]
    pub(crate) fn of(mut times: Vec<u64>) -> Option<Spread> {
        times.sort_unstable();
        let at = |percent: usize| times.get((times.len() * percent / 100).min(times.len().saturating_sub(1)));
        Some(Spread { p50: *at(50)? as f64, p99: *at(99)? as f64, longest: *times.last()? as f64 })
    }

    /// Of several rounds: the medians, and the longest of all.
    pub(crate) fn over(rounds: &[Spread]) -> Spread {
        let middle = |part: fn(&Spread) -> f64| median(rounds.iter().map(part));
        let longest = rounds.iter().map(|spread| spread.longest).fold(0.0, f64::max);
        Spread { p50: middle(|spread| spread.p50), p99: middle(|spread| spread.p99), longest }
    }

    pub(crate) fn parts(self) -> [f64; 3] {
        [self.p50, self.p99, self.longest]
    }
}

/// The one in the middle; of an even number, the mean of the two in the middle. 0 of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// Nanoseconds, to three digits.
pub(crate) fn time(nanoseconds: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    // What would be rounded up to a thousand of a unit is one of the next.
    let unit = units.into_iter().find(|(size, _)| nanoseconds >= size * 0.9995);
    let (size, name) = unit.unwrap_or((1.0, "ns"));
    format!("{} {name}", three_digits(nanoseconds / size))
}

/// As [`time`], without the zeros that nobody measured: for an axis.
pub(crate) fn round_time(nanoseconds: f64) -> String {
    if nanoseconds == 0.0 {
        return "0".to_owned();
    }
    let time = time(nanoseconds);
    let (digits, unit) = time.split_once(' ').unwrap_or((&time, ""));
    let digits =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    format!("{digits} {unit}")
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

    fn written(spread: Spread) -> [String; 3] {
        spread.parts().map(three_digits)
    }

    #[test]
    fn a_spread_is_made_of_times_that_were_measured() {
        let spread = Spread::of((1..=200).rev().collect()).unwrap();
        assert_eq!(written(spread), ["101", "199", "200"]);
        assert!(Spread::of(Vec::new()).is_none());
        assert_eq!(written(Spread::of(vec![7]).unwrap()), ["7.00"; 3]);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        let medians = [median([]), median([3.0, 1.0, 2.0]), median([4.0, 1.0])];
        assert_eq!(medians.map(three_digits), ["0", "2.00", "2.50"]);
    }

    #[test]
    fn times_are_written_to_three_digits() {
        let written = [95.4, 999.6, 1234.0, 12_340_000.0, 2e9].map(time);
        assert_eq!(written, ["95.4 ns", "1.00 µs", "1.23 µs", "12.3 ms", "2.00 s"]);
        assert_eq!([10_000.0, 2_500_000.0, 100.0].map(round_time), ["10 µs", "2.5 ms", "100 ns"]);
    }
}
