//! A backend for tests: a loopback "network card" that puts every frame the guest sends into the guest's receive buffers.
//!
//! Written by hand over the `vhost` crate's request handler and nothing else of this repository. It sleeps on the kick eventfds
//! and only on them, so a kick that the guest owes and does not send hangs the test.
#![allow(dead_code, reason = "each test binary uses its own part")]

mod requests;
mod vring;

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use vhost::vhost_user::BackendReqHandler;
use vm_memory::{GuestAddress, GuestMemoryMmap};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub(crate) use vring::Vring;

/// What the backend offers and holds.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) features: u64,
    pub(crate) acked: u64,
    pub(crate) slots: bool,
    /// Kicks that woke the device.
    pub(crate) kicks: u64,
    /// Messages in the order in which they came.
    pub(crate) messages: Vec<String>,
    pub(crate) memory: GuestMemoryMmap<()>,
    /// User address, guest physical address and length of each region.
    pub(crate) regions: Vec<(u64, u64, u64)>,
    pub(crate) vrings: Vec<Vring>,
    /// Answer no message any more.
    pub(crate) mute: bool,
}

/// A listening backend. Dropping it leaves its threads to the end of the test.
#[derive(Debug)]
pub(crate) struct Double {
    pub(crate) socket: PathBuf,
    state: Arc<Mutex<State>>,
    _folder: tempfile::TempDir,
}

impl Double {
    /// Offers `features` and serves one connection after the other.
    pub(crate) fn start(features: u64, pairs: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("double.sock");
        let state = State {
            features,
            acked: 0,
            slots: true,
            kicks: 0,
            messages: Vec::new(),
            memory: GuestMemoryMmap::new(),
            regions: Vec::new(),
            vrings: (0..pairs * 2).map(|_| Vring::default()).collect(),
            mute: false,
        };
        let state = Arc::new(Mutex::new(state));
        serve(&socket, &state);
        Self {
            socket,
            state,
            _folder: folder,
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The messages so far, without rings.
    pub(crate) fn message_names(&self) -> Vec<String> {
        let name = |message: &String| message.split(' ').next().unwrap().to_owned();
        self.state().messages.iter().map(name).collect()
    }
}

fn serve(socket: &Path, state: &Arc<Mutex<State>>) {
    let listener = UnixListener::bind(socket).unwrap();
    let state = Arc::clone(state);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let changed = Arc::new(EventFd::new(EFD_NONBLOCK).unwrap());
            let handler = requests::Requests {
                state: Arc::clone(&state),
                changed: Arc::clone(&changed),
            };
            let mut requests =
                BackendReqHandler::from_stream(stream.unwrap(), Arc::new(Mutex::new(handler)));
            let device = thread::spawn({
                let (state, changed) = (Arc::clone(&state), Arc::clone(&changed));
                move || run_device(&state, &changed)
            });
            while requests.handle_request().is_ok() {}
            state.lock().unwrap().end_session();
            changed.write(STOP).unwrap();
            device.join().unwrap();
        }
    });
}

/// Written to the change eventfd at the end of a session; single changes add 1.
const STOP: u64 = 1 << 32;

/// Moves frames until there is nothing to move, asks for kicks, looks once more, sleeps.
fn run_device(state: &Mutex<State>, changed: &EventFd) {
    loop {
        let epoll = Epoll::new().unwrap();
        watch(&epoll, changed.as_raw_fd(), 0);
        let mut held = state.lock().unwrap();
        while held.turn() || held.arm() {}
        for (n, vring) in (1..).zip(&held.vrings) {
            if let (true, Some(kick)) = (vring.enabled, &vring.kick) {
                watch(&epoll, kick.as_raw_fd(), n);
            }
        }
        drop(held);
        let mut events = [EpollEvent::default(); 8];
        let ready = match epoll.wait(-1, &mut events) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            ready => ready.unwrap(),
        };
        let mut held = state.lock().unwrap();
        for event in &events[..ready] {
            if event.data() > 0 {
                held.take_kick(usize::try_from(event.data()).unwrap() - 1);
            } else if changed.read().unwrap_or(0) >= STOP {
                return;
            }
        }
    }
}

fn watch(epoll: &Epoll, fd: i32, data: u64) {
    epoll
        .ctl(
            ControlOperation::Add,
            fd,
            EpollEvent::new(EventSet::IN, data),
        )
        .unwrap();
}

impl State {
    /// One frame per pair from TX to RX; false if nothing moved.
    fn turn(&mut self) -> bool {
        let mut moved = false;
        for pair in 0..self.vrings.len() / 2 {
            moved |= self.loop_one(pair);
        }
        moved
    }

    fn loop_one(&mut self, pair: usize) -> bool {
        let (memory, acked) = (&self.memory, self.acked);
        let [rx, tx] = &mut self.vrings[pair * 2..pair * 2 + 2] else {
            unreachable!()
        };
        let Some((head, frame)) = tx.peek_readable(memory) else {
            return false;
        };
        if !rx.deliver(memory, &frame, acked) {
            return false;
        }
        tx.next_avail = tx.next_avail.wrapping_add(1);
        tx.publish(memory, &[(head, 0)], acked);
        true
    }

    /// Asks for kicks on all rings; true if something came meanwhile.
    fn arm(&mut self) -> bool {
        let before: Vec<_> = self
            .vrings
            .iter()
            .map(|vring| vring.pending(&self.memory))
            .collect();
        for vring in self.vrings.iter().filter(|vring| vring.runs()) {
            vring.ask_for_kick(&self.memory);
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let after: Vec<_> = self
            .vrings
            .iter()
            .map(|vring| vring.pending(&self.memory))
            .collect();
        before != after
    }

    fn take_kick(&mut self, ring: usize) {
        if self.vrings[ring].read_kick() {
            self.kicks += 1;
        }
    }

    fn end_session(&mut self) {
        self.vrings
            .iter_mut()
            .for_each(|vring| *vring = Vring::default());
        self.memory = GuestMemoryMmap::new();
        self.regions.clear();
    }

    /// Guest physical address of a user address.
    fn translate(&self, user: u64) -> Option<u64> {
        let inside =
            |&&(start, _, bytes): &&(u64, u64, u64)| (start..start + bytes).contains(&user);
        let &(start, physical, _) = self.regions.iter().find(inside)?;
        Some(user - start + physical)
    }
}

/// Shorthand.
pub(crate) const fn at(address: u64) -> GuestAddress {
    GuestAddress(address)
}
