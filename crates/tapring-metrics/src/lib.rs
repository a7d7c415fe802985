//! The metric table, per-queue counters and the /metrics endpoint.
