//! What is printed: one JSON object, or a table of the same.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::machine::Machine;
use crate::rounds::{median, ratios};
use crate::settings::Settings;

/// The outcome of a contest.
#[derive(Debug, Serialize)]
pub struct Report {
    /// `tx` (guest to host) or `rx` (host to guest).
    pub direction: &'static str,
    /// What it was measured on.
    pub machine: Machine,
    /// How.
    pub settings: Settings,
    /// By frame size in bytes.
    pub sizes: BTreeMap<u16, Size>,
}

/// One measurement of the daemon.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Frames per second.
    pub frames_per_second: f64,
    /// CPU time of the daemon a frame.
    pub cpu_ns_per_frame: f64,
    /// Kicks that the guest sent.
    pub kicks_per_second: f64,
    /// The same by frames.
    pub kicks_per_million_frames: f64,
    /// Calls that the guest received.
    pub calls_per_second: f64,
    /// Frames that the daemon published at once.
    pub mean_batch: f64,
}

/// The figures of one frame size: medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Size {
    /// The limit.
    pub raw_frames_per_second: f64,
    /// The daemon.
    pub frames_per_second: f64,
    /// Median of the rounds' ratios; so not quite the ratio of the two medians above.
    pub ratio_to_raw: f64,
    /// The lowest and the highest of the rounds' ratios.
    pub ratio_range: [f64; 2],
    /// The limit as time.
    pub raw_ns_per_frame: f64,
    /// The daemon as time.
    pub ns_per_frame: f64,
    /// CPU time of the daemon a frame.
    pub cpu_ns_per_frame: f64,
    /// Kicks that the guest sent.
    pub kicks_per_second: f64,
    /// The same by frames.
    pub kicks_per_million_frames: f64,
    /// Calls that the guest received.
    pub calls_per_second: f64,
    /// Frames that the daemon published at once.
    pub mean_batch: f64,
}

impl Size {
    /// Condenses the rounds of both contestants.
    pub fn of(raw: &[f64], daemon: &[Sample]) -> Self {
        let all = |field: fn(&Sample) -> f64| median(daemon.iter().map(field));
        let speeds: Vec<f64> = daemon
            .iter()
            .map(|sample| sample.frames_per_second)
            .collect();
        let ratios = ratios(&speeds, raw);
        let (raw, speed) = (median(raw.iter().copied()), median(speeds));
        Self {
            raw_frames_per_second: raw.round(),
            frames_per_second: speed.round(),
            ratio_to_raw: three_digits(median(ratios.iter().copied())),
            ratio_range: [
                ratios.iter().copied().fold(f64::INFINITY, f64::min),
                ratios.iter().copied().fold(0.0, f64::max),
            ]
            .map(three_digits),
            raw_ns_per_frame: (1e9 / raw).round(),
            ns_per_frame: (1e9 / speed).round(),
            cpu_ns_per_frame: all(|sample| sample.cpu_ns_per_frame).round(),
            kicks_per_second: three_digits(all(|sample| sample.kicks_per_second)),
            kicks_per_million_frames: three_digits(all(|sample| sample.kicks_per_million_frames)),
            calls_per_second: three_digits(all(|sample| sample.calls_per_second)),
            mean_batch: three_digits(all(|sample| sample.mean_batch)),
        }
    }
}

impl Report {
    /// One JSON object.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() // has no map with keys that are not text
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{}, {} cores, Linux {}, load {}\n{} through {}, medians of {} rounds\n\n\
             bytes   raw frames/s   daemon frames/s   ratio (range)         CPU ns/frame   kicks/s   batch\n",
            self.machine.cpu,
            self.machine.cores,
            self.machine.kernel,
            self.machine.load,
            self.direction,
            self.settings.poll,
            self.settings.rounds
        );
        for (bytes, size) in &self.sizes {
            let [low, high] = size.ratio_range;
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "{bytes:5}   {:12.0}   {:15.0}   {:.3} ({low:.3}..{high:.3})  {:12.0}   {:7.1}   {:5.1}",
                size.raw_frames_per_second,
                size.frames_per_second,
                size.ratio_to_raw,
                size.cpu_ns_per_frame,
                size.kicks_per_second,
                size.mean_batch
            );
        }
        text
    }
}

fn three_digits(figure: f64) -> f64 {
    (figure * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size() -> Size {
        let daemon = [1.0e6, 1.5e6, 1.2e6].map(|frames_per_second| Sample {
            frames_per_second,
            ..Sample::default()
        });
        Size::of(&[2.0e6, 2.0e6, 3.0e6], &daemon)
    }

    #[test]
    fn ratios_are_those_of_the_rounds() {
        let size = size();
        assert_eq!((size.ratio_to_raw, size.ratio_range), (0.5, [0.4, 0.75]));
        assert_eq!((size.raw_ns_per_frame, size.ns_per_frame), (500.0, 833.0));
    }

    #[test]
    fn the_document_has_the_promised_shape() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            settings: Settings,
        }
        let Line { settings } = clap::Parser::parse_from(["datapath"]);
        let sizes = [(64, size()), (1472, size())].into();
        let report = Report {
            direction: "tx",
            machine: Machine::this(),
            settings,
            sizes,
        };
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert!(json["machine"]["kernel"].is_string());
        assert_eq!(json["settings"]["cpus"]["guest"], 1);
        for bytes in ["64", "1472"] {
            for field in ["raw_frames_per_second", "frames_per_second", "ratio_to_raw"] {
                assert!(
                    json["sizes"][bytes][field].as_f64().unwrap() > 0.0,
                    "{bytes} {field}"
                );
            }
        }
        assert!(
            report
                .table()
                .lines()
                .last()
                .unwrap()
                .trim_start()
                .starts_with("1472")
        );
    }
}
