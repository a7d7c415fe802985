//! tapring's benches.
