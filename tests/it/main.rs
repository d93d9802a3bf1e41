//! The one integration binary.
mod exclusion;
mod face;
mod input;
mod lock;
mod loss;
mod network;
mod outage;
mod redis;
mod renewal;
mod roles;
mod stalls;
mod support;
mod support_works;
mod tidy;
mod threads;
mod time;
