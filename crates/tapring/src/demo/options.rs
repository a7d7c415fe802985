//! The command line of the demo, and the time of a run that follows from it.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::placement::Placement;
use super::sweep;
use crate::cpus;

/// Shorter runs measure how they begin and end.
const SHORTEST_RUN: Duration = Duration::from_millis(10);

/// The kernel series' guest.
const GUEST_COST_NS: u64 = 1500;

/// Options of `demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Seconds of traffic in all, the same for each line of the output; a run takes at least 10 ms
    #[arg(long, value_name = "N", default_value_t = 28, allow_negative_numbers = true,
          value_parser = number::<1, 3600>)]
    pub(super) seconds: u64,

    /// Rounds of old against new, of which medians are shown
    #[arg(long, value_name = "N", default_value_t = 5, allow_negative_numbers = true,
          value_parser = number::<1, 100>)]
    pub(super) rounds: u64,

    /// What each kick costs the guest on top of the system call, in µs: stands for the exit of a virtual machine
    #[arg(long, value_name = "N", default_value_t = 2, allow_negative_numbers = true,
          value_parser = number::<0, 1000>)]
    exit_cost_us: u64,

    /// What each datagram costs the guest that sends it, in ns [default: 1500; 2250 where worker and receiver share a CPU]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = number::<0, 1_000_000>)]
    guest_cost_ns: Option<u64>,

    /// What each datagram costs the guest that is flooded, in ns
    #[arg(long, value_name = "N", default_value_t = 3500, allow_negative_numbers = true,
          value_parser = number::<0, 1_000_000>)]
    rx_guest_cost_ns: u64,

    /// Descriptors of the guest's rings, a power of two from 64 to 1024; of the receiveq's, 256 are used
    ///
    /// A guest that sleeps on a full ring is called when three quarters are done. With 256, the rest lasts no longer than an
    /// idle CPU of a virtual machine may take to wake up; a ring that runs dry for that reason says nothing about policies.
    #[arg(long, value_name = "N", default_value_t = 1024, allow_negative_numbers = true, value_parser = ring_size)]
    pub(super) queue_size: u16,

    /// Run these alone; may be repeated
    #[arg(long, value_name = "NAME", value_enum)]
    section: Vec<Section>,

    /// Instead: old, new and busy_poll_us=auto over what a kick and a datagram cost the guest
    #[arg(long, conflicts_with = "section")]
    pub(super) sweep: bool,

    /// CPUs of guest, worker and receiver, such as 0,1,2 [default: the guest's own, then the worker's own]
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    pub(super) cpus: Option<Three>,

    /// Print the figures as one JSON document
    #[arg(long)]
    pub(super) json: bool,
}

/// Three CPUs; a bare array means a repeated option to clap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Three(pub(super) [u32; 3]);

/// A part of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Section {
    /// Guest to host, as fast as it goes
    Tx,
    /// Host to guest, as fast as it goes
    Rx,
    /// Kicks on before the batch is sent, or after
    DeferredRearm,
    /// An interrupted busy poll asks for kicks, or looks again
    BusyPoll,
    /// A receiveq out of buffers goes on at the first, at half or at all
    RxWake,
}

impl Section {
    /// Runs of it in a round.
    const fn runs(self) -> u32 {
        match self {
            Self::Tx | Self::Rx => 1,
            Self::BusyPoll => 2,
            Self::RxWake => 3,
            Self::DeferredRearm => 4,
        }
    }
}

impl DemoArgs {
    pub(super) const fn exit_cost(&self) -> Duration {
        Duration::from_micros(self.exit_cost_us)
    }

    /// The kernel series' guest made a datagram every 1.5 µs, and its host was faster than that: only then is the ring ever
    /// empty, and only then do policies differ. A host whose receiver has to wait for the worker is slower, and the guest
    /// has to be as well, or the section would show a full ring and nothing else. The sweep shows both.
    pub(super) fn guest_cost(&self, placement: &Placement) -> Duration {
        let series = if placement.host_shares() {
            GUEST_COST_NS * 3 / 2
        } else {
            GUEST_COST_NS
        };
        Duration::from_nanos(self.guest_cost_ns.unwrap_or(series))
    }

