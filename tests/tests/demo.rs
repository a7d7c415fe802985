//! `tapring demo`, which must run for everybody who has Rust and Linux.

use std::collections::HashSet;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tapring_tests::{
    Finished, Home, Need, Process, as_user, daemon_binary, ensure_one_line, scenario, with_tun_mode,
};

const NEEDS: [Need; 2] = [Need::Root, Need::Tun];
const AS_ANOTHER: [Need; 1] = [Need::RealRoot];
const LIMIT: Duration = Duration::from_secs(60);

const RATES: [&str; 9] = [
    "frames_per_second",
    "gbit_per_second",
    "kicks_per_second",
    "kicks_per_million_frames",
    "calls_per_second",
    "mean_batch",
    "cpu_ns_per_frame",
    "worker_cpu_ns_per_frame",
    "guest_cpu_ns_per_frame",
];

const COUNTS: [&str; 6] = [
    "frames",
    "kicks",
    "frames_delivered",
    "frames_verified",
    "frames_lost",
    "receiver_dropped",
];

const RATIOS: [&str; 3] = [
    "kicks_per_second",
    "kicks_per_million_frames",
    "frames_per_second",
];

/// How many times more kicks an older policy must show: a fifth of what it shows on a busy machine.
const OLD_KICKS_MORE: u64 = 3;

fn demo(binary: &std::path::Path, words: &str) -> Command {
    let mut command = Command::new(binary);
    command.arg("demo").args(words.split_whitespace());
    command
}

/// The document of a run that succeeded.
fn document(finished: &Finished) -> Result<Value> {
    let printed = finished.lines.join("\n");
    ensure!(finished.status.success(), "{}:\n{printed}", finished.status);
    // Progress goes to stderr, which is kept together with stdout.
    let begin = printed
        .find('{')
        .with_context(|| format!("no JSON in\n{printed}"))?;
    serde_json::from_str(&printed[begin..]).with_context(|| printed.clone())
}

fn run(words: &str) -> Result<Value> {
    document(&Process::run("demo", &demo(daemon_binary(), words), LIMIT)?)
}

/// That everything is in it that others may build on.
fn ensure_complete(document: &Value) -> Result<()> {
    let sections = &document["sections"];
    let rearm = &sections["deferred_rearm"];
    for comparison in [rearm, &rearm["one_byte"], &sections["busy_poll"]] {
        ensure_comparison(comparison)?;
    }
    for (parent, names) in [
        (document, &["tx", "rx"][..]),
        (&sections["rx_wake"], &["first_free", "half", "empty"]),
    ] {
        for name in names {
            ensure_figures(&parent[name]).with_context(|| format!("{name} in {parent}"))?;
        }
    }
    for name in ["placement", "flood_placement"] {
        ensure_placement(&document["settings"][name])?;
    }
    let kicks = &document["kicks"];
    ensure!(
        kicks["daemon"].as_u64() <= kicks["guest"].as_u64(),
        "kicks that nobody sent: {kicks}"
    );
    Ok(())
}

fn ensure_comparison(comparison: &Value) -> Result<()> {
    for name in ["old", "new"] {
        ensure_figures(&comparison[name]).with_context(|| format!("{name} in {comparison}"))?;
    }
    ensure_rates(&comparison["ratio"], &RATIOS)?;
    let rounds = comparison["rounds"].as_array().context("no rounds")?;
    ensure!(!rounds.is_empty(), "no rounds: {comparison}");
    let kicks = |name: &str| {
        let counts = rounds
            .iter()
            .filter_map(|round| round[name]["kicks"].as_u64());
        counts.sum::<u64>()
    };
    for name in ["old", "new"] {
        ensure!(
            comparison[name]["kicks"] == kicks(name),
            "the rounds have other kicks than their sum: {comparison}"
        );
    }
    Ok(())
}

