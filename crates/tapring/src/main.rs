//! The `tapring` command.
//!
//! Exit codes: 0 after a requested end, 2 for a wrong command line or file or settings that contradict each other or the
//! machine, 1 for everything else. A failure is one line on stderr: what it is about, and what to do.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

use rustix::process::{Signal, set_parent_process_death_signal};
use tapring::cli::{Cli, Command, PolicyArgs, Stop};
use tapring::config::Source;
use tapring::control::client::{self, ClientError};
use tapring::policy::{Lines, PolicyChange};
use tapring::serve::{Error, serve};
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
            serve(Source::from(arguments), signals::terminated())?;
        }
        Command::Policy(arguments) => policy(&arguments)?,
        Command::Demo(arguments) => demo::run(&arguments)?,
    }
    Ok(())
}

fn policy(arguments: &PolicyArgs) -> anyhow::Result<()> {
    let socket = &arguments.control_socket;
    let policy = match arguments.change.is_empty() {
        true => client::policy(socket)?,
        false => client::set_policy(socket, &arguments.change)?,
    };
    let text = match arguments.json {
        true => serde_json::to_string(&PolicyChange::from(policy))? + "\n",
        false => Lines(policy).to_string(),
    };
    // Nobody reads any more: it holds all the same.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn finish(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("tapring: {}", one_line(&error));
    let settings = matches!(error.downcast_ref(), Some(Error::Config(_)));
    let refused = matches!(error.downcast_ref(), Some(ClientError::Refused(_)));
    match settings || refused {
        true => ExitCode::from(USAGE),
        false => ExitCode::FAILURE,
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
