//! What lies in config/ fits the program.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tapring::cli::{self, Cli};
use tapring::config::Source;
use tapring::settings::Settings;

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../config")).join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(file(name)).expect(name)
}

/// The settings of a command line that begins with `tapring`.
fn settings(words: &str) -> Settings {
    match Cli::from_words(words.split_whitespace()) {
        Ok(Cli {
            command: cli::Command::Serve(arguments),
        }) => Source::from(arguments).read().expect(words),
        other => panic!("{words}: {other:?}"),
    }
}

#[test]
fn the_unit_starts_the_daemon() {
    let unit = text("tapring@.service").replace("%i", "tap0");
    let command = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/"));
    let settings = settings(command.expect("a command"));
    assert_eq!(settings.tap, "tap0");
    assert_eq!(
        settings.socket.path,
        PathBuf::from("/run/tapring/tap0.sock")
    );
    assert_eq!(settings.socket.mode, 0o660);
}

#[test]
fn the_recipes_fit_the_daemon_they_name() {
    for recipe in ["cloud-hypervisor.sh", "qemu.sh"] {
        let script = text(recipe);
        let line = script
            .lines()
            .find_map(|line| line.strip_prefix("#   tapring serve"));
        let line = line
            .expect("the daemon's command line")
            .trim_end_matches('&');
        let settings = settings(&format!("tapring serve {line}"));
        let socket = settings.socket.path.display().to_string();
        assert!(
            script.contains(&format!("${{SOCKET:-{socket}}}")),
            "{recipe}"
        );
        assert!(
            script.contains("=on"),
            "{recipe}: guest memory has to be shared"
        );
        let rings = format!("num_queues={},", 2 * settings.queue_pairs);
        let pairs = format!("queues={}\n", settings.queue_pairs).replace('\n', " ");
        assert!(
            script.contains(&rings) || script.contains(pairs.trim()),
            "{recipe}"
        );
        let syntax = Command::new("sh").arg("-n").arg(file(recipe)).status();
        assert!(syntax.expect("a shell").success(), "{recipe}");
    }
}

#[test]
fn prometheus_scrapes_where_metrics_are_served_by_default() {
    let settings = settings("tapring serve --socket s --tap t0 --metrics");
    let address = settings.metrics.expect("an address").to_string();
    assert!(text("prometheus.yml").contains(&format!("\"{address}\"")));
}
