//! A store that shows what a third one needs: this file, and its variant and its arm in `Store`.
//!
//! It has no clock, so a lock has no lease, and ends with its release. It has slots, and no gates.
//! Only unit tests use it.

#![cfg(test)]

use crate::base::clock::Moment;
use crate::base::owner::holder::Holder;
use crate::base::sync::{HashMap, Mutex};
use crate::client::{
    AdoptReply, ClaimReply, Claims, Commands, Compared, Extension, Failure, Goal, Holds, Looks,
    Seen, Tracking, Wanted,
};

/// Which token each key holds.
#[derive(Debug, Default)]
pub(crate) struct Third(Mutex<HashMap<String, String>>);

impl Third {
    fn holder(&self, key: &str) -> Option<Holder> {
        let tokens = self.0.lock();
        tokens.get(key).map(|it| Holder::new(it.as_bytes(), None))
    }

    /// Replaces a key's token with `next`, if the key holds it.
    fn swap(&self, key: &str, token: &str, next: Option<&str>) -> Compared {
        let mut tokens = self.0.lock();
        match tokens.get(key) {
            Some(it) if it == token => {}
            Some(_) => return Compared::NotOurs,
            None => return Compared::Absent,
        }
        match next {
            Some(next) => tokens.insert(key.to_owned(), next.to_owned()),
            None => tokens.remove(key),
        };
        Compared::Done
    }
}

impl Claims for &Third {
    fn claim(&mut self, wanted: Wanted<'_>, _: Moment) -> Result<ClaimReply, Failure> {
        let places = wanted.places();
        let free = (1..)
            .zip(&places)
            .find(|(_, key)| self.holder(key).is_none());
        let Some((number, key)) = free else {
            return Ok(ClaimReply::Busy(self.holder(places[0])));
        };
        let (key, token) = ((*key).to_owned(), wanted.token.to_owned());
        self.0.lock().insert(key, token);
        let number = matches!(wanted.goal, Goal::Slot { .. }).then_some(number);
        Ok(ClaimReply::Taken { number })
    }

    fn claim_or_look(
        &mut self,
        wanted: Wanted<'_>,
        _: Option<u64>,
        until: Moment,
    ) -> Result<(ClaimReply, Tracking), Failure> {
        Ok((self.claim(wanted, until)?, Tracking::Off))
    }

    fn adopt(
        &mut self,
        old: &str,
        _: u64,
        wanted: Wanted<'_>,
        _: Moment,
    ) -> Result<AdoptReply, Failure> {
        Ok(match self.swap(wanted.key, old, Some(wanted.token)) {
            Compared::Done => AdoptReply::Adopted { fence: None },
            Compared::Absent => AdoptReply::Absent,
            Compared::NotOurs => AdoptReply::NotOurs,
        })
    }
}

impl Holds for &Third {
    fn remove(&mut self, keys: &[&str], token: &str, _: Moment) -> Result<Compared, Failure> {
        let mut answer = Compared::Absent;
        for key in keys {
            match self.swap(key, token, None) {
                Compared::Absent => {}
                Compared::NotOurs => answer = Compared::NotOurs,
                Compared::Done => return Ok(Compared::Done),
            }
        }
        Ok(answer)
    }

    fn keep(&mut self, _: &str, _: &str, _: u64, _: Moment) -> Result<Compared, Failure> {
        Err(Failure::not_sent("it has no clock"))
    }

    fn remove_and_claim(
        &mut self,
        token: &str,
        wanted: Wanted<'_>,
        until: Moment,
    ) -> Result<(Result<Compared, Failure>, ClaimReply), Failure> {
        let removed = self.remove(&[wanted.key], token, until);
        Ok((removed, self.claim(wanted, until)?))
    }

    fn extend(&mut self, extension: &Extension<'_>, _: Moment) -> Result<Compared, Failure> {
        Ok(self.swap(extension.key, extension.token, Some(extension.token)))
    }
}

impl Looks for &Third {
    fn look(&mut self, key: &str, _: Option<&str>, _: Moment) -> Result<Seen, Failure> {
        Ok(self.holder(key).map_or(Seen::Nothing, Seen::Somebody))
    }

    fn force(&mut self, key: &str, _: Moment) -> Result<Option<Holder>, Failure> {
        let holder = self.holder(key);
        self.0.lock().remove(key);
        Ok(holder)
    }

    fn force_if(&mut self, key: &str, value: &[u8], until: Moment) -> Result<Compared, Failure> {
        self.remove(&[key], &String::from_utf8_lossy(value), until)
    }
}

impl Commands for &Third {}