    pub(super) const fn rx_guest_cost(&self) -> Duration {
        Duration::from_nanos(self.rx_guest_cost_ns)
    }

    pub(super) fn has(&self, section: Section) -> bool {
        self.section.is_empty() || self.section.contains(&section)
    }

    pub(super) fn rounds(&self) -> usize {
        usize::try_from(self.rounds).unwrap_or(usize::MAX)
    }

    /// The time of a run, if all of them are to be within the total.
    pub(super) fn run_time(&self) -> Duration {
        let runs = u32::try_from(self.rounds).unwrap_or(u32::MAX) * self.runs_a_round();
        let time = Duration::from_secs(self.seconds) / runs.max(1);
        time.max(SHORTEST_RUN)
    }

    fn runs_a_round(&self) -> u32 {
        if self.sweep {
            return sweep::RUNS;
        }
        let wanted = Section::value_variants()
            .iter()
            .filter(|section| self.has(**section));
        wanted.map(|section| section.runs()).sum()
    }
}

/// A number that says what it may be. clap's own range says that of numbers alone, and not of `2s`.
fn number<const LEAST: u64, const MOST: u64>(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if (LEAST..=MOST).contains(&number) => Ok(number),
        _ => Err(format!("give a number from {LEAST} to {MOST}")),
    }
}

fn ring_size(text: &str) -> Result<u16, String> {
    match text.parse::<u16>() {
        Ok(size) if size.is_power_of_two() && (64..=1024).contains(&size) => Ok(size),
        _ => Err("give a power of two from 64 to 1024".to_owned()),
    }
}

fn parse_cpus(text: &str) -> Result<Three, String> {
    let cpus = cpus::parse(text).map_err(|error| error.to_string())?;
    let three = cpus.try_into();
    three.map(Three).map_err(|_| {
        "give three CPUs, of guest, worker and receiver; they may be the same".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        args: DemoArgs,
    }

    fn parse(words: &str) -> Result<DemoArgs, clap::Error> {
        let words = std::iter::once("demo").chain(words.split_whitespace());
        Words::try_parse_from(words).map(|words| words.args)
    }

    #[test]
    fn time_is_split_over_all_runs() {
        let args = parse("--seconds 11 --rounds 2").expect("right");
        assert_eq!(args.run_time(), Duration::from_millis(500));
        let args = parse("--seconds 4 --rounds 2 --section busy_poll").expect("right");
        assert_eq!(args.run_time(), Duration::from_secs(1));
        assert!(args.has(Section::BusyPoll) && !args.has(Section::Tx));
        let args = parse("--seconds 1 --rounds 100").expect("right");
        assert_eq!(args.run_time(), SHORTEST_RUN);
    }

    #[test]
    fn nonsense_is_refused_with_what_is_allowed() {
        for (words, allowed) in [
            ("--rounds 0", "from 1 to 100"),
            ("--exit-cost-us 2000000", "from 0 to 1000"),
            ("--guest-cost-ns 2000000000", "from 0 to 1000000"),
            ("--guest-cost-ns -1", "from 0 to 1000000"),
            ("--rx-guest-cost-ns 1.5", "from 0 to 1000000"),
            ("--exit-cost-us 2s", "from 0 to 1000"),
            ("--seconds 0", "from 1 to 3600"),
            ("--queue-size 100", "from 64 to 1024"),
            ("--queue-size 2048", "from 64 to 1024"),
            ("--section tcp", "deferred_rearm"),
            ("--section tx --sweep", "--sweep"),
            ("--cpus 0,1", "three CPUs"),
            ("--cpus x", "0-3,6"),
        ] {
            let line = parse(words).expect_err(words).to_string();
            assert!(line.contains(allowed), "{words}: {line}");
        }
    }
}
