//! The command, with real processes and a Redis of each test's own.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot do what it should panics"
)]

mod asking;
mod belonging;
mod beside;
mod codes;
mod confirming;
mod connecting;
mod deaths;
mod doctor;
mod farewell;
mod flock;
mod inherited;
mod listing;
mod others;
mod outages;
mod papers;
mod reports;
mod slots;
mod support;
mod terminal;
