//! What to measure, as the command line says.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::BenchError;
use crate::cpu::Cpus;

/// Options of all contests.
#[derive(Args, Clone, Debug, Serialize)]
pub struct Settings {
    /// Seconds of each measurement: one contestant, one frame size, one round
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    pub seconds: f64,

    /// Rounds; medians are taken over them
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,

    /// Two CPUs: the raw loop and the whole daemon on A, the guest on B
    #[arg(long, value_name = "A,B", default_value = "0,1")]
    pub cpus: Cpus,

    /// How the daemon drives its ring: `tapring serve --poll`
    #[arg(long, value_name = "MODE", default_value = "inline")]
    pub poll: String,

    /// CPU of the kernel thread of `--poll sqpoll`: a third one
    #[arg(long, value_name = "CPU")]
    pub sqpoll_cpu: Option<u32>,

    /// Frame sizes in bytes, without virtio-net header and FCS
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,1472",
          value_parser = clap::value_parser!(u16).range(14..=1514))]
    pub sizes: Vec<u16>,

    /// Frames waiting in the tap when a drain begins (rx); 1000 is what the queue of a new tap holds
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(128..))]
    pub waiting: u16,

    /// The daemon [default: `tapring` next to this program]
    #[arg(long, value_name = "PATH")]
    pub daemon: Option<PathBuf>,
}

impl Settings {
    /// How long a measurement takes.
    pub fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// The daemon's program, which must be there.
    pub fn daemon_path(&self) -> Result<PathBuf, BenchError> {
        let beside = || -> Result<PathBuf, BenchError> {
            let program = std::env::current_exe().map_err(BenchError::read("/proc/self/exe"))?;
            Ok(program.with_file_name("tapring"))
        };
        let path = self.daemon.clone().map_or_else(beside, Ok)?;
        if path.is_file() {
            Ok(path)
        } else {
            Err(BenchError::NoDaemon { path })
        }
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give 0.01 to 3600 seconds".to_owned()),
    }
}
