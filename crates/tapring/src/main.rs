//! The `tapring` command.
fn main() {}
