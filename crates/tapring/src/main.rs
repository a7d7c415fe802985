//! The `tapring` command.
//!
//! Exit codes: 0 after a requested end, 2 for a wrong command line or settings that contradict each other or the machine,
//! 1 for everything else. A failure is one line on stderr: what it is about, and what to do.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use rustix::process::{Signal, set_parent_process_death_signal};
use tapring::cli::{Cli, Command, Stop};
use tapring::serve::{Error, serve};
use tapring::settings::Settings;
use tapring::{demo, logging, signals};

const USAGE: u8 = 2;

fn main() -> ExitCode {
    match Cli::from_words(std::env::args_os()) {
        Ok(Cli { command }) => finish(run(command)),
        Err(Stop::Answer(text)) => {
            // Nobody reads any more: `tapring --help | head`.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(Stop::Usage(line)) => {
            eprintln!("tapring: {line}");
            ExitCode::from(USAGE)
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    logging::start();
    match command {
        Command::Serve(arguments) => {
            signals::hold()?;
            if arguments.dies_with_parent() {
                set_parent_process_death_signal(Some(Signal::TERM))?;
            }
            serve(&Settings::from(arguments), signals::terminated())?;
        }
        Command::Demo(arguments) => demo::run(&arguments)?,
    }
    Ok(())
}

fn finish(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("tapring: {}", one_line(&error));
    match error.downcast_ref() {
        Some(Error::Settings(_)) => ExitCode::from(USAGE),
        _ => ExitCode::FAILURE,
    }
}

/// An error with those of its causes that it does not tell itself.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}
