//! Changes to a running device: by the control socket, and by SIGHUP.
//!
//! # Theory of operation
//!
//! ```text
//!  tapring policy ──► connection ──┐                      a thread a change: workers are waited for
//!  tapring policy ──► connection ──┼──► LivePolicy ── one at a time ──► Device::set_policy ──► workers
//!  SIGHUP ──► reload (the file) ───┘         └─ answers when all of them have it in force
//! ```
//!
//! All of it is on the control thread but what may wait: for a worker, for a file. A client sends a JSON object a line and
//! gets one a line:
//!
//! ```text
//!  {"policy":null}                                    {"policy":{"kick_rearm":"after-completion","busy_poll_us":"auto",...}}
//!  {"set_policy":{"busy_poll_us":50,"rx_wake":8}}     {"policy":{...}}: as it is now, in force in every worker
//!  anything else                                      {"error":"what is wrong, and what is allowed"}
//! ```
//!
//! A change holds as a whole or not at all. Nobody can hurt the others: a line may have `LONGEST_REQUEST` bytes, the
//! next one is not read before the answer to the last is taken, and where there are `MOST_CLIENTS` and one more comes,
//! the oldest goes. Idle, there is no timer.

pub mod client;
mod connection;
mod live;
mod protocol;
mod reload;

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::log_limit::LogLimit;

pub(crate) use live::{LivePolicy, Refusal};
pub(crate) use reload::reload_at_hangups;

static NOT_ACCEPTED: LogLimit = LogLimit::per_minute(3);

/// Serves clients for as long as the runtime runs. Must be polled on it.
pub(crate) async fn serve(listener: UnixListener, live: Rc<LivePolicy>) {
    let mut clients = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                make_room(&mut clients);
                let served = connection::serve(stream, Rc::clone(&live));
                clients.push_back(tokio_uring::spawn(served));
            }
            Err(error) => {
                report(&error);
                tokio::time::sleep(AFTER_FAILED_ACCEPT).await;
            }
        }
    }
}

/// Forgets the clients that have gone and, if that is not enough, cuts the oldest off.
fn make_room(clients: &mut VecDeque<JoinHandle<()>>) {
    clients.retain(|client| !client.is_finished());
    if clients.len() >= MOST_CLIENTS
        && let Some(oldest) = clients.pop_front()
    {
        oldest.abort();
    }
}

fn report(error: &io::Error) {
    if let Some(suppressed) = NOT_ACCEPTED.pass() {
        warn!(
            "cannot accept a client of the control socket: {error}: raise LimitNOFILE{suppressed}"
        );
    }
}

/// A whole policy has 170 bytes.
const LONGEST_REQUEST: usize = 4096;

/// Operators and their scripts.
const MOST_CLIENTS: usize = 16;

/// Long enough not to spin.
const AFTER_FAILED_ACCEPT: Duration = Duration::from_millis(200);
