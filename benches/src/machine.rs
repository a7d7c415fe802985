//! What the figures were measured on.

use std::fs;

use serde::Serialize;

/// The machine, as far as it matters for a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// `model name` of /proc/cpuinfo.
    pub cpu: String,
    /// CPUs online.
    pub cores: usize,
    /// CPUs that share the first CPU's core: with more than one, core A and core B may be halves of one.
    pub first_core: String,
    /// Kernel release.
    pub kernel: String,
    /// Whether it is itself a virtual machine.
    pub virtual_machine: bool,
    /// Processes that ran meanwhile, on average over a minute: above 2 the figures are those of a busy machine.
    pub load: f64,
}

impl Machine {
    /// This one.
    pub fn this() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: cpuinfo
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count(),
            first_core: read("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list"),
            kernel: read("/proc/sys/kernel/osrelease"),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn field(text: &str, name: &str) -> Option<String> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(key, _)| key.trim() == name)?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t: 17\nmodel name\t: A CPU\nmodel name\t: another\n";
        assert_eq!(field(text, "model name").as_deref(), Some("A CPU"));
        assert_eq!(field(text, "flags"), None);
    }
}
