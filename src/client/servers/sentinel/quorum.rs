//! Whether the sentinels could replace the master.

use crate::base::clock::Moment;
use crate::client::servers::sentinel::sentinels::{LONGEST_ASK, Sentinels};
use crate::client::wire::endpoint::Endpoint;
use crate::client::wire::failure::accept;
use crate::client::wire::resp::Reply;

impl Sentinels {
    /// What each sentinel says: that a failover is possible, or why not. With its address.
    pub(crate) fn quorums(&self, deadline: Moment) -> Vec<(String, Result<(), String>)> {
        let ask = |sentinel: &Endpoint| {
            let question: [&[&str]; 1] = [&["SENTINEL", "CKQUORUM", self.name()]];
            // One that is silent leaves time for the others, and for what comes after them.
            let now = Moment::now();
            let limit = (deadline.since(now) / 2).min(LONGEST_ASK);
            let (_, mut replies) = self.open(sentinel, &question, now.after(limit))?;
            accept(replies.pop().unwrap_or(Reply::Nil)).map(drop)
        };
        let all = self.all();
        let said = all.iter().map(|sentinel| {
            let said = ask(sentinel).map_err(|failure| failure.text());
            (sentinel.name().to_owned(), said)
        });
        said.collect()
    }
}
