//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};

use crate::demo::DemoArgs;
use crate::options::Options;
use crate::policy::PolicyChange;

/// A network card for virtual machines: vhost-user-net over io_uring, onto a Linux tap
#[derive(Debug, Parser)]
#[command(name = "tapring", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve one device to VMMs, one after the other, until SIGTERM or SIGINT
    Serve(ServeArgs),
    /// Show the policy of a running `serve`, or change it under load without losing a frame
    Policy(PolicyArgs),
    /// Show what it does and how fast, here, with nothing set up and no rights needed
    Demo(DemoArgs),
}

/// Options of `serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// File with any of these options (dashes are written as `_`) and a table [policy]; what is said here goes before it.
    /// SIGHUP reads it again and puts its policy in force
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// What the file may say as well.
    #[command(flatten)]
    pub(crate) options: Options,

    /// End when the process that started this one does
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// Options of `policy`.
#[derive(Args, Debug)]
pub struct PolicyArgs {
    /// What `tapring serve --control-socket` was given
    #[arg(long, value_name = "PATH")]
    pub control_socket: PathBuf,

    /// Print the policy as JSON
    #[arg(long)]
    pub json: bool,

    /// What to change.
    #[command(flatten, next_help_heading = "Changes")]
    pub change: PolicyChange,
}

/// A command line that is not carried out: what to print, where, and how to exit.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// Help or the version was asked for: to stdout, exit code 0.
    Answer(String),
    /// One line for stderr, exit code 2.
    Usage(String),
}

impl Cli {
    /// Parses the words of a command line, the program's name first.
    pub fn from_words<W: Into<OsString> + Clone>(
        words: impl IntoIterator<Item = W>,
    ) -> Result<Self, Stop> {
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        Self::try_parse_from(&words).map_err(|error| stop(&error, words.get(1)))
    }
}

impl ServeArgs {
    /// Whether to end when the process that started this one does.
    pub const fn dies_with_parent(&self) -> bool {
        self.die_with_parent
    }
}

