//! The one integration binary.
mod lock;
mod roles;
mod support;
mod support_works;
mod time;
