//! A pretended worker: acknowledges commands and remembers them.

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tapring::worker::command::{Command, Reply};
use tapring::worker::handle::{Envelope, WorkerHandle};
use tapring_queue::RingPosition;

/// Generous: what is waited for comes within milliseconds.
const LIMIT: Duration = Duration::from_secs(10);

/// Where every ring is when it stops.
pub(crate) const POSITION: RingPosition = RingPosition {
    next_avail: 4711,
    next_used: 4242,
};

/// What the workers of a device were told, in order: `pair: command`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Book {
    state: Arc<(Mutex<Vec<String>>, Condvar)>,
    deaf_to: Arc<Mutex<Option<&'static str>>>,
}

impl Book {
    /// Everything so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.state.0.lock().expect("no panic").clone()
    }

    /// Waits until a line starts like this for the n-th time.
    pub(crate) fn wait(&self, line: &str, times: usize) {
        let began = Instant::now();
        let mut lines = self.state.0.lock().expect("no panic");
        while lines.iter().filter(|known| known.starts_with(line)).count() < times {
            assert!(
                began.elapsed() < LIMIT,
                "never {times} x {line}: {lines:#?}"
            );
            lines = self.state.1.wait_timeout(lines, LIMIT).expect("no panic").0;
        }
    }

    /// From now on no worker answers this command.
    pub(crate) fn deaf_to(&self, command: Option<&'static str>) {
        *self.deaf_to.lock().expect("no panic") = command;
    }

    /// Starts a worker that writes here.
    pub(crate) fn worker(&self, pair: usize) -> io::Result<WorkerHandle> {
        let (handle, commands, doorbell) = WorkerHandle::new()?;
        let book = self.clone();
        thread::Builder::new()
            .name(format!("pretended/{pair}"))
            .spawn(move || {
                let _doorbell = doorbell;
                for envelope in commands {
                    if book.answer(pair, envelope) {
                        return;
                    }
                }
            })?;
        Ok(handle)
    }

    /// Whether that was the last command.
    fn answer(&self, pair: usize, envelope: Envelope) -> bool {
        let Envelope { command, reply, .. } = envelope;
        let deaf = *self.deaf_to.lock().expect("no panic") == Some(command.name());
        self.write(format!("{pair}: {}", shown(&command)));
        if deaf {
            // A stuck worker keeps its commands; a lost sender would say that it has ended.
            std::mem::forget(reply);
            return false;
        }
        let answer = match command {
            Command::Stop(_) => Reply::Stopped(POSITION),
            _ => Reply::Done,
        };
        let _ = reply.send(Ok(answer));
        matches!(command, Command::Exit)
    }

    fn write(&self, line: String) {
        self.state.0.lock().expect("no panic").push(line);
        self.state.1.notify_all();
    }
}

fn shown(command: &Command) -> String {
    let name = command.name();
    match command {
        Command::SetFeatures(features) => format!("{name} {:#x}", features.0),
        Command::SetMemory(memory) => {
            use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};
            let regions = memory.iter().map(|region| format!("{:#x}", region.len()));
            format!("{name} {}", regions.collect::<Vec<_>>().join(" "))
        }
        Command::Start(direction, setup) => format!(
            "{name} {direction} size {} desc {:#x} avail {:#x} used {:#x} next {}",
            setup.size.as_u16(),
            setup.addresses.desc.0,
            setup.addresses.avail.0,
            setup.addresses.used.0,
            setup.next_avail
        ),
        Command::SetAddresses(direction, addresses) => {
            format!("{name} {direction} desc {:#x}", addresses.desc.0)
        }
        Command::SetKick(direction, descriptor)
        | Command::SetCall(direction, descriptor)
        | Command::SetErr(direction, descriptor) => {
            format!("{name} {direction} {}", descriptor.is_some())
        }
        Command::Enable(direction) | Command::Disable(direction) | Command::Stop(direction) => {
            format!("{name} {direction}")
        }
        Command::SetPolicy(policy) => format!("{name} {}", policy.kick_rearm),
        Command::Begin | Command::Reset | Command::Ping | Command::Exit => name.to_owned(),
    }
}
