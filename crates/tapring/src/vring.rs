//! The ring object that vhost-user-backend drives: every transition becomes a command to the ring's worker.
//!
//! # Theory of operation
//!
//! The crate has no hook for most of what a frontend may do to a ring, but it does all of it through [`VringT`]. So
//! [`HookVring`] wraps the crate's own ring, lets it keep the book from which the crate answers, and tells the worker:
//!
//! ```text
//! SET_VRING_ADDR ── set_queue_info ───────► SetAddresses if it is at work; else Stop, Start
//! SET_VRING_KICK ── set_kick ─────────────► SetKick
//!                └─ set_queue_ready(true) ► Start
//! SET_VRING_CALL ── set_call ─────────────► SetCall
//! SET_VRING_ENABLE─ set_enabled ──────────► Enable, Disable
//! GET_VRING_BASE ── set_queue_ready(false)► Stop; its answer goes into the wrapped ring
//!                ├─ VhostUserBackend::stop_vring: the backstop
//!                ├─ queue_next_avail        the answer to the frontend
//!                └─ set_kick, set_call(None)► SetKick, SetCall
//! ```
//!
//! Each hook waits until the worker acknowledges; that makes it a barrier, for the crate answers the frontend only
//! afterwards. No lock of the wrapped ring is held meanwhile, and the worker takes none ever.
//!
//! Two things the crate does to a running ring are not passed on: it reads the used index from guest memory and sets it,
//! which would clobber what the worker has not published yet, and it enables rings *before* it says with which features,
//! where a worker would take the header for the wrong one.
//!
//! The crate makes its rings without saying which is which, but in order, on the thread that makes the daemon object:
//! [`prepare`] lays the controls out for it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};

use tapring_queue::{Direction, QueueSize, RingAddresses, RingSetup};
use vhost_user_backend::{VringRwLock, VringState, VringStateGuard, VringStateMutGuard, VringT};
use virtio_queue::{Error as RingError, Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryAtomic, GuestMemoryMmap};

use crate::link::{Failure, Link};
use crate::worker::command::{Command, Reply};

/// The guest's memory as the crate holds it.
pub(crate) type Memory = GuestMemoryAtomic<GuestMemoryMmap<()>>;

thread_local! {
    static PREPARED: RefCell<VecDeque<Arc<RingControl>>> = const { RefCell::new(VecDeque::new()) };
}

/// Lays out the controls for the rings that the crate makes next on this thread, in the order of their indices.
pub(crate) fn prepare(controls: &[Arc<RingControl>]) {
    PREPARED.with_borrow_mut(|prepared| *prepared = controls.iter().cloned().collect());
}

/// What a hook knows of its ring beyond the wrapped one. Only the session's thread in the crate touches it.
#[derive(Debug)]
pub(crate) struct RingControl {
    link: Arc<Link>,
    pair: usize,
    direction: Direction,
    /// SET_VRING_ADDR has come.
    addressed: AtomicBool,
    /// The worker runs the ring.
    started: AtomicBool,
    /// Enabled before the features were known; the worker hears of it right behind them.
    enable_later: AtomicBool,
}

impl RingControl {
    /// One for each ring of the session's device.
    pub(crate) fn all(link: &Arc<Link>) -> Vec<Arc<Self>> {
        (0..link.device().offer().rings as usize)
            .map(|ring| Arc::new(Self::new(Arc::clone(link), ring)))
            .collect()
    }

    fn new(link: Arc<Link>, ring: usize) -> Self {
        Self {
            link,
            pair: ring / 2,
            direction: Direction::ALL[ring % 2],
            addressed: AtomicBool::new(false),
            started: AtomicBool::new(false),
            enable_later: AtomicBool::new(false),
        }
    }

    /// The features are known: an enable that waited for them goes out.
    pub(crate) fn on_features(&self) {
        if self.enable_later.swap(false, Ordering::Relaxed) {
            self.tell(Command::Enable(self.direction));
        }
    }

    /// Makes sure that the worker runs the ring no longer. Its position, if it did.
    pub(crate) fn stop(&self) -> Option<tapring_queue::RingPosition> {
        if !self.started.swap(false, Ordering::Relaxed) {
            return None;
        }
        match self.tell(Command::Stop(self.direction))? {
            Reply::Stopped(position) => Some(position),
            Reply::Done => None,
        }
    }

    fn set_enabled(&self, enabled: bool) {
        let later = enabled && !self.link.knows_features();
        self.enable_later.store(later, Ordering::Relaxed);
        match (later, enabled) {
            (true, _) => {}
            (false, true) => drop(self.tell(Command::Enable(self.direction))),
            (false, false) => drop(self.tell(Command::Disable(self.direction))),
        }
    }

    fn start(&self, setup: RingSetup) {
        if self.tell(Command::Start(self.direction, setup)).is_some() {
            self.started.store(true, Ordering::Relaxed);
            self.link.announce();
        }
    }

    fn tell(&self, command: Command) -> Option<Reply> {
        self.link.tell(self.pair, command)
    }

    fn is_started(&self) -> bool {
        self.started.load(Ordering::Relaxed)
    }
}

/// The crate's ring, and a line to the worker that really runs it.
#[derive(Clone)]
pub(crate) struct HookVring {
    book: VringRwLock<Memory>,
    control: Arc<RingControl>,
}

impl HookVring {
    /// Starts the ring if it has a kick (which makes it ready) and addresses, in whichever order they came.
    fn start_if_complete(&self) {
        let control = &self.control;
        if control.is_started() || !control.addressed.load(Ordering::Relaxed) {
            return;
        }
        let setup = {
            let state = self.book.get_ref();
            let queue = state.get_queue();
            queue.ready().then(|| setup(queue)).flatten()
        };
        if let Some(setup) = setup {
            control.start(setup);
        }
    }

