//! tapring's tests.
