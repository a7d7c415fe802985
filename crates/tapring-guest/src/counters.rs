//! What a queue counted: plain numbers, read between operations.

/// Counters of one virtqueue since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames made available (TX) or received (RX).
    pub frames: u64,
    /// Their bytes, without the virtio-net header.
    pub bytes: u64,
    /// Chains taken back.
    pub chains: u64,
    /// Kicks written to the eventfd.
    pub kicks_sent: u64,
    /// Kick decisions that said no.
    pub kicks_suppressed: u64,
    /// Kicks that the eventfd did not take (its counter was full; the device has one to read anyway).
    pub kicks_failed: u64,
    /// Calls counted by the eventfd.
    pub calls: u64,
    /// Wake-ups by a call that found less than was waited for.
    pub spurious_calls: u64,
    /// RX: frames over more than one buffer.
    pub merged_frames: u64,
    /// RX: chains given back without a byte in them.
    pub returned_empty: u64,
}
