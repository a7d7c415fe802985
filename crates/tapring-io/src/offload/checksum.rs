//! The checksum of the Internet (RFC 1071), and that of SCTP (RFC 9260, appendix A).

/// IPPROTO_SCTP, and where its checksum lies.
const SCTP: u8 = 132;
const SCTP_CHECKSUM_AT: usize = 8;

/// Sum of `bytes` as 16-bit words in network order, the last one padded with zero; not folded.
///
/// Four bytes at a time: the sum of the two halves of a word is what is wanted, and a u64 has room for 2^32 words.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let sum: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_be_bytes(*word)))
        .sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum + u64::from(u32::from_be_bytes(last))
}

/// The checksum of what adds up to `sum`. Zero is said as 0xffff, for zero means none in UDP, and in the others it is equal.
#[allow(clippy::cast_possible_truncation)] // of what was folded to 16 bits
pub(super) const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !(sum as u16) {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// Completes the partial checksum at `start + offset`, which covers everything from `start` on. `None` when it does not lie
/// in the frame.
///
/// What stands there already is the sum of the pseudo-header, so that to add up all of it is all there is to do
/// (skb_checksum_help). SCTP has none and another algorithm, which the header has no word for.
pub(super) fn complete(frame: &mut [u8], start: usize, offset: usize) -> Option<()> {
    let is_sctp = offset == SCTP_CHECKSUM_AT && protocol(frame, start) == Some(SCTP);
    let covered = frame.get_mut(start..)?;
    if is_sctp {
        let checksum = crc32c(covered);
        covered
            .get_mut(offset..offset + 4)?
            .copy_from_slice(&checksum.to_le_bytes());
        return Some(());
    }
    let checksum = fold(sum(covered));
    covered
        .get_mut(offset..offset + 2)?
        .copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

/// The protocol of the IP packet whose payload begins at `start`, if its header is a plain one.
fn protocol(frame: &[u8], start: usize) -> Option<u8> {
    let version = |at: usize| frame.get(at).map(|byte| byte >> 4);
    let behind = |bytes, wanted| {
        let at = start.checked_sub(bytes)?;
        (version(at) == Some(wanted)).then_some(at)
    };
    let v4 = behind(20, 4).map(|at| at + 9);
    let at = v4.or_else(|| behind(40, 6).map(|at| at + 6))?;
    frame.get(at).copied()
}

/// CRC-32C (Castagnoli). Byte by byte: SCTP is rare, and its senders mostly compute it themselves.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            let polynomial = if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            (crc >> 1) ^ polynomial
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Word by word, as the RFC says it.
    fn by_the_book(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            let word = u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]);
            sum += u32::from(word);
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap()
    }

    #[test]
    fn all_lengths_add_up_as_in_the_book() {
        let bytes: Vec<u8> = (0..200_u32).map(|at| (at * at % 251) as u8).collect();
        for len in 1..bytes.len() {
            assert_eq!(
                fold(sum(&bytes[..len])),
                by_the_book(&bytes[..len]),
                "{len}"
            );
        }
        assert_eq!(fold(sum(&[0xff; 65_535])), 0x00ff);
        assert_eq!(fold(0xffff), 0xffff, "zero is not said");
    }

    #[test]
    fn a_partial_checksum_is_completed_in_place() {
        // The pseudo-header's sum stands at 6; with it the datagram adds up to nothing.
        let mut frame = [9, 9, 0, 7, 0, 9, 0, 12, 0x12, 0x34, 1, 2, 3];
        complete(&mut frame, 2, 6).unwrap();
        let pseudo = u64::from(0x1234_u16);
        assert_eq!(fold(sum(&frame[2..]) + pseudo), 0xffff);
    }

    #[test]
    fn one_outside_of_the_frame_is_refused() {
        let mut frame = [0; 20];
        assert_eq!(complete(&mut frame, 21, 0), None);
        assert_eq!(complete(&mut frame, 10, 9), None);
        assert_eq!(complete(&mut frame, 10, 8), Some(()));
    }

    #[test]
    fn sctp_has_its_own() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let mut frame = [0; 14 + 20 + 12];
        frame[14] = 0x45;
        frame[14 + 9] = SCTP;
        frame[34..38].copy_from_slice(&[1, 2, 3, 4]);
        let expected = crc32c(&frame[34..]);
        complete(&mut frame, 34, SCTP_CHECKSUM_AT).unwrap();
        assert_eq!(frame[42..46], expected.to_le_bytes());
    }
}
