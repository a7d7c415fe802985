//! All series of the daemon, and their text.
//!
//! The exporter writes families and series in the order of its hash maps, without help texts for series that nobody
//! described. So only its sample lines are taken, sorted under a head line made from the table, and what it cannot keep
//! (our histograms, counters of time, the policy in force) is written in its place among them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use crate::device::DeviceMetrics;
use crate::series::Series;
use crate::table::{self, METRICS, Metric};

/// The series of the daemon and of all its devices.
#[derive(Debug)]
pub struct Metrics {
    build: Series,
    devices: Mutex<BTreeMap<String, Series>>,
}

impl Metrics {
    /// No device yet; `build_info` says this version.
    pub fn new(version: &str) -> Self {
        let build = Series::new();
        build
            .gauge(&table::BUILD_INFO, &vec![("version", version.to_owned())])
            .set(1.0);
        Self {
            build,
            devices: Mutex::default(),
        }
    }

    /// Makes all series of a device, each 0. Those of an earlier device of the same name are shown no longer.
    pub fn device(&self, name: &str, queue_pairs: u16) -> DeviceMetrics {
        let mut series = Series::new();
        let device = DeviceMetrics::new(&mut series, name, queue_pairs);
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.insert(name.to_owned(), series);
        device
    }

    /// Everything in the Prometheus text format, version 0.0.4.
    pub fn render(&self) -> String {
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let owners: Vec<&Series> = std::iter::once(&self.build)
            .chain(devices.values())
            .collect();
        let texts: Vec<String> = owners.iter().map(|owner| owner.exporter_text()).collect();
        let mut samples = samples_by_name(&texts);
        let mut out = String::with_capacity(2 * texts.iter().map(String::len).sum::<usize>());
        for metric in METRICS {
            family(metric, samples.remove(metric.name), &owners, &mut out);
        }
        debug_assert!(
            samples.is_empty(),
            "metrics missing from the table: {:?}",
            samples.keys()
        );
        out
    }
}

/// The exporter's sample lines, sorted, by the name they begin with.
fn samples_by_name(texts: &[String]) -> HashMap<&str, Vec<&str>> {
    let mut samples = HashMap::<_, Vec<_>>::new();
    let lines = texts.iter().flat_map(|text| text.lines());
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        samples.entry(name).or_default().push(line);
    }
    samples.values_mut().for_each(|lines| lines.sort_unstable());
    samples
}

/// Appends one family, unless it has no series.
fn family(metric: &Metric, samples: Option<Vec<&str>>, owners: &[&Series], out: &mut String) {
    let before = out.len();
    out.extend(["# HELP ", metric.name, " ", metric.help, "\n"]);
    out.extend(["# TYPE ", metric.name, " ", metric.kind.word(), "\n"]);
    let empty = out.len();
    for line in samples.into_iter().flatten() {
        out.extend([line, "\n"]);
    }
    owners
        .iter()
        .for_each(|owner| owner.render_ours(metric, out));
    if out.len() == empty {
        out.truncate(before);
    }
}

#[cfg(test)]
mod tests;
