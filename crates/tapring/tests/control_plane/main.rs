//! The control plane between real frontends' messages and pretended workers: everything but frames, in one process.

mod bad_messages;
mod frontend;
mod harness;
mod hooks;
mod policy;
mod sessions;
mod transcripts;
mod worker;
