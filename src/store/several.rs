//! Commands for many keys at a time: one round trip for each node that has some of them.

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::store::Store;
use crate::store::commands::Connection;
use crate::store::failure::{Failure, Fate};
use crate::store::reply::{ClaimReply, Compared};
use crate::store::wanted::Wanted;

impl Store {
    /// One attempt to take each of these locks.
    ///
    /// A claim without an answer is abandoned: see [`Connection::abandon`].
    pub(crate) fn claim_all(
        &self,
        wanted: &[Wanted<'_>],
        deadline: Moment,
    ) -> Vec<Result<ClaimReply, Failure>> {
        let key = |wanted: &Wanted<'_>| wanted.key.to_owned();
        self.for_each_node(wanted, key, deadline, |mut connection, wanted| {
            connection.claim_all(wanted, deadline).inspect_err(|failure| {
                if let Fate::Unknown { link_stands: true } = failure.fate() {
                    let claims: Vec<_> = wanted.iter().map(|wanted| (wanted.key, wanted.token)).collect();
                    connection.abandon_all(&claims);
                }
            })
        })
    }

    /// Compare and delete, for pairs of key and token.
    pub(crate) fn remove_all(
        &self,
        removals: &[(&str, &str)],
        deadline: Moment,
    ) -> Vec<Result<Compared, Failure>> {
        let key = |removal: &(&str, &str)| removal.0.to_owned();
        self.for_each_node(removals, key, deadline, |mut connection, removals| {
            connection.remove_all(removals, deadline)
        })
    }

    /// Has `send` send what goes to one node, node after node. The answers come in the order of
    /// `all`. No connection is kept while another one is waited for: two threads that did so could
    /// wait for each other.
    fn for_each_node<T: Copy, A>(
        &self,
        all: &[T],
        key: impl Fn(&T) -> String,
        deadline: Moment,
        send: impl Fn(Connection<'_>, &[T]) -> Result<Vec<Result<A, Failure>>, Failure>,
    ) -> Vec<Result<A, Failure>> {
        let mut answers: Vec<_> = all.iter().map(|_| None).collect();
        while let Some(first) = answers.iter().position(Option::is_none) {
            let node = self.node_of(&key(&all[first]));
            let is_there = |place: &usize| {
                let other = || self.node_of(&key(&all[*place]));
                *place == first || node.as_ref().zip(other().as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b))
            };
            let places: Vec<_> =
                (first..all.len()).filter(|place| answers[*place].is_none()).filter(is_there).collect();
            let some: Vec<_> = places.iter().map(|place| all[*place]).collect();
            let connection = self.checkout(&key(&all[first]), deadline);
            match connection.and_then(|connection| send(connection, &some)) {
                Ok(replies) => places.iter().zip(replies).for_each(|(n, reply)| answers[*n] = Some(reply)),
                Err(failure) => places.iter().for_each(|n| answers[*n] = Some(Err(failure.copy()))),
            }
        }
        answers.into_iter().flatten().collect()
    }
}
