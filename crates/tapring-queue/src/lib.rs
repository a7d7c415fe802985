//! The queue engine: split virtqueues in, frames out, and the kick state machine.
