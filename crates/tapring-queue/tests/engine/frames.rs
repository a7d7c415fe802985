//! Frames that say who they are.

/// A plain header: nothing for the device to do.
pub(crate) const PLAIN: [u8; 12] = [0; 12];

/// Frame `number` of `bytes` bytes; no two are alike, and no byte can be missing unnoticed.
pub(crate) fn frame(number: usize, bytes: usize) -> Vec<u8> {
    let label = u32::try_from(number).unwrap().to_le_bytes();
    (0..bytes)
        .map(|i| match i {
            0..4 => label[i],
            _ => label[i % 2] ^ u8::try_from(i * 7 % 251).unwrap(),
        })
        .collect()
}

/// The frame with a plain header in front, as a driver hands it over.
pub(crate) fn with_header(frame: &[u8]) -> Vec<u8> {
    [&PLAIN, frame].concat()
}

/// The number a frame was made with.
pub(crate) fn number_of(frame: &[u8]) -> usize {
    u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize
}
