use super::*;
use crate::PolicyWords;
use crate::table::{Kind, RING_STATES, RX_DROP_REASONS, Scope};

/// A device called `t0` with one queue pair, and a little traffic on it.
fn small() -> (Metrics, DeviceMetrics) {
    let metrics = Metrics::new("1.2.3");
    let device = metrics.device("t0", 1);
    device.connected.set(1.0);
    device.tap_dropped.absolute(7);
    let pair = &device.pairs[0];
    pair.ring_enters.increment(3);
    pair.tx.packets.increment(64);
    pair.tx.bytes.increment(4096);
    pair.tx.batch_packets.observe(64);
    pair.tx.state.set(3);
    pair.rx.dropped[1].increment(2);
    pair.busy_poll.add_nanoseconds(1_500_000);
    device.policy.set(&words("half"));
    (metrics, device)
}

/// The default policy, but for the wake-up.
fn words(rx_wake: &str) -> PolicyWords {
    PolicyWords {
        kick_rearm: "after-completion".to_owned(),
        busy_poll_us: "0".to_owned(),
        busy_poll_interrupt: "requeue".to_owned(),
        tx_poll: "on-eagain".to_owned(),
        rx_wake: rx_wake.to_owned(),
        tx_budget: "64".to_owned(),
        rx_budget: "64".to_owned(),
    }
}

/// The part of the text that belongs to one metric.
fn family(text: &str, name: &str) -> String {
    let head = format!("# HELP {name} ");
    let start = text
        .find(&head)
        .unwrap_or_else(|| panic!("no {name} in\n{text}"));
    let end = text[start + 1..]
        .find("# HELP")
        .map_or(text.len(), |end| start + 1 + end);
    text[start..end].to_owned()
}

fn samples(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with('#'))
}

/// `BLESS=1 cargo test -p tapring-metrics` writes the file anew; look at the difference before it is committed.
#[test]
fn the_text_of_a_small_device() {
    let (metrics, _device) = small();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/registry/small.prom");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, metrics.render()).unwrap();
    }
    assert_eq!(metrics.render(), std::fs::read_to_string(path).unwrap());
}

#[test]
fn every_metric_of_the_table_is_there_before_anything_happens() {
    let metrics = Metrics::new("1.2.3");
    let device = metrics.device("t0", 2);
    device.policy.set(&words("half"));
    let text = metrics.render();
    for metric in METRICS {
        let Metric {
            name, help, kind, ..
        } = metric;
        let head = format!(
            "# HELP {name} {help}\n# TYPE {name} {}\n{name}",
            kind.word()
        );
        assert!(family(&text, name).starts_with(&head), "{name}");
    }
}

#[test]
fn all_is_zero_but_the_build_and_the_state_a_ring_begins_in() {
    let metrics = Metrics::new("1.2.3");
    let _device = metrics.device("t0", 1);
    let text = metrics.render();
    let (ones, zeros): (Vec<_>, Vec<_>) = samples(&text).partition(|line| line.ends_with(" 1"));
    assert_eq!(
        ones,
        [
            "tapring_build_info{version=\"1.2.3\"} 1",
            "tapring_ring_state{device=\"t0\",queue=\"0\",direction=\"rx\",state=\"stopped\"} 1",
            "tapring_ring_state{device=\"t0\",queue=\"0\",direction=\"tx\",state=\"stopped\"} 1",
        ]
    );
    assert!(zeros.iter().all(|line| line.ends_with(" 0")), "{zeros:?}");
}

/// What `promtool check metrics` looks for, and what our own naming promises.
#[test]
fn the_table_keeps_to_the_naming_rules() {
    for metric in METRICS {
        let name = metric.name;
        assert!(name.starts_with("tapring_"), "{name}");
        assert!(
            name.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
            "{name}"
        );
        assert_eq!(
            name.ends_with("_total"),
            metric.kind == Kind::Counter,
            "{name}"
        );
        assert!(
            metric.help.ends_with('.') && !metric.help.contains(['\n', '\\']),
            "{name}"
        );
        assert_eq!(
            METRICS.iter().filter(|other| other.name == name).count(),
            1,
            "{name}"
        );
    }
}

#[test]
fn series_have_the_labels_of_the_table_in_its_order() {
    let (metrics, _device) = small();
    let text = metrics.render();
    for metric in METRICS {
        let mut expected: Vec<_> = metric.labels().collect();
        if matches!(metric.kind, Kind::Histogram(_)) {
            expected.push("le");
        }
        let family = family(&text, metric.name);
        let first = samples(&family).next().expect("a series");
        let labels: Vec<_> = label_pairs(first).map(|(label, _)| label).collect();
        assert_eq!(labels, expected, "{}", metric.name);
    }
}

/// The labels of a sample line, for values without commas.
fn label_pairs(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let labels = line.split(['{', '}']).nth(1).unwrap_or_default();
    labels.split(',').filter_map(|label| label.split_once('='))
}

#[test]
fn label_values_are_those_of_the_table_and_each_exists_once() {
    let metrics = Metrics::new("1.2.3");
    let _device = metrics.device("t0", 1);
    let text = metrics.render();
    for metric in METRICS {
        let Some(choice) = metric.choice else {
            continue;
        };
        for (side, values) in [("rx", choice.rx), ("tx", choice.tx)] {
            let labels = format!("direction=\"{side}\",{}=\"", choice.label);
            let family = family(&text, metric.name);
            let mut found: Vec<_> = samples(&family)
                .filter_map(|line| line.split_once(&labels)?.1.split('"').next())
                .collect();
            let mut values = values.to_vec();
            found.sort_unstable();
            values.sort_unstable();
            assert_eq!(found, values, "{} {side}", metric.name);
        }
    }
}

