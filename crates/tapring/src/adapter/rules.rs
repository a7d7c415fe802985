//! What becomes of each message, without any I/O: a request goes in, messages for the crate and for the frontend come
//! out. See [the module](super) for why.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use tapring_io::require_eventfd;
use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};

use super::memory_map::{Backing, Change, MemoryFault, MemoryMap};
use super::message::{Message, u32_at, u64_at};
use super::refusal::{Fault, Refusal};
use crate::features::{Offer, QueueNum};

const SUCCESS: u64 = 0;
const FAILURE: u64 = 1;

/// SET_VRING_KICK, CALL, ERR: the bit beside the ring's index that says that no descriptor comes with it.
const NO_DESCRIPTOR: u64 = 0x100;

/// What to do about one request, in the order of the fields.
#[derive(Debug, Default)]
pub(crate) struct Actions {
    /// For the log: the session goes on all the same.
    pub(crate) refusal: Option<Refusal>,
    /// To the crate, in this order.
    pub(crate) forward: Vec<Message>,
    /// The crate will answer one of them. Its answer goes to the frontend before the next request is read.
    pub(crate) awaits_reply: bool,
    /// To the frontend, made here. Never together with `awaits_reply`.
    pub(crate) reply: Option<Message>,
}

/// The adapter's memory of one session.
#[derive(Debug)]
pub(crate) struct Adapter {
    offer: Offer,
    queue_num: QueueNum,
    owned: bool,
    /// SET_PROTOCOL_FEATURES.
    protocol: u64,
    /// SET_FEATURES; none before it and after a reset.
    features: Option<u64>,
    /// Early SET_VRING_ENABLE, the last one for each ring.
    held: BTreeMap<u32, bool>,
    memory: MemoryMap,
}

impl Adapter {
    pub(crate) fn new(offer: Offer, queue_num: QueueNum) -> Self {
        Self {
            offer,
            queue_num,
            owned: false,
            protocol: 0,
            features: None,
            held: BTreeMap::new(),
            memory: MemoryMap::default(),
        }
    }

    /// Decides about a request of the frontend.
    pub(crate) fn on_request(&mut self, message: Message) -> Result<Actions, Fault> {
        let header = message.header;
        let request = FrontendReq::try_from(header.request)
            .map_err(|()| Fault::UnknownRequest(header.request))?;
        if header.is_reply() {
            return Err(Fault::ReplyFromFrontend(request));
        }
        let acknowledge = header.needs_reply();
        match self.judge(request, message) {
            Err(Fault::Refused(refusal))
                if acknowledge && self.acknowledges() && !answers(request) =>
            {
                Ok(Actions {
                    refusal: Some(refusal),
                    reply: Some(Message::reply_u64(header, FAILURE)),
                    ..Actions::default()
                })
            }
            other => other,
        }
    }

    fn judge(&mut self, request: FrontendReq, message: Message) -> Result<Actions, Fault> {
        use FrontendReq as Request;
        match request {
            Request::SET_OWNER => Ok(self.set_owner(message)),
            Request::RESET_OWNER => Ok(self.reset_owner(message)),
            Request::SET_FEATURES => self.set_features(message),
            Request::SET_PROTOCOL_FEATURES => self.set_protocol_features(message),
            Request::GET_QUEUE_NUM => self.get_queue_num(&message),
            Request::SET_VRING_ENABLE => self.set_vring_enable(message),
            Request::SET_VRING_NUM => self.set_vring_num(message),
            Request::SET_VRING_BASE => self.set_vring_base(message),
            Request::SET_VRING_ADDR => self.set_vring_addr(message),
            Request::GET_VRING_BASE => self.get_vring_base(message),
            Request::SET_VRING_KICK | Request::SET_VRING_CALL | Request::SET_VRING_ERR => {
                self.set_vring_descriptor(request, message)
            }
            Request::SET_MEM_TABLE | Request::ADD_MEM_REG | Request::REM_MEM_REG => {
                self.change_memory(request, message)
            }
            Request::GET_FEATURES | Request::GET_PROTOCOL_FEATURES | Request::GET_MAX_MEM_SLOTS => {
                Ok(self.pass(message))
            }
            other if harmless(other) && !message.header.needs_reply() => Ok(Actions {
                refusal: Some(Refusal::Unsupported(other)),
                ..Actions::default()
            }),
            other => Err(Refusal::Unsupported(other).into()),
        }
    }

    /// The crate takes a second SET_OWNER for a second owner and ends the session; old DPDK sends two.
    fn set_owner(&mut self, message: Message) -> Actions {
        if std::mem::replace(&mut self.owned, true) {
            return self.done(&message);
        }
        self.pass(message)
    }

