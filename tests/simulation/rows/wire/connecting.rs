//! What a server, or what stands in front of it, says though no client asked, and names with
//! several addresses.

use crate::base::sync::scheduler::{
    add_address, later, now, one_in, open_connections, send, thread,
};
use crate::simulation::redis::{Redis, Settings};
use crate::simulation::rows::{QUICK, SECOND, in_scenes, locks, since, some};
use crate::simulation::world::engine::address;
use crate::simulation::world::server::Server;

/// The first address of the server's name accepts connections, and answers nothing or closes them.
/// Either has half of the time.
#[test]
fn the_next_address_is_tried_if_the_first_one_accepts_and_does_not_answer() {
    in_scenes(40, |world| {
        let decoy = Server::start(
            address(100),
            "decoy",
            Redis::new(Settings::default()),
            &world.servers.judge,
        );
        add_address("redis", address(100));
        let is_silent = one_in(2);
        if is_silent {
            decoy.borrow_mut().stop();
        } else {
            decoy.borrow_mut().die();
        }
        let locks = locks(|builder| builder.connect_timeout(SECOND));
        let asked = now();
        let guard = locks.lock("a").expect("locks");
        let most = if is_silent {
            SECOND / 2 + 2 * QUICK
        } else {
            2 * QUICK
        };
        assert!(since(asked) < most, "took {:?}", since(asked));
        assert!(world.exists("a"));
        // The other one is remembered.
        let asked = now();
        drop(guard);
        drop(locks.several(["a", "b"]).lock().expect("locks"));
        assert!(since(asked) < 5 * QUICK, "took {:?}", since(asked));
    });
}

/// Each connection receives this, though no client asked.
fn says(bytes: &[u8]) {
    for connection in open_connections() {
        send(connection, bytes);
    }
}

/// A `+OK` would be the answer to the `SET` that takes the lock.
#[test]
fn what_nobody_asked_for_gives_no_lock_away() {
    in_scenes(50, |_| {
        let (other, mine) = (locks(|builder| builder), locks(|builder| builder));
        let guard = other.lock("a").expect("locks");
        if one_in(2) {
            drop(mine.lock("b").expect("locks"));
        }
        for _ in 0..5 {
            // It has arrived when the connection is lent.
            thread::sleep(QUICK);
            says(b"+OK\r\n");
            thread::sleep(QUICK);
            assert!(
                mine.try_lock("a").expect("Redis works").is_none(),
                "two have it"
            );
        }
        assert!(guard.is_valid());
    });
}

/// Only the answer of a script says which command it answers.
#[test]
fn what_comes_while_a_script_is_under_way_gives_no_lock_away_and_renews_none() {
    in_scenes(100, |world| {
        let (other, mine) = (
            locks(|builder| builder),
            locks(|builder| builder.fenced(true)),
        );
        let guard = other.lock("a").expect("locks");
        for _ in 0..5 {
            later(some(QUICK / 4), || says(b"+OK\r\n"));
            assert!(!matches!(mine.try_lock("a"), Ok(Some(_))), "two have it");
        }
        thread::sleep(QUICK);
        let _ = guard.set_lease(guard.first_lease()); // Now there is a connection for renewals.
        world.delete("a");
        later(some(QUICK / 4), || says(b":1\r\n"));
        assert!(guard.set_lease(guard.first_lease()).is_err(), "it is gone");
    });
}
