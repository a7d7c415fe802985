//! The series of one owner: the build, or one device.
//!
//! Each owner has an exporter's recorder to itself. A recorder can only add series, never remove them, so a device that
//! leaves takes its series with it by taking its recorder.

use std::sync::Arc;

use metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

use crate::histogram::Histogram;
use crate::table::{Kind, Metric};

/// Labels with their values, in order.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// What the recorder asks about each registration and this exporter ignores.
const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

/// Counters and gauges kept by the exporter, and histograms kept by us.
#[derive(Debug)]
pub(crate) struct Series {
    recorder: PrometheusRecorder,
    histograms: Vec<(&'static Metric, String, Arc<Histogram>)>,
}

impl Series {
    pub(crate) fn new() -> Self {
        // Never `install`: that starts a thread with a timer. Nothing here needs its upkeep, which is for histograms.
        let recorder = PrometheusBuilder::new().build_recorder();
        Self {
            recorder,
            histograms: Vec::new(),
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
        self.histograms
            .push((metric, text(labels), Arc::clone(&histogram)));
        histogram
    }

    /// The exporter's text: its own order, no help, no histograms.
    pub(crate) fn exporter_text(&self) -> String {
        self.recorder.handle().render()
    }

    pub(crate) fn render_histograms(&self, metric: &Metric, out: &mut String) {
        for (_, labels, histogram) in self.histograms.iter().filter(|(of, ..)| *of == metric) {
            histogram.render(metric.name, labels, out);
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
fn text(labels: &Labels) -> String {
    let label = |(name, value): &(&str, String)| format!("{name}=\"{}\"", escaped(value));
    labels.iter().map(label).collect::<Vec<_>>().join(",")
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
