//! What options and keys may be.
//!
//! An option on the command line and the key of the same name, in the file or on the control socket, take the same words:
//! [`Value::read`] reads both, so that both refuse the same with the same words. A file may write a number or a truth without
//! quotes.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};
use tapring_io::is_tap_name;
use tapring_queue::{Budget, BusyPoll, BusyPollInterrupt, KickRearm, RxWake, TxPoll};

use crate::cpus;
use crate::features::QueueNum;
use crate::settings::{MAX_QUEUE_PAIRS, Poll};

/// Something that one word says.
pub(crate) trait Value: Sized {
    /// The words there are, for whoever used another.
    const ALLOWED: &'static str;

    /// Whether a number needs no quotes in a file.
    const NUMBERS: bool = true;

    /// Reads a word; an error says what to write instead.
    fn read(word: &str) -> Result<Self, String>;
}

/// A value in a file or a request, whose absence is for `#[serde(default)]` to fill in.
pub(crate) fn word<'de, D: Deserializer<'de>, V: Value>(source: D) -> Result<Option<V>, D::Error> {
    source.deserialize_any(Word(PhantomData)).map(Some)
}

/// A table in a file or a request. serde's own reading of a struct takes a list as well, by position.
pub(crate) fn table<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    source: D,
) -> Result<T, D::Error> {
    source.deserialize_map(Table(PhantomData))
}

/// Shows a value as it may be written: numbers without quotes.
pub(crate) fn show<S: Serializer>(value: &impl fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    let word = value.to_string();
    match word.parse::<u64>() {
        Ok(number) => number.serialize(to),
        Err(_) => word.serialize(to),
    }
}

/// Permissions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode(pub(crate) u32);

/// A group of the system, by its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group(pub(crate) u32);

/// The name of an interface. It is checked here as well as when it is opened, so that a typing error is a matter of usage.
#[derive(Clone, Debug)]
pub(crate) struct InterfaceName(pub(crate) String);

/// A tap, by name, or a macvtap, by its device.
#[derive(Clone, Debug)]
pub(crate) enum TapWord {
    Name(String),
    Device(PathBuf),
}

/// Numbers of file descriptors, each once.
#[derive(Clone, Debug)]
pub(crate) struct Descriptors(pub(crate) Vec<i32>);

/// A number of queue pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePairs(pub(crate) u16);

/// A number of descriptors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingSize(pub(crate) u16);

/// The number of a CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu(pub(crate) u32);

/// Numbers of CPUs.
#[derive(Clone, Debug)]
pub(crate) struct CpuList(pub(crate) Vec<u32>);

/// Where metrics are served, or nowhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetricsAddress(pub(crate) Option<SocketAddr>);

impl Value for Mode {
    const ALLOWED: &'static str = "octal permissions, such as \"0660\"";

    /// TOML's 0o660 arrives as 432.
    const NUMBERS: bool = false;

    fn read(word: &str) -> Result<Self, String> {
        let mode = u32::from_str_radix(word, 8).ok();
        allowed(mode.filter(|mode| *mode <= 0o777).map(Self))
    }
}

impl Value for Group {
    const ALLOWED: &'static str = "the name or the number of a group";

    fn read(word: &str) -> Result<Self, String> {
        let groups = fs::read_to_string("/etc/group").unwrap_or_default();
        let by_name = groups.lines().find_map(|line| {
            let mut fields = line.split(':');
            let found = fields.next() == Some(word);
            fields.nth(1).filter(|_| found)
        });
        let number = by_name.unwrap_or(word).parse().map(Self);
        number.map_err(|_| format!("no such group: give {}", Self::ALLOWED))
    }
}

impl Value for InterfaceName {
    const ALLOWED: &'static str =
        "an interface name: 1 to 15 bytes, without blanks, `/`, `:` and `%`";

    fn read(word: &str) -> Result<Self, String> {
        allowed(is_tap_name(word).then(|| Self(word.to_owned())))
    }
}

impl Value for TapWord {
    const ALLOWED: &'static str = "an interface name: 1 to 15 bytes, without blanks, `/`, `:` and `%`, or a macvtap's device, such as /dev/tap5";

    fn read(word: &str) -> Result<Self, String> {
        let tap = if word.starts_with('/') {
            Some(Self::Device(word.into()))
        } else {
            is_tap_name(word).then(|| Self::Name(word.to_owned()))
        };
        allowed(tap)
    }
}

