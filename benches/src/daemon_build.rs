//! The daemon of this very source, built when the benchmark is run through cargo.
//!
//! `cargo run -p tapring-benches` builds the benchmark and not the daemon, so a clean clone would have none and a changed
//! source would be measured in its old state. Run without cargo, whatever lies beside the benchmark is measured.

use std::path::Path;
use std::process::Command;

use crate::BenchError;

/// Builds the daemon beside this program. Comes before the network namespace, for cargo may have something to fetch.
pub fn build_daemon() -> Result<(), BenchError> {
    let Some(cargo) = std::env::var_os("CARGO") else {
        return Ok(());
    };
    let program = std::env::current_exe().map_err(BenchError::read("/proc/self/exe"))?;
    let (Some(profile), Some(target)) = (program.parent(), program.ancestors().nth(2)) else {
        return Ok(());
    };
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--locked", "--package", "tapring"]);
    command.arg("--manifest-path");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"));
    command.arg("--target-dir").arg(target);
    if profile.ends_with("release") {
        command.arg("--release");
    }
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(BenchError::NotBuilt),
        Err(source) => Err(BenchError::read("cargo")(source)),
    }
}
