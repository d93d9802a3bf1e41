//! What can go wrong between a process and a Redis that is well.

mod connecting;
mod connections;