/// clap's errors are paragraphs; the first one, without its label, says it all.
fn stop(error: &clap::Error, command: Option<&OsString>) -> Stop {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Stop::Answer(text),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            Stop::Usage("no command: see `tapring --help`".to_owned())
        }
        _ => {
            let lines = text
                .lines()
                .map(str::trim)
                .take_while(|line| !line.is_empty());
            let sentence = lines.collect::<Vec<_>>().join(" ");
            let sentence = sentence.trim_start_matches("error: ");
            let help = match command.and_then(|word| word.to_str()) {
                Some(command @ ("serve" | "policy" | "demo")) => {
                    format!("tapring {command} --help")
                }
                _ => "tapring --help".to_owned(),
            };
            Stop::Usage(format!("{sentence}: see `{help}`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use tapring_queue::{BusyPoll, KickRearm, RxWake};

    use crate::attachment::Attachment;
    use crate::features::QueueNum;
    use crate::options::DEFAULT_METRICS;
    use crate::settings::Settings;

    fn serve(words: &str) -> Result<Settings, String> {
        let words = format!("tapring serve {words}");
        match Cli::from_words(words.split_whitespace()) {
            Ok(Cli {
                command: Command::Serve(args),
            }) => Ok(args
                .options
                .settings()
                .expect("no file, so all that is needed")),
            Err(Stop::Usage(line)) => Err(line),
            Ok(_) => panic!("another command"),
            Err(Stop::Answer(text)) => panic!("{text}"),
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_as_documented() {
        let settings = serve("--socket /run/t.sock --tap t0").expect("complete");
        assert_eq!(settings.socket.path, PathBuf::from("/run/t.sock"));
        assert_eq!((settings.socket.mode, settings.queue_pairs), (0o600, 1));
        assert_eq!(settings.max_ring_size, 1024);
        assert_eq!(settings.metrics, None);
        assert!(settings.worker_cpus.is_empty());
        let tap = Attachment::Tap {
            name: "t0".to_owned(),
            create: false,
        };
        assert_eq!(settings.attachment, tap);
        assert_eq!(settings.policy, tapring_queue::Policy::DEFAULT);
        assert_eq!(settings.control_socket, None);
    }

    #[test]
    fn everything_can_be_said() {
        let settings = serve(
            "--socket-path s --tap t0 --queue-pairs 32 --queue-size 32768 --create-tap --poll sqpoll --sqpoll-cpu 1 \
             --plain-io --worker-cpus 0-1 --queue-num rings --metrics [::1]:9 --socket-mode 660 --socket-group root \
             --control-socket c --kick-rearm before-submit --busy-poll-us auto --busy-poll-interrupt rearm \
             --tx-poll always --rx-wake 8 --tx-budget 1 --rx-budget 64",
        )
        .expect("complete");
        assert_eq!(settings.worker_cpus, [0, 1]);
        assert_eq!(settings.socket.group, Some(0));
        assert_eq!(settings.metrics, "[::1]:9".parse().ok());
        assert_eq!(settings.queue_num, QueueNum::Rings);
        assert_eq!(settings.policy.kick_rearm, KickRearm::BeforeSubmit);
        assert_eq!(settings.policy.busy_poll, BusyPoll::Auto);
        assert_eq!(settings.policy.rx_wake, RxWake::Chains(8));
    }

    #[test]
    fn there_are_four_things_to_connect_a_guest_to() {
        let attachment = |words: &str| {
            let settings = serve(&format!("--socket s {words}")).expect("complete");
            (settings.attachment, settings.queue_pairs)
        };
        let created = Attachment::Tap {
            name: "t0".to_owned(),
            create: true,
        };
        assert_eq!(attachment("--tap t0 --create-tap"), (created, 1));
        let device = Attachment::Device("/dev/tap5".into());
        assert_eq!(attachment("--tap /dev/tap5 --queue-pairs 2"), (device, 2));
        let fds = Attachment::Descriptors(vec![5, 6, 9]);
        assert_eq!(attachment("--tap-fd 5,6,9"), (fds, 3));
        let packet = |qdisc_bypass| Attachment::Packet {
            name: "eth0".to_owned(),
            qdisc_bypass,
        };
        assert_eq!(attachment("--packet eth0"), (packet(false), 1));
        let bypass = attachment("--packet eth0 --packet-qdisc-bypass");
        assert_eq!(bypass, (packet(true), 1));
    }

    #[test]
    fn metrics_without_an_address_go_to_loopback() {
        let settings = serve("--socket s --tap t0 --metrics").expect("complete");
        assert_eq!(settings.metrics, DEFAULT_METRICS.parse().ok());
    }

    #[test]
    fn nonsense_is_one_line_that_says_where_help_is() {
        for words in [
            "",
            "--socket s",
            "--socket s --tap t0 --queue-pairs 0",
            "--socket s --tap t0 --queue-pairs 33",
            "--socket s --tap t0 --queue-size 1000",
            "--socket s --tap t0 --queue-size 65536",
            "--socket s --tap t0 --queue-size 0",
            "--socket s --tap a-name-of-16-byte",
            "--socket s --tap t0 --worker-cpus x",
            "--socket s --tap t0 --poll maybe",
            "--socket s --tap t0 --metrics here",
            "--socket s --tap t0 --socket-mode 999",
            "--socket s --tap t0 --socket-group no-such-group",
            "--socket s --tap t0 --kick-rearm never",
            "--socket s --tap t0 --busy-poll-us 1s",
            "--socket s --tap t0 --rx-wake 0",
            "--socket s --tap t0 --tx-budget 65",
            "--socket s --tap t0 --create-tap=maybe",
            "--socket s --tap t0 --packet v0",
            "--socket s --tap t0 --tap-fd 5",
            "--socket s --tap-fd 5 --packet v0",
            "--socket s --tap-fd 1",
            "--socket s --tap-fd 5,5",
            "--socket s --tap-fd five",
            "--socket s --packet a-name-of-16-byte",
            "--socket s --packet /dev/tap5",
            "--socket s --tap t0 --strange",
        ] {
            let line = serve(words).expect_err(words);
            assert!(line.ends_with("see `tapring serve --help`"), "{line}");
            assert!(!line.contains('\n') && !line.contains("error:"), "{line}");
        }
    }

    #[test]
    fn nonsense_names_the_help_of_its_own_command() {
        for (words, help) in [
            ("tapring demo --strange", "see `tapring demo --help`"),
            ("tapring policy", "see `tapring policy --help`"),
            ("tapring strange", "see `tapring --help`"),
        ] {
            match Cli::from_words(words.split(' ')) {
                Err(Stop::Usage(line)) => assert!(line.ends_with(help), "{line}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn help_and_version_are_answers() {
        for word in ["--help", "--version"] {
            let stop = Cli::from_words(["tapring", word]).expect_err(word);
            assert!(matches!(stop, Stop::Answer(_)));
        }
    }
}
