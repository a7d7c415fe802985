//! The virtio-net header in front of each frame (virtio 1.3 §5.1.6).
//!
//! ```text
//! flags u8, gso_type u8, hdr_len u16, gso_size u16, csum_start u16, csum_offset u16, num_buffers u16
//! ```
//!
//! It has 12 bytes with VERSION_1 or mergeable buffers; a legacy driver without either leaves num_buffers out and has 10
//! ([`Features::header_bytes`](crate::Features::header_bytes)). Towards the tap it always has 12.

/// Bytes of the header, but for legacy drivers.
pub const HEADER_BYTES: usize = 12;

/// Bytes of a legacy driver's header without mergeable buffers (§5.1.6.1).
pub(crate) const LEGACY_HEADER_BYTES: usize = 10;

/// Where num_buffers lies in it.
pub(crate) const NUM_BUFFERS_AT: usize = 10;

/// VIRTIO_NET_HDR_F_NEEDS_CSUM: the checksum is partial, the device is to complete it.
const NEEDS_CSUM: u8 = 1;
/// VIRTIO_NET_HDR_GSO_NONE.
const GSO_NONE: u8 = 0;

/// A frame on its way to the tap carries this header: nothing to do but send it.
pub(crate) const PLAIN_HEADER: [u8; HEADER_BYTES] = [0; HEADER_BYTES];

/// Whether a transmitted header asks for nothing that was not negotiated. No offload is offered
/// yet, so a frame with a partial checksum or one to be segmented cannot be sent as it is meant.
pub(crate) const fn is_plain(header: &[u8; HEADER_BYTES]) -> bool {
    header[0] & NEEDS_CSUM == 0 && header[1] == GSO_NONE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offloads_that_were_not_negotiated_are_not_plain() {
        assert!(is_plain(&PLAIN_HEADER));
        assert!(
            is_plain(&[2, 0, 54, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            "DATA_VALID says nothing"
        );
        assert!(!is_plain(&[1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0]));
        assert!(!is_plain(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
        assert!(
            !is_plain(&[0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            "ECN without GSO"
        );
    }
}
