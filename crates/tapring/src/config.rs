//! Where settings come from: the command line, and the file that it may name.
//!
//! The file is TOML; its keys are the long options of `serve` with `_` for `-`, and those of the policy are in a table of
//! their own. What the command line says goes before what the file says, at a reload too.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_path_to_error::Error as PathError;
use thiserror::Error;
use toml::de::Error as TomlError;

use crate::cli::ServeArgs;
use crate::options::{Incomplete, Options};
use crate::settings::{Settings, SettingsError};

/// Settings that cannot be served with.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// No file to read.
    #[error("config {}: cannot read it: {source}: create it, or name another with --config", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file says something that means nothing.
    #[error("config {}:{line}: {what}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key, its value and what is allowed.
        what: String,
    },
    /// Something that has no default was said nowhere.
    #[error("config {}: `{key}` is missing: add it there, or give --{}", path.display(), key.replace('_', "-"))]
    Missing {
        /// The file.
        path: PathBuf,
        /// What is missing.
        key: &'static str,
    },
    /// Each is right, and they do not go together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// Where the settings of a device are read from, again and again.
#[derive(Clone, Debug)]
pub struct Source {
    given: Options,
    file: Option<PathBuf>,
}

impl From<ServeArgs> for Source {
    fn from(args: ServeArgs) -> Self {
        Self {
            given: args.options,
            file: args.config,
        }
    }
}

impl Source {
    /// The file, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The settings as they are now, checked.
    pub fn read(&self) -> Result<Settings, ConfigError> {
        let said = match &self.file {
            Some(path) => read(path)?,
            None => Options::default(),
        };
        let settings = self.given.clone().over(said).settings();
        let settings = settings.map_err(|incomplete| match incomplete {
            Incomplete::Missing(key) => ConfigError::Missing {
                path: self.file.clone().unwrap_or_default(),
                key,
            },
            Incomplete::Contradiction(error) => error.into(),
        })?;
        settings.check()?;
        Ok(settings)
    }
}

fn read(path: &Path) -> Result<Options, ConfigError> {
    let text = fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    parse(&text).map_err(|(line, what)| ConfigError::Wrong {
        path: path.to_owned(),
        line,
        what,
    })
}

/// An error is the line it is in, and what is wrong there.
fn parse(text: &str) -> Result<Options, (usize, String)> {
    let source = toml::Deserializer::parse(text).map_err(|error| {
        let number = line_of(text, &error);
        let line = text.lines().nth(number - 1).unwrap_or_default();
        (number, format!("{}: `{}`", error.message(), line.trim()))
    })?;
    serde_path_to_error::deserialize(source)
        .map_err(|error| (line_of(text, error.inner()), with_path(&error)))
}

/// An unknown key is in its message already.
fn with_path(error: &PathError<TomlError>) -> String {
    let what = error.inner().message();
    if what.starts_with("unknown field") {
        return what.replacen("unknown field", "unknown key", 1);
    }
    format!("{}: {what}", error.path())
}

