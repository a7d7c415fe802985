//! A vhost-user-net backend over io_uring.
#![forbid(unsafe_code)]

pub mod worker;
