//! The command line.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use tapring_io::is_tap_name;

use crate::cpus;
use crate::demo::DemoArgs;
use crate::features::QueueNum;
use crate::settings::{MAX_QUEUE_PAIRS, Poll, Settings};
use crate::socket::SocketOptions;

/// Where `--metrics` without an address listens.
const DEFAULT_METRICS: &str = "127.0.0.1:9650";

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
    /// Show what it does and how fast, here, with nothing set up and no rights needed
    Demo(DemoArgs),
}

/// Options of `serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Unix socket that the VMM connects to; the socket of a dead daemon is replaced
    #[arg(long, visible_alias = "socket", value_name = "PATH")]
    socket_path: PathBuf,

    /// Permissions of the socket, octal: a VMM of another user needs write permission
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = parse_mode)]
    socket_mode: u32,

    /// Group of the socket, name or number [default: the process's]
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    socket_group: Option<u32>,

    /// Name of the tap interface, 1 to 15 bytes
    #[arg(long, value_name = "NAME", value_parser = parse_tap)]
    tap: String,

    /// Create the tap if it does not exist; it then goes with the process
    #[arg(long)]
    create_tap: bool,

    /// Pairs of virtqueues, 1 to 32, each with a worker thread; more than 1 needs a multi_queue tap
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_QUEUE_PAIRS)))]
    queue_pairs: u16,

    /// Largest ring a VMM may ask for, in descriptors: a power of two up to 32768
    #[arg(long, value_name = "N", default_value = "1024", value_parser = parse_ring_size)]
    queue_size: u16,

    /// Who moves the frames: the worker (inline), or a kernel thread (sqpoll)
    #[arg(long, value_enum, value_name = "MODE", default_value_t = Poll::Auto)]
    poll: Poll,

    /// CPU of the kernel thread of sqpoll; one that runs nothing else
    #[arg(long, value_name = "CPU")]
    sqpoll_cpu: Option<u32>,

    /// CPUs of the workers, such as 0-3,6: pair n runs on the n-th [default: anywhere]
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    worker_cpus: Option<CpuList>,

    /// Unit of the answer to VHOST_USER_GET_QUEUE_NUM; auto tells QEMU from cloud-hypervisor
    #[arg(long, value_enum, value_name = "UNIT", default_value_t = QueueNum::Auto)]
    queue_num: QueueNum,

    /// Serve Prometheus metrics over HTTP [default: off; without an address: 127.0.0.1:9650]
    #[arg(long, value_name = "ADDR:PORT|off", num_args = 0..=1, default_value = "off",
          hide_default_value = true, default_missing_value = DEFAULT_METRICS, value_parser = parse_metrics)]
    metrics: Metrics,

    /// Move frames by read(2) and write(2), as on Linux before 6.4, even where the ring could
    #[arg(long, hide = true)]
    plain_io: bool,

    /// End when the process that started this one does
    #[arg(long, hide = true)]
    die_with_parent: bool,
}

/// A parsed list; a bare `Vec` means a repeated option to clap.
#[derive(Clone, Debug)]
struct CpuList(Vec<u32>);

/// A parsed address or `off`; a bare `Option` means an optional option to clap.
#[derive(Clone, Copy, Debug)]
struct Metrics(Option<SocketAddr>);

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

impl From<ServeArgs> for Settings {
    fn from(args: ServeArgs) -> Self {
        Self {
            socket: SocketOptions {
                path: args.socket_path,
                mode: args.socket_mode,
                group: args.socket_group,
            },
            tap: args.tap,
            create_tap: args.create_tap,
            queue_pairs: args.queue_pairs,
            max_ring_size: args.queue_size,
            poll: args.poll,
            sqpoll_cpu: args.sqpoll_cpu,
            plain_io: args.plain_io,
            worker_cpus: args.worker_cpus.map_or_else(Vec::new, |list| list.0),
            queue_num: args.queue_num,
            metrics: args.metrics.0,
        }
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
                Some(command @ ("serve" | "demo")) => format!("tapring {command} --help"),
                _ => "tapring --help".to_owned(),
            };
            Stop::Usage(format!("{sentence}: see `{help}`"))
        }
    }
}

fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("give octal permissions, such as 0660".to_owned()),
    }
}

fn parse_group(text: &str) -> Result<u32, String> {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let by_name = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next() == Some(text);
        fields.nth(1).filter(|_| found)
    });
    let number = by_name.unwrap_or(text).parse();
    number.map_err(|_| "no such group".to_owned())
}

/// Checked here as well, so that a typing error is a matter of usage.
fn parse_tap(text: &str) -> Result<String, String> {
    if !is_tap_name(text) {
        return Err("an interface name has 1 to 15 bytes, without blanks, `/`, `:` and `%`".into());
    }
    Ok(text.to_owned())
}

fn parse_ring_size(text: &str) -> Result<u16, String> {
    match text.parse::<u16>() {
        Ok(size) if size.is_power_of_two() && size >= 2 => Ok(size),
        _ => Err("give a power of two from 2 to 32768".to_owned()),
    }
}

fn parse_cpus(text: &str) -> Result<CpuList, cpus::CpuListError> {
    cpus::parse(text).map(CpuList)
}

fn parse_metrics(text: &str) -> Result<Metrics, String> {
    if text == "off" {
        return Ok(Metrics(None));
    }
    let address = text
        .parse()
        .map_err(|_| "give an address and a port, such as 127.0.0.1:9650, or off")?;
    Ok(Metrics(Some(address)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn serve(words: &str) -> Result<Settings, String> {
        let words = format!("tapring serve {words}");
        match Cli::from_words(words.split_whitespace()) {
            Ok(Cli {
                command: Command::Serve(args),
            }) => Ok(args.into()),
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
        assert!(settings.worker_cpus.is_empty() && !settings.create_tap);
    }

    #[test]
    fn everything_can_be_said() {
        let settings = serve(
            "--socket-path s --tap t0 --queue-pairs 32 --queue-size 32768 --create-tap --poll sqpoll --sqpoll-cpu 1 \
             --plain-io --worker-cpus 0-1 --queue-num rings --metrics [::1]:9 --socket-mode 660 --socket-group root",
        )
        .expect("complete");
        assert_eq!(settings.worker_cpus, [0, 1]);
        assert_eq!(settings.socket.group, Some(0));
        assert_eq!(settings.metrics, "[::1]:9".parse().ok());
        assert_eq!(settings.queue_num, QueueNum::Rings);
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
