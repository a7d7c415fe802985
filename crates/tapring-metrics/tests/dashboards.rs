//! Dashboards show metrics that exist.

use std::fs;
use std::path::Path;

use tapring_metrics::table::METRICS;

/// The metric names in a text, without the endings of histogram series.
fn names(text: &str) -> Vec<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !word(c))
        .filter(|name| name.starts_with("tapring_"))
        .map(|name| {
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|ending| name.strip_suffix(ending));
            base.unwrap_or(name).to_owned()
        })
        .collect()
}

#[test]
fn every_metric_of_a_dashboard_is_in_the_table() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboards");
    let mut seen = 0;
    for file in fs::read_dir(folder).expect("the dashboards") {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("a dashboard");
        for name in names(&text) {
            let known = METRICS.iter().any(|metric| metric.name == name);
            assert!(
                known,
                "{} shows {name}, which does not exist",
                path.display()
            );
            seen += 1;
        }
    }
    assert!(seen > 10, "the dashboards show next to nothing");
}