fn ensure_figures(figures: &Value) -> Result<()> {
    ensure_rates(figures, &RATES)?;
    for name in COUNTS {
        ensure!(figures[name].is_u64(), "{name} is no count");
    }
    ensure!(
        figures["frames_lost"] == 0 && figures["frames_damaged"] == 0,
        "lost or damaged between guest and tap"
    );
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

fn ensure_rates(figures: &Value, names: &[&str]) -> Result<()> {
    for name in names {
        let rate = figures[name]
            .as_f64()
            .with_context(|| format!("{name} is no number in {figures}"))?;
        ensure!(rate.is_finite() && rate >= 0.0, "{name} is {rate}");
    }
    Ok(())
}

fn ensure_placement(placement: &Value) -> Result<()> {
    let cpus = ["guest_cpu", "worker_cpu", "receiver_cpu"].map(|name| placement[name].as_u64());
    let [Some(guest), Some(worker), Some(receiver)] = cpus else {
        bail!("not all CPUs are named: {placement}");
    };
    let apart = guest != worker && worker != receiver && receiver != guest;
    ensure!(
        placement["three_cpus"] == apart,
        "the run is not marked as what it is: {placement}"
    );
    Ok(())
}

fn kicks(section: &Value, policy: &str) -> Result<u64> {
    section[policy]["kicks"]
        .as_u64()
        .with_context(|| format!("no kicks of {policy} in {section}"))
}

/// That the same load made the guest kick far more often.
fn ensure_more_kicks(section: &Value, old: &str, new: &str, factor: u64) -> Result<()> {
    let (old_kicks, new_kicks) = (kicks(section, old)?, kicks(section, new)?);
    ensure!(
        old_kicks > factor * new_kicks,
        "{old_kicks} kicks under {old} are not {factor} times {new_kicks} under {new}: {section}"
    );
    Ok(())
}

#[test]
fn the_document_is_complete_and_nothing_is_lost() {
    scenario("demo: --json as root", &NEEDS, || {
        ensure_complete(&run("--seconds 4 --rounds 2 --json")?)
    });
}

#[test]
fn older_policies_make_the_guest_kick() {
    let needs = [Need::Root, Need::Tun, Need::TwoCpus];
    scenario("demo: older policies against newer ones", &needs, || {
        let document = run(
            "--seconds 9 --rounds 3 --json --section deferred_rearm --section busy_poll --section rx_wake",
        )?;
        ensure!(
            document.get("tx").is_none(),
            "a section nobody asked for: {document}"
        );
        let sections = &document["sections"];
        let rearm = &sections["deferred_rearm"];
        ensure_more_kicks(rearm, "old", "new", OLD_KICKS_MORE)?;
        ensure_more_kicks(&rearm["one_byte"], "old", "new", OLD_KICKS_MORE)?;
        ensure_more_kicks(&sections["busy_poll"], "old", "new", OLD_KICKS_MORE)?;
        ensure_more_kicks(&sections["rx_wake"], "first_free", "half", 1)
    });
}

#[test]
fn the_sweep_has_a_point_for_each_pair_of_costs() {
    scenario("demo: --sweep", &NEEDS, || {
        let document = run("--sweep --seconds 1 --rounds 1 --json")?;
        let points = document["sweep"]["points"]
            .as_array()
            .with_context(|| format!("no points in {document}"))?;
        let costs = |point: &Value| {
            (
                point["exit_cost_us"].as_u64(),
                point["guest_cost_ns"].as_u64(),
            )
        };
        let all: HashSet<_> = points.iter().map(costs).collect();
        ensure!(
            all.len() == points.len() && points.len() > 10 && !all.contains(&(None, None)),
            "costs are missing or there twice: {all:?}"
        );
        for point in points {
            for policy in ["old", "new", "auto"] {
                ensure_rates(&point[policy], &RATES)?;
                ensure!(
                    point[policy]["frames_lost"] == 0,
                    "frames were lost: {point}"
                );
            }
        }
        Ok(())
    });
}

#[test]
fn the_table_is_for_people() {
    scenario("demo: the table", &NEEDS, || {
        let finished = Process::run("demo", &demo(daemon_binary(), "--seconds 3"), LIMIT)?;
        let printed = finished.lines.join("\n");
        ensure!(finished.status.success(), "{}:\n{printed}", finished.status);
        let words = [
            "Gbit/s",
            "kicks",
            "calls",
            "verified",
            "lost",
            "Guest on CPU",
            "5411",
            "247758",
            "first-free",
            "Simulated",
            "Real",
            "--exit-cost-us",
        ];
        for word in words {
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
            &as_user(&demo(&home.daemon(), "--seconds 4 --rounds 2 --json")),
        );
        ensure_complete(&document(&Process::run("demo", &command, LIMIT)?)?)
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

#[test]
fn nonsense_is_a_line_that_says_what_is_allowed() {
    scenario("demo: wrong options", &[], || {
        for (words, parts) in [
            ("--rounds 0", ["--rounds", "from 1 to 100"]),
            (
                "--exit-cost-us 3000000",
                ["--exit-cost-us", "from 0 to 1000"],
            ),
            (
                "--guest-cost-ns 2s",
                ["--guest-cost-ns", "from 0 to 1000000"],
            ),
            (
                "--rx-guest-cost-ns -1",
                ["--rx-guest-cost-ns", "from 0 to 1000000"],
            ),
            ("--section tcp", ["deferred_rearm", "rx_wake"]),
            ("--cpus 0", ["--cpus", "three CPUs"]),
        ] {
            let finished = Process::run("demo", &demo(daemon_binary(), words), LIMIT)?;
            ensure_one_line(&finished, 2, &parts).context(words)?;
        }
        Ok(())
    });
}
