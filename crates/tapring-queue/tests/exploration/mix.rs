//! A hash for fingerprints: quicker than the standard one, which is made to withstand an adversary.
//!
//! Each word is folded in by a multiplication to 128 bits whose halves are combined, so that every bit
//! of it moves half of the result's.

use std::hash::{BuildHasherDefault, Hasher};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mix(u64);

/// For keys that are fingerprints themselves.
pub(crate) type BuildMix = BuildHasherDefault<Mix>;

/// Digits of π, and odd.
const FACTOR: u64 = 0x243f_6a88_85a3_08d3;

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let input = self.0.rotate_left(23) ^ word ^ FACTOR;
        let product = u128::from(input) * u128::from(FACTOR.rotate_left(17) | 1);
        let bytes = product.to_ne_bytes();
        let (low, high) = bytes.split_at(8);
        self.0 = half(low) ^ half(high);
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(word.into());
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn half(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
}