    /// Stops the ring and writes down how far it came.
    fn stop(&self) {
        if let Some(position) = self.control.stop() {
            self.book.set_queue_next_avail(position.next_avail);
            self.book.set_queue_next_used(position.next_used);
        }
    }
}

/// `None` for a size that is no power of two, which neither the adapter nor the crate's ring lets through.
fn setup(queue: &Queue) -> Option<RingSetup> {
    Some(RingSetup {
        size: QueueSize::new(queue.size())?,
        addresses: addresses(queue.desc_table(), queue.avail_ring(), queue.used_ring()),
        next_avail: queue.next_avail(),
    })
}

const fn addresses(desc: u64, avail: u64, used: u64) -> RingAddresses {
    RingAddresses {
        desc: GuestAddress(desc),
        avail: GuestAddress(avail),
        used: GuestAddress(used),
    }
}

impl<'a> VringStateGuard<'a, Memory> for HookVring {
    type G = RwLockReadGuard<'a, VringState<Memory>>;
}

impl<'a> VringStateMutGuard<'a, Memory> for HookVring {
    type G = RwLockWriteGuard<'a, VringState<Memory>>;
}

impl VringT<Memory> for HookVring {
    fn new(memory: Memory, max_queue_size: u16) -> Result<Self, RingError> {
        let control = PREPARED
            .with_borrow_mut(VecDeque::pop_front)
            .ok_or(RingError::QueueNotReady)?;
        let book = VringRwLock::new(memory, max_queue_size)?;
        Ok(Self { book, control })
    }

    fn set_enabled(&self, enabled: bool) {
        self.book.set_enabled(enabled);
        self.control.set_enabled(enabled);
    }

    /// SET_VRING_ADDR. A ring that is at work moves without losing its place. One that is disabled starts anew, for its
    /// driver may have, as after RESET_OWNER, which stops no ring; if it has not, its used index in memory is its place.
    fn set_queue_info(&self, desc: u64, avail: u64, used: u64) -> Result<(), RingError> {
        self.book.set_queue_info(desc, avail, used)?;
        let control = &self.control;
        control.addressed.store(true, Ordering::Relaxed);
        if control.is_started() && self.book.get_ref().is_enabled() {
            let addresses = addresses(desc, avail, used);
            control.tell(Command::SetAddresses(control.direction, addresses));
        } else {
            self.stop();
            self.start_if_complete();
        }
        Ok(())
    }

    /// SET_VRING_BASE. On a ring that runs (its kick came first) it starts over from there.
    fn set_queue_next_avail(&self, base: u16) {
        self.control.stop();
        self.book.set_queue_next_avail(base);
        self.start_if_complete();
    }

    /// The worker reads the used index itself when a ring starts, and knows it better while one runs.
    fn set_queue_next_used(&self, index: u16) {
        if !self.control.is_started() {
            self.book.set_queue_next_used(index);
        }
    }

    /// SET_VRING_NUM. A ring that runs (its kick came first) goes on with the new size from where it is.
    fn set_queue_size(&self, size: u16) {
        if self.book.get_ref().get_queue().size() == size {
            return;
        }
        self.stop();
        self.book.set_queue_size(size);
        self.start_if_complete();
    }

    /// The features reach the workers whole, in [`Link::set_features`].
    fn set_queue_event_idx(&self, enabled: bool) {
        self.book.set_queue_event_idx(enabled);
    }

    fn set_queue_ready(&self, ready: bool) {
        self.book.set_queue_ready(ready);
        if ready {
            self.start_if_complete();
        } else {
            self.stop();
        }
    }

    /// The crate wants to see a kick in its own book, or it never makes the ring ready.
    fn set_kick(&self, file: Option<File>) {
        let control = &self.control;
        match file.as_ref().map(File::try_clone).transpose() {
            Ok(copy) => {
                let kick = copy.map(OwnedFd::from);
                control.tell(Command::SetKick(control.direction, kick));
            }
            Err(error) => control.link.fail(Failure::Descriptor(error)),
        }
        self.book.set_kick(file);
    }

    fn set_call(&self, file: Option<File>) {
        let call = file.map(OwnedFd::from);
        self.control
            .tell(Command::SetCall(self.control.direction, call));
    }

    fn set_err(&self, file: Option<File>) {
        let err = file.map(OwnedFd::from);
        self.control
            .tell(Command::SetErr(self.control.direction, err));
    }

    fn get_ref(&self) -> <Self as VringStateGuard<'_, Memory>>::G {
        self.book.get_ref()
    }

    fn get_mut(&self) -> <Self as VringStateMutGuard<'_, Memory>>::G {
        self.book.get_mut()
    }

    fn queue_next_avail(&self) -> u16 {
        self.book.queue_next_avail()
    }

    fn queue_used_idx(&self) -> Result<u16, RingError> {
        self.book.queue_used_idx()
    }

    // The crate calls what follows from its event threads only, and it has none.

    fn add_used(&self, desc_index: u16, len: u32) -> Result<(), RingError> {
        self.book.add_used(desc_index, len)
    }

    fn signal_used_queue(&self) -> io::Result<()> {
        self.book.signal_used_queue()
    }

    fn enable_notification(&self) -> Result<bool, RingError> {
        self.book.enable_notification()
    }

    fn disable_notification(&self) -> Result<(), RingError> {
        self.book.disable_notification()
    }

    fn needs_notification(&self) -> Result<bool, RingError> {
        self.book.needs_notification()
    }

    fn read_kick(&self) -> io::Result<bool> {
        self.book.read_kick()
    }
}
