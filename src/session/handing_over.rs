//! A hold that leaves its thread, for another thread of the process or for another process.

use std::rc::Rc;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Adoption;
use crate::base::clock::Moment;
use crate::base::error::{Error, LostCause};
use crate::base::key::Name;
use crate::base::options::Options;
use crate::base::stop::StopHandle;
use crate::hold::{Hold, LockParcel};
use crate::session::Session;
use crate::session::taking::Taking;
use crate::session::thread_map::{self, Held};
use crate::session::upkeep::Upkeep;
use crate::waiting::patience::Patience;
use crate::waiting::queues::Turn;

/// Takes a hold out of this thread's map. The keeper continues to renew it, and its turn goes to
/// the caller.
pub(crate) fn detach(session: &Session, held: &Rc<Held>) -> Result<Turn, Error> {
    may_leave(session, held)?;
    // If the thread is exiting and its map is gone, so is the turn.
    held.take_out().ok_or_else(|| Error::NotHeld {
        key: held.hold.key.name().to_string(),
    })
}

/// Enters a detached hold in this thread's map, with its turn. On error, the turn stays.
pub(crate) fn attach(
    session: &Session,
    hold: &Arc<Hold>,
    turn: &mut Option<Turn>,
) -> Result<Rc<Held>, Error> {
    let name = hold.key.name();
    session.trust(hold)?;
    check_not_held(session, name)?;
    let outside = || Turn::outside(&session.core.queues, name);
    let turn = turn.take().unwrap_or_else(outside);
    Ok(thread_map::enter(session.id, Arc::clone(hold), turn))
}

/// Ends a hold without a release, so that another process can adopt the lock.
///
/// First renews the hold, so that the other process has nearly a full lease to do so.
pub(crate) fn hand_over(session: &Session, held: &Rc<Held>) -> Result<LockParcel, Error> {
    let hold = &held.hold;
    let Session { core, keeper, .. } = session;
    may_leave(session, held)?;
    let held_alone = slice::from_ref(held);
    Upkeep {
        session,
        held: held_alone,
    }
    .renew()?;

    // 1. Close the hold: its token is no longer this manager's. If anybody could see the parcel
    //    before that, its adopter and this thread would both believe that they hold the lock. The
    //    keeper would find the adopter's token, and report a loss.
    let now = Moment::now();
    let valid_until = keeper.close(hold, now);
    keeper.gone(&hold.token);

    // 2. Record that the hold has ended, and not by a loss. (Unless a watcher was first: it may
    //    have found that the lease was over just before step 1.) If this came after step 4, the
    //    next thread could adopt the parcel while this hold does not yet count as over.
    if valid_until.is_some() {
        hold.mark_released();
    }
    let Some(valid_until) = valid_until.filter(|_| hold.lost().is_none()) else {
        let lost = hold.lose(LostCause::Expired);
        keeper.report_loss(hold);
        return Err(lost);
    };

    // 3. Count it. The program's metrics recorder may take locks here. If this came before step 2,
    //    the recorder would find the hold over, record a loss, and tell nobody. If it came after
    //    step 4 and the recorder took this very lock, it would wait for its own token to run out.
    core.counters
        .of(hold.key.name())
        .given_back(now.since(hold.acquired.answered), hold.thread_has_ended());

    // 4. End the turn. The next thread of this process asks Redis, and finds the lock busy.
    drop(held.take_out());
    Ok(LockParcel::new(
        hold.key.name(),
        &hold.token,
        hold.fence,
        valid_until.since(now),
    ))
}

/// Returns an error unless a hold can leave its thread: it can be trusted, and has one guard.
fn may_leave(session: &Session, held: &Held) -> Result<(), Error> {
    session.trust(&held.hold)?;
    let key = &held.hold.key;
    // A writer may also read alongside itself, but not alongside another thread.
    let mut other_side = key.other_side().into_iter();
    let other_side = other_side.find_map(|it| thread_map::find(session.id, &*it));
    match held.hold.depth() + other_side.map_or(0, |other| other.hold.depth()) {
        1 => Ok(()),
        depth => Err(Error::OtherGuards {
            key: key.name().to_string(),
            depth,
        }),
    }
}

/// Takes over a lock that was handed over.
///
/// If other threads of this process wait for the lock, this thread takes it without a turn in their
/// queue. It cannot wait for them, since they wait for the end of its hold.
pub(crate) fn adopt(
    session: &Session,
    name: Name<'_>,
    options: &Options,
    stop: Option<&StopHandle>,
    parcel: &LockParcel,
) -> Result<Rc<Held>, Error> {
    let began = Moment::now();
    let Session { core, keeper, .. } = session;
    core.own_process(began)?;
    if parcel.key() != name.as_str() {
        let value = Some(format!("a parcel of lock {:?}", parcel.key()));
        return Err(Error::InvalidOption {
            option: "adopt",
            value,
            reason: "it is for another lock",
        });
    }
    check_not_held(session, name.as_str())?;
    let fenced = options.fenced || parcel.fence.is_some();
    let options = &Options { fenced, ..*options };
    let taking = Taking::begin(session, name, options, stop, began)?;
    let claim = taking.fresh_claim()?;
    let once = Patience::new(&core.settings, Some(Duration::ZERO), Moment::NEVER);
    let at_once = Patience {
        deadline: began, // It waits neither for the turn nor for what others learn.
        ..once
    };
    let joined = core
        .queues
        .join(taking.key.name(), &taking.wait(&at_once), || claim.clone());
    let outside = || Turn::outside(&core.queues, taking.key.name());
    let turn = joined.map_or_else(|_| outside(), |joined| joined.turn);
    let adoption = Adoption {
        store: &core.store,
        keeper,
        key: &taking.key,
        old: &parcel.token,
        least: parcel.fence.unwrap_or(0),
        claim,
        deadline: began.after(core.settings.an_attempt()),
    };
    let adopted = adoption.run();
    if turn.is_outside() {
        // The swap has used up the invalidation for which this process's waiter had registered:
        // Redis does not send it if both used the same connection. The waiter would sleep through
        // the next change of the key, so make it ask again now.
        let wakeups = &core.listeners.wakeups;
        wakeups.wake(taking.key.in_redis().as_bytes());
    }
    let taken = adopted
        .inspect_err(|error| core.counters.of(taking.key.name()).failed(error))
        .map_err(|error| error.while_holding(thread_map::names()))?;
    let held = session.make_known(taking.hold(taken, began), turn, &once)?;
    // The sender of a gate may have taken the gate as a plain lock.
    session.until_alone(held, options, stop, &once)
}

/// Returns an error if this thread holds a lock.
fn check_not_held(session: &Session, name: &str) -> Result<(), Error> {
    match thread_map::find(session.id, name) {
        Some(_) => Err(Error::AlreadyHeld {
            key: name.to_owned(),
        }),
        None => Ok(()),
    }
}
