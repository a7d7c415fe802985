//! What users of such daemons have reported, tried on ours: the control plane, the life of rings and sessions, the tap,
//! and what an operator sees. Each test bears the number of its case in the collection of field reports.
//!
//! ```text
//! rings   restarts, resumes, sizes                tap       down, gone, missing, not ours
//! live    what a running ring is told             messages  odd sets, honest offers
//! life    frontends that come and go              refused   bad and slow messages
//! ends    signals in every state                  watch     log, metrics
//! socket  its file, its rights                    idle      what of a CPU is used
//! memory  maps that change under load
//! ```
#![forbid(unsafe_code)]

mod ends;
mod idle;
mod life;
mod live;
mod memory;
mod messages;
mod mini;
mod raw;
mod refused;
mod rings;
mod socket;
mod tap;
mod watch;

use tapring_tests::Need;

/// What nearly every scenario here needs.
const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip")];
