//! `tapring demo`, which must run for everybody who has Rust and Linux.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tapring_tests::{
    Finished, Home, Need, Process, as_user, daemon_binary, ensure_one_line, scenario, with_tun_mode,
};

const NEEDS: [Need; 2] = [Need::Root, Need::Tun];
const AS_ANOTHER: [Need; 1] = [Need::RealRoot];
const LIMIT: Duration = Duration::from_secs(60);

const RATES: [&str; 7] = [
    "frames_per_second",
    "gbit_per_second",
    "kicks_per_second",
    "kicks_per_million_frames",
    "calls_per_second",
    "mean_batch",
    "cpu_ns_per_frame",
];

fn demo(binary: &std::path::Path, words: &str) -> Command {
    let mut command = Command::new(binary);
    command.arg("demo").args(words.split_whitespace());
    command
}

/// That the run succeeded and printed the document that others may build on.
fn ensure_document(finished: &Finished) -> Result<()> {
    let printed = finished.lines.join("\n");
    ensure!(finished.status.success(), "{}:\n{printed}", finished.status);
    // Progress goes to stderr, which is kept together with stdout.
    let begin = printed
        .find('{')
        .with_context(|| format!("no JSON in\n{printed}"))?;
    let document: Value =
        serde_json::from_str(&printed[begin..]).with_context(|| printed.clone())?;
    for direction in ["tx", "rx"] {
        ensure_direction(&document[direction])
            .with_context(|| format!("{direction} in {document}"))?;
    }
    ensure!(
        document["tx"]["frames_lost"] == 0,
        "lost on the way to the tap: {document}"
    );
    Ok(())
}

fn ensure_direction(figures: &Value) -> Result<()> {
    for name in RATES {
        let rate = figures[name]
            .as_f64()
            .with_context(|| format!("{name} is no number"))?;
        ensure!(rate.is_finite() && rate >= 0.0, "{name} is {rate}");
    }
    for name in ["frames_verified", "frames_lost", "receiver_dropped"] {
        ensure!(figures[name].is_u64(), "{name} is no count");
    }
    ensure!(
        figures["frames_verified"].as_u64() > Some(1000),
        "hardly anything was verified"
    );
    ensure!(
        figures["frames_per_second"].as_f64() > Some(100.0),
        "hardly anything was sent"
    );
    Ok(())
}

#[test]
fn the_document_is_complete_and_nothing_is_lost() {
    scenario("demo: --json as root", &NEEDS, || {
        ensure_document(&Process::run(
            "demo",
            &demo(daemon_binary(), "--seconds 4 --json"),
            LIMIT,
        )?)
    });
}

#[test]
fn the_table_is_for_people() {
    scenario("demo: the table", &NEEDS, || {
        let finished = Process::run("demo", &demo(daemon_binary(), "--seconds 3"), LIMIT)?;
        let printed = finished.lines.join("\n");
        ensure!(finished.status.success(), "{}:\n{printed}", finished.status);
        for word in ["Gbit/s", "kicks", "calls", "verified", "lost"] {
            ensure!(printed.contains(word), "no {word:?} in\n{printed}");
        }
        Ok(())
    });
}

#[test]
fn an_unprivileged_user_needs_nothing_but_an_open_node() {
    scenario("demo: --json as an unprivileged user", &AS_ANOTHER, || {
        let home = Home::new()?;
        let command = with_tun_mode(
            "0666",
            &as_user(&demo(&home.daemon(), "--seconds 4 --json")),
        );
        ensure_document(&Process::run("demo", &command, LIMIT)?)
    });
}

#[test]
fn a_closed_node_is_named() {
    scenario("demo: /dev/net/tun closed to the user", &AS_ANOTHER, || {
        let home = Home::new()?;
        let command = with_tun_mode("0600", &as_user(&demo(&home.daemon(), "--seconds 4")));
        ensure_one_line(
            &Process::run("demo", &command, LIMIT)?,
            1,
            &["/dev/net/tun"],
        )
    });
}
