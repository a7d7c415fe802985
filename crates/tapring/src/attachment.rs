//! What the guest is to be connected to, as it was said: `tap`, `tap_fd` or `packet`, one of the three.

use std::path::PathBuf;

use crate::settings::SettingsError;
use crate::value::{Descriptors, InterfaceName, TapWord};

/// One kind of interface, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// A tap, by the name of its interface.
    Tap {
        /// The name.
        name: String,
        /// Make it if there is none.
        create: bool,
    },
    /// A macvtap, by its device file.
    Device(PathBuf),
    /// Queues of a tap or macvtap that this process was started with, one a pair.
    Descriptors(Vec<i32>),
    /// An interface that exists, through a packet socket.
    Packet {
        /// Its name.
        name: String,
        /// Send past its queueing discipline.
        qdisc_bypass: bool,
    },
}

impl Attachment {
    /// The keys that say it, each of them with what was said last.
    pub(crate) fn keys(&self) -> [(&'static str, Option<String>); 5] {
        let mut keys = [
            ("tap", None),
            ("create_tap", None),
            ("tap_fd", None),
            ("packet", None),
            ("packet_qdisc_bypass", None),
        ];
        match self {
            Self::Tap { name, create } => {
                keys[0].1 = Some(name.clone());
                keys[1].1 = create.then(String::new);
            }
            Self::Device(path) => keys[0].1 = Some(path.display().to_string()),
            Self::Descriptors(fds) => keys[2].1 = Some(format!("{fds:?}")),
            Self::Packet { name, qdisc_bypass } => {
                keys[3].1 = Some(name.clone());
                keys[4].1 = qdisc_bypass.then(String::new);
            }
        }
        keys
    }
}

/// The words of the three, as options and keys give them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    pub(crate) tap: Option<TapWord>,
    pub(crate) create_tap: Option<bool>,
    pub(crate) tap_fd: Option<Descriptors>,
    pub(crate) packet: Option<InterfaceName>,
    pub(crate) qdisc_bypass: Option<bool>,
}

impl Words {
    /// These, and those of `base` where nothing was said. Another kind than that of `base` leaves nothing of it.
    pub(crate) fn over(self, base: Self) -> Self {
        let kinds = [self.kinds(), base.kinds()];
        if kinds[0].contains(&true) && kinds[0] != kinds[1] {
            return self;
        }
        Self {
            tap: self.tap.or(base.tap),
            create_tap: self.create_tap.or(base.create_tap),
            tap_fd: self.tap_fd.or(base.tap_fd),
            packet: self.packet.or(base.packet),
            qdisc_bypass: self.qdisc_bypass.or(base.qdisc_bypass),
        }
    }

    const fn kinds(&self) -> [bool; 3] {
        [
            self.tap.is_some(),
            self.tap_fd.is_some(),
            self.packet.is_some(),
        ]
    }

    /// What they amount to; `None` when nothing was said.
    pub(crate) fn attachment(self) -> Result<Option<Attachment>, SettingsError> {
        let create = self.create_tap.unwrap_or(false);
        let qdisc_bypass = self.qdisc_bypass.unwrap_or(false);
        let attachment = match (self.tap, self.tap_fd, self.packet) {
            (None, None, None) => return Ok(None),
            (Some(TapWord::Name(name)), None, None) => Attachment::Tap { name, create },
            (Some(TapWord::Device(path)), None, None) => Attachment::Device(path),
            (None, Some(fds), None) => Attachment::Descriptors(fds.0),
            (None, None, Some(name)) => Attachment::Packet {
                name: name.0,
                qdisc_bypass,
            },
            _ => return Err(SettingsError::SeveralInterfaces),
        };
        if create && !matches!(attachment, Attachment::Tap { .. }) {
            return Err(SettingsError::NothingToCreate);
        }
        if qdisc_bypass && !matches!(attachment, Attachment::Packet { .. }) {
            return Err(SettingsError::NothingToBypass);
        }
        Ok(Some(attachment))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tap(name: &str) -> Words {
        Words {
            tap: Some(TapWord::Name(name.to_owned())),
            ..Words::default()
        }
    }

    fn packet(name: &str) -> Words {
        Words {
            packet: Some(InterfaceName(name.to_owned())),
            ..Words::default()
        }
    }

    #[test]
    fn another_kind_leaves_nothing_of_the_one_before() {
        let created = Words {
            create_tap: Some(true),
            ..tap("t0")
        };
        let both = packet("v0").over(created.clone()).attachment();
        let expected = Attachment::Packet {
            name: "v0".to_owned(),
            qdisc_bypass: false,
        };
        assert_eq!(both, Ok(Some(expected)));
        let renamed = tap("t1").over(created).attachment();
        let expected = Attachment::Tap {
            name: "t1".to_owned(),
            create: true,
        };
        assert_eq!(renamed, Ok(Some(expected)));
        assert_eq!(
            Words::default().over(packet("v0")).kinds(),
            [false, false, true]
        );
    }

    #[test]
    fn only_one_kind_and_only_what_belongs_to_it() {
        let two = Words {
            tap: Some(TapWord::Name("t0".to_owned())),
            ..packet("v0")
        };
        assert_eq!(two.attachment(), Err(SettingsError::SeveralInterfaces));
        let create = Words {
            create_tap: Some(true),
            ..packet("v0")
        };
        assert_eq!(create.attachment(), Err(SettingsError::NothingToCreate));
        let device = Words {
            tap: Some(TapWord::Device("/dev/tap5".into())),
            create_tap: Some(true),
            ..Words::default()
        };
        assert_eq!(device.attachment(), Err(SettingsError::NothingToCreate));
        let bypass = Words {
            qdisc_bypass: Some(true),
            ..tap("t0")
        };
        assert_eq!(bypass.attachment(), Err(SettingsError::NothingToBypass));
        assert_eq!(Words::default().attachment(), Ok(None));
    }
}
