//! The control socket of a daemon, as an operator uses it: `tapring policy`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::Process;

/// The seven settings, each with its value as a word.
pub type Settings = BTreeMap<String, String>;

/// Asks and changes the policy of a running daemon.
#[derive(Clone, Debug)]
pub struct Control {
    binary: PathBuf,
    socket: PathBuf,
}

impl Control {
    pub(crate) fn new(binary: &Path, socket: PathBuf) -> Self {
        Self {
            binary: binary.to_owned(),
            socket,
        }
    }

    /// Runs `tapring policy` with these options, which change it, or none. Returns what it said is in force now.
    ///
    /// # Errors
    /// When it fails, or says anything but the seven settings.
    pub fn policy(&self, options: &str) -> Result<Settings> {
        let mut command = Command::new(&self.binary);
        command.args(["policy", "--json", "--control-socket"]);
        command.arg(&self.socket).args(options.split_whitespace());
        let finished = Process::run("tapring policy", &command, Duration::from_secs(10))?;
        let said = finished.lines.join("\n");
        ensure!(
            finished.status.success(),
            "policy {options}: {}\n{said}",
            finished.status
        );
        let settings: BTreeMap<String, Value> =
            serde_json::from_str(&said).with_context(|| said.clone())?;
        ensure!(settings.len() == 7, "not seven settings: {said}");
        Ok(settings
            .into_iter()
            .map(|(name, value)| (name, word(&value)))
            .collect())
    }
}

fn word(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}
