//! Lengths of time as people write them: `1.5`, `500ms`, `10s`, `5m`, `1h`.

use std::time::Duration;

/// A century: a deadline that far away is still a valid time.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Reads a span. A bare number is in seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = match unit {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err("unknown unit: write 500ms, 10s, 5m, 1h or 1d".to_owned()),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "not a number: write 1.5, 500ms, 10s, 5m, 1h or 1d".to_owned())?;
    Duration::try_from_secs_f64(number * factor)
        .ok()
        .filter(|span| *span <= LONGEST)
        .ok_or_else(|| "too long".to_owned())
}

/// A span for people: `950ms`, `22.1s`, `5m07s`, `2h05m`, `3d04h`.
pub(crate) fn show(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{}ms", span.as_millis()),
        1..=59 => format!("{:.1}s", span.as_secs_f64()),
        60..=3599 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..=86_399 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Whole milliseconds, for JSON.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_flock_and_coreutils_read_them() {
        for (text, millis) in [
            ("1.5", 1500),
            ("0", 0),
            ("500ms", 500),
            ("10s", 10_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("0.5d", 43_200_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "s",
            "-1",
            "1w",
            "1.2.3",
            "1e9",
            "inf",
            "1 s",
            "99999999999999999999h",
            "9999999999h",
            "36501d",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spans_are_shown_short() {
        for (millis, shown) in [
            (999, "999ms"),
            (22_100, "22.1s"),
            (307_000, "5m07s"),
            (7_500_000, "2h05m"),
            (273_600_000, "3d04h"),
        ] {
            assert_eq!(show(Duration::from_millis(millis)), shown);
        }
    }
}