    /// The specification recommends to disable all rings here and nothing else. The crate forgets the features instead
    /// and lets the rings run, so they are disabled in front of it, and enable messages are held again behind it.
    fn reset_owner(&mut self, message: Message) -> Actions {
        let mut forward = Vec::new();
        if self.has_enable_messages() {
            forward.extend((0..self.offer.rings).map(|ring| enable_message(ring, false)));
        }
        self.owned = false;
        self.features = None;
        self.held.clear();
        let mut actions = self.pass(message);
        forward.append(&mut actions.forward);
        actions.forward = forward;
        actions
    }

    fn set_features(&mut self, message: Message) -> Result<Actions, Fault> {
        let features = u64_body(FrontendReq::SET_FEATURES, &message)?;
        self.offer.accepts(features).map_err(Refusal::from)?;
        self.features = Some(features);
        let mut actions = self.pass(message);
        let held = std::mem::take(&mut self.held);
        // Without the bit the crate enables all rings by itself and takes no enable message.
        if self.has_enable_messages() {
            let replay = held.into_iter().map(|(ring, on)| enable_message(ring, on));
            actions.forward.extend(replay);
        }
        Ok(actions)
    }

    fn set_protocol_features(&mut self, message: Message) -> Result<Actions, Fault> {
        let features = u64_body(FrontendReq::SET_PROTOCOL_FEATURES, &message)?;
        let strange = features & !self.offer.protocol.bits();
        if strange != 0 {
            return Err(Refusal::ProtocolFeatures(strange).into());
        }
        self.protocol = features;
        Ok(self.pass(message))
    }

    /// cloud-hypervisor and every frontend on the `vhost` crate claim the backend first and count rings; QEMU asks
    /// first and counts pairs.
    fn get_queue_num(&self, message: &Message) -> Result<Actions, Fault> {
        sized::<0>(FrontendReq::GET_QUEUE_NUM, message)?;
        if self.protocol & VhostUserProtocolFeatures::MQ.bits() == 0 {
            return Err(Refusal::Unsupported(FrontendReq::GET_QUEUE_NUM).into());
        }
        let rings = match self.queue_num {
            QueueNum::Auto => self.owned,
            QueueNum::Rings => true,
            QueueNum::Pairs => false,
        };
        let number = if rings {
            self.offer.rings
        } else {
            self.offer.rings / 2
        };
        Ok(Actions {
            reply: Some(Message::reply_u64(message.header, number.into())),
            ..Actions::default()
        })
    }

    fn set_vring_enable(&mut self, message: Message) -> Result<Actions, Fault> {
        let (ring, value) = self.ring_state(FrontendReq::SET_VRING_ENABLE, &message)?;
        let enabled = match value {
            0 => false,
            1 => true,
            value => return Err(Refusal::EnableValue { ring, value }.into()),
        };
        if self.features.is_none() {
            self.held.insert(ring, enabled);
            return Ok(self.done(&message));
        }
        match (self.has_enable_messages(), enabled) {
            (true, _) => Ok(self.pass(message)),
            // All rings are enabled as it is.
            (false, true) => Ok(self.done(&message)),
            (false, false) => Err(Refusal::CannotDisable { ring }.into()),
        }
    }

    fn set_vring_num(&self, message: Message) -> Result<Actions, Fault> {
        let (ring, size) = self.ring_state(FrontendReq::SET_VRING_NUM, &message)?;
        let max = self.offer.max_ring_size;
        if !size.is_power_of_two() || size > max.into() {
            return Err(Refusal::RingSize { ring, size, max }.into());
        }
        Ok(self.pass(message))
    }

    fn set_vring_base(&self, message: Message) -> Result<Actions, Fault> {
        let (ring, base) = self.ring_state(FrontendReq::SET_VRING_BASE, &message)?;
        if base > u16::MAX.into() {
            return Err(Refusal::RingBase { ring, base }.into());
        }
        Ok(self.pass(message))
    }

    fn get_vring_base(&self, message: Message) -> Result<Actions, Fault> {
        self.ring_state(FrontendReq::GET_VRING_BASE, &message)?;
        Ok(self.pass(message))
    }

    fn set_vring_addr(&self, message: Message) -> Result<Actions, Fault> {
        let body = sized::<40>(FrontendReq::SET_VRING_ADDR, &message)?;
        self.ring(FrontendReq::SET_VRING_ADDR, u32_at(body, 0).into())?;
        Ok(self.pass(message))
    }

