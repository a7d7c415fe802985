//! A vhost-user-net backend over io_uring.
