//! Lists of CPUs as the kernel writes them: `0-3,6`.

use std::fs;

use thiserror::Error;

/// The kernel's own limit on the numbers.
const MAX_CPU: u32 = 8191;

/// Text that is no list of CPUs.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is no list of CPUs: write numbers and ranges, such as 0-3,6")]
pub struct CpuListError(String);

/// Parses a list; the order is kept.
pub fn parse(list: &str) -> Result<Vec<u32>, CpuListError> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
            _ => return Err(CpuListError(list.to_owned())),
        }
    }
    Ok(cpus)
}

/// The CPUs that are online; `None` if the kernel does not tell.
pub fn online() -> Option<Vec<u32>> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    parse(&list).ok()
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|cpu| *cpu <= MAX_CPU)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_and_ranges() {
        assert_eq!(parse("0-3,6\n"), Ok(vec![0, 1, 2, 3, 6]));
        assert_eq!(parse("5,1"), Ok(vec![5, 1]));
    }

    #[test]
    fn refuses_anything_else() {
        for list in ["", "a", "1,", "3-1", "-1", "1-", "99999", "0-4294967295"] {
            assert!(parse(list).is_err(), "{list}");
        }
    }

    #[test]
    fn the_first_cpu_is_online() {
        assert!(online().expect("Linux with /sys").contains(&0));
    }
}
