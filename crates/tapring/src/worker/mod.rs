//! One worker per queue pair: the data path.

pub mod command;
pub mod handle;
