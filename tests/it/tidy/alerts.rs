//! The alerts and the dashboard in `docs/monitoring`: the metrics that they name exist.

use std::collections::BTreeSet;

use relatch::Stats;

use crate::tidy::text;

const ALERTS: &str = "docs/monitoring/alerts.yml";
const TESTS: &str = "docs/monitoring/alerts_test.yml";
const DASHBOARD: &str = "docs/monitoring/grafana.json";

/// The metrics that a text names.
fn named(text: &str) -> BTreeSet<&str> {
    text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_')
        .filter(|word| word.starts_with("relatch_"))
        .collect()
}

/// What follows after `begin` in a line of its own.
fn values<'a>(text: &'a str, begin: &str) -> BTreeSet<&'a str> {
    text.lines()
        .filter_map(|line| line.trim_start().strip_prefix(begin))
        .collect()
}

#[test]
fn the_alerts_and_the_dashboard_name_metrics_that_there_are() {
    let exposition = Stats::default().prometheus();
    let samples = exposition.lines().filter(|line| !line.starts_with('#'));
    let exposed: BTreeSet<_> = samples
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    for file in [ALERTS, TESTS, DASHBOARD] {
        let page = text(file);
        let named = named(&page);
        assert!(named.len() > 5, "{file}: {named:?}");
        let unknown: Vec<_> = named.difference(&exposed).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}

#[test]
fn the_dashboard_shows_each_metric() {
    let dashboard = text(DASHBOARD);
    let shown = named(&dashboard);
    let exposition = Stats::default().prometheus();
    for declared in values(&exposition, "# TYPE ") {
        let (name, _) = declared.split_once(' ').expect("a name and a kind");
        assert!(shown.iter().any(|it| it.starts_with(name)), "{name}");
    }
}

/// `promtool` runs these tests, where it is installed.
#[test]
fn each_alert_has_a_test_and_is_on_the_page() {
    let rules = text(ALERTS);
    let tests = text(TESTS);
    let alerts = values(&rules, "- alert: ");
    assert!(alerts.len() > 3, "{alerts:?}");
    assert_eq!(alerts, values(&tests, "alertname: "));
    let page = text("docs/operations.md");
    for alert in alerts {
        assert!(page.contains(&format!("`{alert}`")), "{alert}");
    }
}
