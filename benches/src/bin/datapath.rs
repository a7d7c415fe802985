//! The whole data path against the raw limit of a tap: see the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tapring_benches::daemon_build::build_daemon;
use tapring_benches::settings::Settings;
use tapring_benches::{BenchError, idle, rx, tx};

/// tapring's data path against the raw limit of a tap
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Line {
    #[command(subcommand)]
    contest: Contest,

    /// Print one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Contest {
    /// Guest to host
    Tx {
        #[command(flatten)]
        settings: Settings,
    },
    /// Host to guest
    Rx {
        #[command(flatten)]
        settings: Settings,
    },
    /// A daemon with one guest and nothing to do: no wake-up, little memory
    Idle {
        #[command(flatten)]
        settings: Settings,

        /// Seconds of doing nothing
        #[arg(long = "for", value_name = "S", default_value_t = 10)]
        idle_seconds: u64,
    },
}

fn main() -> ExitCode {
    match run(&Line::parse()) {
        Ok(text) => {
            println!("{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("datapath: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Contest {
    const fn settings(&self) -> &Settings {
        match self {
            Self::Tx { settings } | Self::Rx { settings } | Self::Idle { settings, .. } => settings,
        }
    }
}

fn run(line: &Line) -> Result<String, BenchError> {
    if line.contest.settings().daemon.is_none() {
        build_daemon()?;
    }
    let contest = match &line.contest {
        Contest::Tx { settings } => tx::run(settings),
        Contest::Rx { settings } => rx::run(settings),
        Contest::Idle {
            settings,
            idle_seconds,
        } => {
            let idle = idle::run(settings, Duration::from_secs(*idle_seconds))?;
            return Ok(if line.json { idle.json() } else { idle.table() });
        }
    };
    let report = contest?;
    Ok(if line.json {
        report.json()
    } else {
        report.table()
    })
}
