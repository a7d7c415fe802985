//! The metric table, per-queue counters and the /metrics endpoint.
//!
//! # Theory of operation
//!
//! ```text
//!   worker ── adds once per batch ──► atomics ◄── reads ── render() ◄── GET /metrics
//!   (QueueMetrics)                    exporter's counters and gauges      (Endpoint, on the
//!                                     our Histogram arrays                 control thread)
//! ```
//!
//! 1. [`table`] defines every metric: name, kind, unit, help, labels, label values.
//! 2. [`Metrics::device`] makes all series of a device at once, each 0, and gives out the handles.
//! 3. Workers add to the handles; nothing is allocated, looked up or locked by that.
//! 4. [`Metrics::render`] writes the Prometheus text format: families in the table's order, series in order, so that two
//!    scrapes can be compared by eye.
//! 5. [`Endpoint`] serves it over HTTP. Between scrapes nothing here runs: no upkeep task, no timer, no wake-up.
//!
//! The number of series depends on the configuration alone: no label value comes from a guest or a frontend.
//!
//! It does not: know what the numbers mean, sample the kernel (the caller does that in the closure given to
//! [`Endpoint::serve`]), or install a global recorder.

#![forbid(unsafe_code)]

mod device;
mod histogram;
mod http;
mod policy;
mod registry;
mod seconds;
mod series;
pub mod table;

pub use device::{DeviceMetrics, PairMetrics, QueueMetrics, RingState};
pub use histogram::Histogram;
pub use http::{BindError, Endpoint};
pub use metrics::{Counter, Gauge};
pub use policy::{PolicyInfo, PolicyWords};
pub use registry::Metrics;
pub use seconds::Seconds;