fn line_of(text: &str, error: &TomlError) -> usize {
    let before = error.span().and_then(|span| text.get(..span.start));
    1 + before.unwrap_or_default().matches('\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attachment::Attachment;
    use tapring_queue::{Budget, BusyPoll, Policy};

    fn settings(text: &str) -> Settings {
        let options = parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
        let needed = parse("socket_path = 's'\ntap = 't0'").expect("right");
        options.over(needed).settings().expect(text)
    }

    #[test]
    fn numbers_and_truths_need_no_quotes_and_may_have_them() {
        for text in [
            "tap = \"t0\"\nqueue_pairs = 4\ncreate_tap = true\nsocket_mode = \"660\"\n[policy]\nbusy_poll_us = 9\nrx_budget = 2",
            "tap = 't0'\nqueue_pairs = \"4\"\ncreate_tap = \"true\"\nsocket_mode = \"0660\"\npolicy.busy_poll_us = \"9\"\npolicy.rx_budget = \"2\"",
        ] {
            let settings = settings(text);
            assert_eq!((settings.queue_pairs, settings.socket.mode), (4, 0o660));
            let policy = Policy {
                busy_poll: BusyPoll::For(std::time::Duration::from_micros(9)),
                rx_budget: Budget::new(2).expect("allowed"),
                ..Policy::DEFAULT
            };
            assert_eq!(settings.policy, policy);
        }
    }

    #[test]
    fn what_the_command_line_says_goes_before() {
        let said = parse(
            "tap = \"t0\"\nqueue_pairs = 4\nmetrics = \"[::1]:1\"\ncreate_tap = true\n[policy]\ntx_budget = 2",
        );
        let given = parse(
            "queue_pairs = 3\nmetrics = \"off\"\nsocket_path = \"s\"\ncreate_tap = false\n[policy]\nrx_budget = 3",
        );
        let (said, given) = (said.expect("right"), given.expect("right"));
        let settings = given.over(said).settings().expect("complete");
        let tap = Attachment::Tap {
            name: "t0".to_owned(),
            create: false,
        };
        assert_eq!((settings.attachment, settings.queue_pairs), (tap, 3));
        assert_eq!(settings.metrics, None);
        let budgets = [settings.policy.tx_budget, settings.policy.rx_budget];
        assert_eq!(budgets.map(Budget::frames), [2, 3]);
    }

    #[test]
    fn what_is_wrong_is_one_line_with_its_number_its_key_and_what_is_allowed() {
        for (text, line, parts) in [
            (
                "\ntap = \"a-name-of-16-byte\"",
                2,
                ["tap: ", "1 to 15 bytes"],
            ),
            ("tap = 3.5", 1, ["tap: ", "1 to 15 bytes"]),
            ("socket_path = 3", 1, ["socket_path: ", "string"]),
            ("socket_mode = \"999\"", 1, ["socket_mode: ", "octal"]),
            (
                "socket_group = \"no-such-group\"",
                1,
                ["socket_group: ", "number of a group"],
            ),
            ("create_tap = \"yes\"", 1, ["create_tap: ", "true or false"]),
            ("tap_fd = 2", 1, ["tap_fd: ", "from 3 on"]),
            ("tap_fd = \"5,5\"", 1, ["tap_fd: ", "from 3 on"]),
            ("tap_fd = \"5,x\"", 1, ["tap_fd: ", "such as \"5,6\""]),
            ("packet = \"a/b\"", 1, ["packet: ", "1 to 15 bytes"]),
            (
                "packet_qdisc_bypass = 1",
                1,
                ["packet_qdisc_bypass: ", "true or false"],
            ),
            ("queue_pairs = 33", 1, ["queue_pairs: ", "1 to 32"]),
            ("queue_size = 1000", 1, ["queue_size: ", "power of two"]),
            ("poll = \"maybe\"", 1, ["poll: ", "auto, inline or sqpoll"]),
            ("sqpoll_cpu = -1", 1, ["sqpoll_cpu: ", "number of a CPU"]),
            ("worker_cpus = [0]", 1, ["worker_cpus: ", "0-3,6"]),
            ("worker_cpus = \"3-1\"", 1, ["worker_cpus: ", "0-3,6"]),
            (
                "queue_num = \"x\"",
                1,
                ["queue_num: ", "auto, pairs or rings"],
            ),
            ("metrics = true", 1, ["metrics: ", "127.0.0.1:9650, or off"]),
            (
                "[policy]\nkick_rearm = \"x\"",
                2,
                ["policy.kick_rearm: ", "after-completion or before-submit"],
            ),
            (
                "[policy]\nbusy_poll_us = 10001",
                2,
                ["policy.busy_poll_us: ", "auto, or 0 to 10000"],
            ),
            (
                "[policy]\n\nbusy_poll_interrupt = 1",
                3,
                ["policy.busy_poll_interrupt: ", "requeue or rearm"],
            ),
            (
                "policy.tx_poll = true",
                1,
                ["policy.tx_poll: ", "on-eagain or always"],
            ),
            (
                "policy = { rx_wake = 0 }",
                1,
                ["policy.rx_wake: ", "half, first-free, empty, or a number"],
            ),
            (
                "[policy]\ntx_budget = {}",
                2,
                ["policy.tx_budget: ", "1 to 64"],
            ),
            (
                "[policy]\nrx_budget = 65",
                2,
                ["policy.rx_budget: ", "1 to 64"],
            ),
            (
                "[policy]\ntap = \"t0\"",
                2,
                ["`tap`", "`kick_rearm`, `busy_poll_us`"],
            ),
            (
                "policy = [\"before-submit\"]",
                1,
                ["policy: ", "settings by name"],
            ),
            (
                "plain_io = true",
                1,
                ["`plain_io`", "`socket_path`, `socket_mode`"],
            ),
            ("queue-pairs = 2", 1, ["`queue-pairs`", "`queue_pairs`"]),
            ("[tap]", 1, ["tap: ", "1 to 15 bytes"]),
            ("tap = 'a'\ntap = 'b'", 2, ["duplicate", "tap = 'b'"]),
            ("tap = ", 1, ["quoted", "`tap =`"]),
            ("tap", 1, ["expected `=`", "`tap`"]),
        ] {
            let (number, what) = parse(text).expect_err(text);
            assert_eq!(number, line, "{text}: {what}");
            assert!(
                parts.iter().all(|part| what.contains(part)),
                "{text}: {what}"
            );
            assert!(!what.contains('\n'), "{what}");
        }
    }
}
