//! What lies in config/ fits the program.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tapring::attachment::Attachment;
use tapring::cli::{self, Cli};
use tapring::config::{ConfigError, Source};
use tapring::settings::Settings;

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../config")).join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(file(name)).expect(name)
}

/// Where the settings of a command line that begins with `tapring` come from.
fn source(words: &str) -> Source {
    match Cli::from_words(words.split_whitespace()) {
        Ok(Cli {
            command: cli::Command::Serve(arguments),
        }) => Source::from(arguments),
        other => panic!("{words}: {other:?}"),
    }
}

fn settings(words: &str) -> Settings {
    source(words).read().expect(words)
}

/// The settings of a file with this text.
fn settings_of(text: &str) -> Result<Settings, ConfigError> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(&file, text).expect("written");
    source(&format!("tapring serve --config {}", file.path().display())).read()
}

/// The lines of the example that say something, those that are commented out included.
fn keys() -> Vec<String> {
    let text = text("tapring.toml");
    let lines = text.lines().map(|line| line.trim_start_matches('#'));
    let said = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    said.map(str::to_owned).collect()
}

#[test]
fn the_unit_starts_the_daemon_with_the_example() {
    let example = file("tapring.toml").display().to_string();
    let unit = text("tapring@.service").replace("%i", "tap1");
    let line = |start| unit.lines().find_map(|line| line.strip_prefix(start));
    let command = line("ExecStart=/usr/bin/").expect("a command");
    let settings = settings(&command.replace("/etc/tapring/tap1.toml", &example));
    let tap = Attachment::Tap {
        name: "tap1".to_owned(),
        create: false,
    };
    assert_eq!(settings.attachment, tap);
    let folder = format!("/run/{}", line("RuntimeDirectory=").expect("a folder"));
    let at = |name| PathBuf::from(&folder).join(name);
    assert_eq!(settings.socket.path, at("tap1.sock"));
    assert_eq!(settings.control_socket, Some(at("tap1.control")));
    assert_eq!(settings.socket.mode, 0o660);
    assert_eq!(line("ExecReload="), Some("/bin/kill -HUP $MAINPID"));
}

#[test]
fn the_example_says_the_defaults() {
    let example = settings_of(&text("tapring.toml")).expect("right");
    let defaults = settings("tapring serve --socket-path /run/tapring/tap0.sock --tap tap0");
    assert_eq!(format!("{example:?}"), format!("{defaults:?}"));
}

#[test]
fn the_example_has_every_key() {
    let unknown = |text| settings_of(text).expect_err("no key").to_string();
    let names = unknown("key = 0") + &unknown("[policy]\nkey = 0");
    let names = names.split('`').skip(1).step_by(2);
    let names = names.filter(|name| !["key", "policy"].contains(name));
    let keys = keys();
    assert_eq!(names.clone().count(), keys.len());
    for name in names {
        let said = keys
            .iter()
            .filter(|line| line.starts_with(&format!("{name} = ")));
        assert_eq!(said.count(), 1, "{name}");
    }
}

/// Of the interfaces one at a time.
#[test]
fn what_is_commented_out_in_the_example_is_right_too() {
    let mut lines = keys();
    let table = lines.iter().position(|line| line.starts_with("kick_rearm"));
    lines.insert(table.expect("there"), "[policy]".to_owned());
    let interfaces = ["tap", "tap_fd", "packet"];
    for interface in interfaces {
        let is_another = |line: &str| {
            let key = line.split(' ').next().unwrap_or_default();
            interfaces.contains(&key) && key != interface
        };
        let mut lines = lines.clone();
        lines.retain(|line| !is_another(line));
        if interface == "tap_fd" {
            lines.retain(|line| !line.starts_with("queue_pairs"));
        }
        let all = settings_of(&lines.join("\n").replace("kvm", "root")).expect(interface);
        assert!(all.control_socket.is_some() && all.polls_in_kernel());
        assert_eq!(all.queue_pairs, if interface == "tap_fd" { 2 } else { 1 });
    }
}

#[test]
fn two_interfaces_in_one_file_are_refused_and_one_on_the_command_line_goes_before() {
    let both = "socket_path = \"s\"\ntap = \"t0\"\npacket = \"v0\"";
    let error = settings_of(both).expect_err("two").to_string();
    assert!(error.contains("more than one of them"), "{error}");

    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(
        &file,
        "socket_path = \"s\"\ntap = \"t0\"\ncreate_tap = true",
    )
    .expect("written");
    let words = format!(
        "tapring serve --config {} --packet v0",
        file.path().display()
    );
    let packet = Attachment::Packet {
        name: "v0".to_owned(),
        qdisc_bypass: false,
    };
    assert_eq!(settings(&words).attachment, packet);
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
