//! The engine as others see it: a driver in guest memory on one side, a pretend tap on the other.
//!
//! The driver (`driver.rs`) shares no code with the engine, so that one cannot hide the other's
//! mistake: it writes descriptors byte by byte and decides on kicks as Linux does. `rig.rs` puts
//! both together with an engine; the other files are tests, by what they are about.

mod calls;
mod driver;
mod faults;
mod frames;
mod kicks;
mod layouts;
mod life_cycle;
mod old_ways;
mod policies;
mod receive;
mod rig;
mod rng;
mod round_trip;
mod simulation;
mod starving;
mod tap;
mod toctou;
mod transmit;
