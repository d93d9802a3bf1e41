//! Servers, proxy and workers do what their documentation says. Without that, the other tests would
//! prove nothing.

// What the tests here share.
mod client;

// A server: pause, kill, restart; what it counts.
mod server;

// A master with replicas and sentinels: planned failovers, replicas that are cut off, proxies.
mod sentinels;

// A cluster: who has which slot, slots that are moved, proxies.
mod cluster;

// The proxy: each fault, its rules, black holes, refused connects.
mod proxy;

// Worker processes: stop, kill.
mod worker;

// `eventually` and `within` have an end.
mod wait;

// A test that hangs has an end, too.
mod limit;

/// A worker process begins here. In an ordinary run of the tests there is no role, and this does
/// nothing.
#[test]
fn worker_entry() {
    match relatch_rig::role::name().as_deref() {
        None => {}
        Some("echo") => worker::echo(),
        Some("hang") => limit::hang(),
        Some(other) => panic!("no role is called {other:?}"),
    }
}