#[test]
fn the_number_of_series_does_not_depend_on_what_happens() {
    let (metrics, device) = small();
    let before = samples(&metrics.render()).count();
    for round in 0..500 {
        let pair = &device.pairs[0];
        for queue in [&pair.rx, &pair.tx] {
            queue
                .guest_faults
                .iter()
                .for_each(|counter| counter.increment(1));
            queue.completion_seconds.observe(round * 1_000_003);
            queue
                .state
                .set(usize::try_from(round).unwrap() % RING_STATES.len());
            queue.rx_stops.increment(1);
        }
    }
    assert_eq!(samples(&metrics.render()).count(), before);
}

#[test]
fn series_are_unique_and_counted_by_scope() {
    let metrics = Metrics::new("1.2.3");
    for name in ["t0", "t1"] {
        metrics.device(name, 3).policy.set(&words("half"));
    }
    let text = metrics.render();
    let mut series: Vec<_> = samples(&text)
        .map(|line| line.rsplit_once(' ').unwrap().0)
        .collect();
    let all = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), all);
    for metric in METRICS.iter().filter(|metric| metric.choice.is_none()) {
        let expected = match (metric.scope, metric.kind) {
            (_, Kind::Histogram(buckets)) => 12 * (buckets.bounds.len() + 3),
            (Scope::Build, _) => 1,
            (Scope::Device | Scope::Policy, _) => 2,
            (Scope::Pair | Scope::RxQueue, _) => 6,
            (Scope::Queue, _) => 12,
        };
        assert_eq!(
            samples(&family(&text, metric.name)).count(),
            expected,
            "{}",
            metric.name
        );
    }
}

#[test]
fn exactly_one_ring_state_is_shown() {
    let (metrics, device) = small();
    for state in [6, 2, 2, 0] {
        device.pairs[0].rx.state.set(state);
        let family = family(&metrics.render(), "tapring_ring_state");
        let shown: Vec<_> = samples(&family)
            .filter(|line| line.contains("\"rx\"") && line.ends_with(" 1"))
            .collect();
        let [shown] = shown[..] else {
            panic!("{shown:?}")
        };
        assert!(
            shown.contains(&format!("state=\"{}\"", RING_STATES[state])),
            "{shown}"
        );
    }
}

#[test]
fn odd_device_names_are_escaped_alike_by_both_writers() {
    for (name, escaped) in [
        (r#"a"b"#, r#"a\"b"#),
        (r"a\b", r"a\\b"),
        (r"a\\b", r"a\\\\b"),
        (r#"a\"b"#, r#"a\\\"b"#),
        ("a\nb", r"a\nb"),
        (r"a\", r"a\\"),
    ] {
        let metrics = Metrics::new("1.2.3");
        let _device = metrics.device(name, 1);
        let text = metrics.render();
        let prefix = format!("{{device=\"{escaped}\",");
        assert!(
            text.contains(&format!("tapring_packets_total{prefix}")),
            "{name:?}"
        );
        assert!(
            text.contains(&format!("tapring_batch_packets_sum{prefix}")),
            "{name:?}"
        );
        assert_eq!(
            samples(&text)
                .filter(|line| !line.contains("device=\"a"))
                .count(),
            1
        );
    }
}

#[test]
fn only_the_policy_in_force_is_shown_and_changes_are_counted() {
    let metrics = Metrics::new("1.2.3");
    let device = metrics.device("t0", 1);
    assert!(!metrics.render().contains("policy_info"), "not known yet");
    for (rx_wake, changes) in [("half", 0), ("half", 0), ("8", 1), ("8", 1), ("half", 2)] {
        device.policy.set(&words(rx_wake));
        let text = metrics.render();
        let shown = family(&text, "tapring_policy_info");
        let [shown] = samples(&shown).collect::<Vec<_>>()[..] else {
            panic!("{shown}")
        };
        assert!(
            shown.contains(&format!(",rx_wake=\"{rx_wake}\",")),
            "{shown}"
        );
        let changes = format!("tapring_policy_changes_total{{device=\"t0\"}} {changes}\n");
        assert!(text.contains(&changes), "{text}");
    }
    let _again = metrics.device("t0", 1);
    assert!(!metrics.render().contains("policy_info"), "another device");
}

#[test]
fn a_device_made_again_starts_from_zero() {
    let (metrics, old) = small();
    let new = metrics.device("t0", 1);
    old.pairs[0].tx.packets.increment(1);
    new.pairs[0].tx.packets.increment(5);
    let text = metrics.render();
    let packets = "tapring_packets_total{device=\"t0\",queue=\"0\",direction=\"tx\"} ";
    assert!(text.contains(&format!("{packets}5\n")));
    assert_eq!(text.matches(packets).count(), 1);
}

#[test]
fn the_kernel_s_count_is_set_not_added() {
    let (metrics, device) = small();
    device.tap_dropped.absolute(9);
    device.tap_dropped.absolute(9);
    assert!(
        metrics
            .render()
            .contains("tapring_tap_dropped_packets_total{device=\"t0\"} 9\n")
    );
}

#[test]
fn positions_are_those_of_the_arrays() {
    let (metrics, _device) = small();
    let cut = format!("direction=\"rx\",reason=\"{}\"}} 2\n", RX_DROP_REASONS[1]);
    assert!(metrics.render().contains(&cut));
}
