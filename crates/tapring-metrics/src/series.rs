//! The series of one owner: the build, or one device.
//!
//! Each owner has an exporter's recorder to itself. A recorder can only add series, never remove them, so a device that
//! leaves takes its series with it by taking its recorder.

use std::sync::Arc;

use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

use crate::histogram::Histogram;
use crate::policy::PolicyInfo;
use crate::seconds::Seconds;
use crate::table::{Kind, Metric};

/// Labels with their values, in order.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// What the recorder asks about each registration and this exporter ignores.
const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

/// Counters and gauges kept by the exporter, and what it cannot keep as we want it.
#[derive(Debug)]
pub(crate) struct Series {
    recorder: PrometheusRecorder,
    ours: Vec<(&'static Metric, String, Ours)>,
}

/// Series that are written by us.
#[derive(Debug)]
enum Ours {
    Histogram(Arc<Histogram>),
    Seconds(Arc<Seconds>),
    Policy(Arc<PolicyInfo>),
}

impl Series {
    pub(crate) fn new() -> Self {
        // Never `install`: that starts a thread with a timer. Nothing here needs its upkeep, which is for histograms.
        let recorder = PrometheusBuilder::new().build_recorder();
        Self {
            recorder,
            ours: Vec::new(),
        }
    }

    pub(crate) fn counter(&self, metric: &'static Metric, labels: &Labels) -> Counter {
        debug_assert_eq!(metric.kind, Kind::Counter);
        self.recorder
            .register_counter(&key(metric, labels), &METADATA)
    }

    pub(crate) fn gauge(&self, metric: &'static Metric, labels: &Labels) -> Gauge {
        debug_assert_eq!(metric.kind, Kind::Gauge);
        self.recorder
            .register_gauge(&key(metric, labels), &METADATA)
    }

    pub(crate) fn histogram(&mut self, metric: &'static Metric, labels: &Labels) -> Arc<Histogram> {
        let Kind::Histogram(buckets) = metric.kind else {
            unreachable!("{} is no histogram", metric.name)
        };
        let histogram = Arc::new(Histogram::new(buckets));
        self.keep(metric, labels, Ours::Histogram(Arc::clone(&histogram)));
        histogram
    }

    pub(crate) fn seconds(&mut self, metric: &'static Metric, labels: &Labels) -> Arc<Seconds> {
        debug_assert_eq!(metric.unit, Unit::Seconds);
        let seconds = Arc::new(Seconds::default());
        self.keep(metric, labels, Ours::Seconds(Arc::clone(&seconds)));
        seconds
    }

    pub(crate) fn policy(
        &mut self,
        metric: &'static Metric,
        labels: &Labels,
        changes: Counter,
    ) -> Arc<PolicyInfo> {
        let policy = Arc::new(PolicyInfo::new(changes));
        self.keep(metric, labels, Ours::Policy(Arc::clone(&policy)));
        policy
    }

    fn keep(&mut self, metric: &'static Metric, labels: &Labels, ours: Ours) {
        self.ours.push((metric, text(labels), ours));
    }

    /// The exporter's text: its own order, no help, nothing of ours.
    pub(crate) fn exporter_text(&self) -> String {
        self.recorder.handle().render()
    }

    /// Appends what is ours of one metric.
    pub(crate) fn render_ours(&self, metric: &Metric, out: &mut String) {
        for (_, labels, ours) in self.ours.iter().filter(|(of, ..)| *of == metric) {
            match ours {
                Ours::Histogram(histogram) => histogram.render(metric.name, labels, out),
                Ours::Seconds(seconds) => seconds.render(metric.name, labels, out),
                Ours::Policy(policy) => policy.render(metric.name, labels, out),
            }
        }
    }
}

fn key(metric: &'static Metric, labels: &Labels) -> Key {
    let label = |(name, value): &(&'static str, String)| Label::new(*name, exporter_value(value));
    Key::from_parts(metric.name, labels.iter().map(label).collect::<Vec<_>>())
}

/// The exporter takes two backslashes for one that is escaped already; written twice it comes out right.
fn exporter_value(value: &str) -> String {
    value.replace('\\', "\\\\")
}

/// Labels as the text format wants them.
pub(crate) fn text(labels: &Labels) -> String {
    let label = |(name, value): &(&str, String)| format!("{name}=\"{}\"", escaped(value));
    labels.iter().map(label).collect::<Vec<_>>().join(",")
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