impl Value for Descriptors {
    const ALLOWED: &'static str = "numbers of file descriptors from 3 on, such as \"5,6\"";

    fn read(word: &str) -> Result<Self, String> {
        let fds: Result<Vec<i32>, _> = word.split(',').map(|fd| fd.trim().parse()).collect();
        let fds = fds.unwrap_or_default();
        let once = |fds: &Vec<i32>| fds.iter().collect::<BTreeSet<_>>().len() == fds.len();
        let usable = |fds: &Vec<i32>| !fds.is_empty() && fds.iter().all(|fd| *fd >= 3);
        allowed(Some(fds).filter(usable).filter(once).map(Self))
    }
}

impl Value for QueuePairs {
    const ALLOWED: &'static str = "a number of pairs from 1 to 32";

    fn read(word: &str) -> Result<Self, String> {
        let pairs = word.parse().ok();
        allowed(
            pairs
                .filter(|pairs| (1..=MAX_QUEUE_PAIRS).contains(pairs))
                .map(Self),
        )
    }
}

const _: () = assert!(MAX_QUEUE_PAIRS == 32);

impl Value for RingSize {
    const ALLOWED: &'static str = "a power of two from 2 to 32768";

    fn read(word: &str) -> Result<Self, String> {
        let size = word.parse::<u16>().ok();
        allowed(
            size.filter(|size| size.is_power_of_two() && *size >= 2)
                .map(Self),
        )
    }
}

impl Value for Cpu {
    const ALLOWED: &'static str = "the number of a CPU";

    fn read(word: &str) -> Result<Self, String> {
        allowed(word.parse().ok().map(Self))
    }
}

impl Value for CpuList {
    const ALLOWED: &'static str = "numbers and ranges of CPUs, such as \"0-3,6\"";

    fn read(word: &str) -> Result<Self, String> {
        cpus::parse(word)
            .map(Self)
            .map_err(|error| error.to_string())
    }
}

impl Value for MetricsAddress {
    const ALLOWED: &'static str = "an address and a port, such as 127.0.0.1:9650, or off";

    fn read(word: &str) -> Result<Self, String> {
        match word {
            "off" => Ok(Self(None)),
            address => allowed(address.parse().ok().map(|address| Self(Some(address)))),
        }
    }
}

impl Value for bool {
    const ALLOWED: &'static str = "true or false";

    fn read(word: &str) -> Result<Self, String> {
        allowed(word.parse().ok())
    }
}

impl Value for Poll {
    const ALLOWED: &'static str = "auto, inline or sqpoll";

    fn read(word: &str) -> Result<Self, String> {
        allowed(Self::from_str(word, false).ok())
    }
}

impl Value for QueueNum {
    const ALLOWED: &'static str = "auto, pairs or rings";

    fn read(word: &str) -> Result<Self, String> {
        allowed(Self::from_str(word, false).ok())
    }
}

/// The policies know their words.
macro_rules! policies {
    ($($policy:ty),+) => {
        $(impl Value for $policy {
            const ALLOWED: &'static str = <$policy>::ALLOWED;

            fn read(word: &str) -> Result<Self, String> {
                allowed(word.parse().ok())
            }
        })+
    };
}

policies!(
    KickRearm,
    BusyPoll,
    BusyPollInterrupt,
    TxPoll,
    RxWake,
    Budget
);

fn allowed<V: Value>(value: Option<V>) -> Result<V, String> {
    value.ok_or_else(|| format!("give {}", V::ALLOWED))
}

/// Reads one word, in quotes or not.
struct Word<V>(PhantomData<V>);

impl<V: Value> Visitor<'_> for Word<V> {
    type Value = V;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(V::ALLOWED)
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<V, E> {
        V::read(word).map_err(|error| E::custom(format!("invalid value '{word}': {error}")))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<V, E> {
        match V::NUMBERS {
            true => self.visit_str(&number.to_string()),
            false => Err(E::invalid_type(Unexpected::Unsigned(number), &self)),
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<V, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => self.visit_str(&number.to_string()),
        }
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<V, E> {
        self.visit_str(if truth { "true" } else { "false" })
    }
}

/// Reads a table, and nothing else.
struct Table<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Table<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("settings by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}
