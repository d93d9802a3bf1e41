//! Holds that change hands: to another thread, and to another process.

mod moved;
mod parcels;