    fn set_vring_descriptor(
        &self,
        request: FrontendReq,
        message: Message,
    ) -> Result<Actions, Fault> {
        let value = u64_body(request, &message)?;
        // Bits above the flag belong to nobody. The crate would cut them off and hit the wrong ring.
        let ring = value & !NO_DESCRIPTOR;
        self.ring(request, ring)?;
        match (value & NO_DESCRIPTOR != 0, message.descriptors.as_slice()) {
            (true, []) if request == FrontendReq::SET_VRING_KICK => {
                Err(Refusal::NoKick { ring }.into())
            }
            (true, []) => Ok(self.pass(message)),
            (false, [descriptor]) => match require_eventfd(descriptor.as_fd()) {
                Ok(()) => Ok(self.pass(message)),
                Err(error) => {
                    let reason = error.to_string();
                    Err(Fault::NoEventfd {
                        request,
                        ring,
                        reason,
                    })
                }
            },
            (_, descriptors) => {
                let count = descriptors.len();
                Err(Fault::Descriptors { request, count })
            }
        }
    }

    fn change_memory(&mut self, request: FrontendReq, message: Message) -> Result<Actions, Fault> {
        let body = &message.body;
        let files: Vec<_> = message.descriptors.iter().map(Backing::of).collect();
        let changed: Result<Change, MemoryFault> = match request {
            FrontendReq::SET_MEM_TABLE => self.memory.replace(body, &files),
            FrontendReq::ADD_MEM_REG => self.memory.add(body, &files),
            _ => self.memory.remove(body),
        };
        match changed.map_err(Refusal::from)? {
            Change::New => Ok(self.pass(message)),
            Change::Same => Ok(self.done(&message)),
        }
    }

    /// The body of the messages that carry a ring's index and a number.
    fn ring_state(&self, request: FrontendReq, message: &Message) -> Result<(u32, u32), Fault> {
        let body = sized::<8>(request, message)?;
        let ring = u32_at(body, 0);
        self.ring(request, ring.into())?;
        Ok((ring, u32_at(body, 4)))
    }

    /// The crate would end the session over a ring that does not exist, and the smaller types it uses would first cut
    /// some of them down to one that does.
    fn ring(&self, request: FrontendReq, ring: u64) -> Result<(), Fault> {
        let rings = self.offer.rings;
        if ring >= rings.into() {
            return Err(Refusal::RingIndex {
                request,
                ring,
                rings,
            }
            .into());
        }
        Ok(())
    }

    /// To the crate as it is.
    fn pass(&self, message: Message) -> Actions {
        let header = message.header;
        let answers = FrontendReq::try_from(header.request).is_ok_and(answers);
        Actions {
            awaits_reply: answers || header.needs_reply() && self.acknowledges(),
            forward: vec![message],
            ..Actions::default()
        }
    }

    /// Carried out, or held, without the crate.
    fn done(&self, message: &Message) -> Actions {
        let acknowledge = message.header.needs_reply() && self.acknowledges();
        Actions {
            reply: acknowledge.then(|| Message::reply_u64(message.header, SUCCESS)),
            ..Actions::default()
        }
    }

    /// NEED_REPLY means something only after this was negotiated.
    fn acknowledges(&self) -> bool {
        self.protocol & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0
    }

    fn has_enable_messages(&self) -> bool {
        let bit = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        self.features.is_some_and(|features| features & bit != 0)
    }
}

/// Requests that have an answer of their own, whatever their flags say.
const fn answers(request: FrontendReq) -> bool {
    use FrontendReq as Request;
    matches!(
        request,
        Request::GET_FEATURES
            | Request::GET_PROTOCOL_FEATURES
            | Request::GET_QUEUE_NUM
            | Request::GET_VRING_BASE
            | Request::GET_MAX_MEM_SLOTS
            | Request::GET_CONFIG
            | Request::GET_INFLIGHT_FD
            | Request::GET_STATUS
            | Request::GET_SHARED_OBJECT
            | Request::GET_SHMEM_CONFIG
            | Request::SET_LOG_BASE
            | Request::SET_DEVICE_STATE_FD
            | Request::CHECK_DEVICE_STATE
            | Request::POSTCOPY_ADVISE
            | Request::CREATE_CRYPTO_SESSION
    )
}

/// Requests that a frontend can do without: when it does not even ask whether they worked, they are passed over.
const fn harmless(request: FrontendReq) -> bool {
    use FrontendReq as Request;
    matches!(
        request,
        Request::SEND_RARP
            | Request::NET_SET_MTU
            | Request::SET_LOG_FD
            | Request::SET_STATUS
            | Request::SET_BACKEND_REQ_FD
    )
}

fn enable_message(ring: u32, enabled: bool) -> Message {
    let body = [ring, enabled.into()].map(u32::to_ne_bytes).concat();
    Message::request(FrontendReq::SET_VRING_ENABLE, body)
}

fn u64_body(request: FrontendReq, message: &Message) -> Result<u64, Fault> {
    Ok(u64_at(sized::<8>(request, message)?, 0))
}

fn sized<const BYTES: usize>(
    request: FrontendReq,
    message: &Message,
) -> Result<&[u8; BYTES], Fault> {
    let bytes = message.body.len();
    message.body().ok_or(Fault::BodySize { request, bytes })
}

#[cfg(test)]
mod tests;
