//! The scenarios, round by round, over all peers.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::book::{Book, Measured, SCENARIOS, Scenario};
use crate::peer::Peer;
use crate::plan::Plan;
use crate::protocol::{Tally, Turns};
use crate::setting::Setting;
use crate::stage::{Stage, Worker};

/// How many processes a peer has: as many as the scenario with the most processes needs.
const PROCESSES: usize = 4;

/// A command of the protocol, and how many threads of a worker obey it.
type Work = (&'static str, usize);

/// A setting, and the figures so far.
pub(crate) struct Run<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) setting: Setting,
    pub(crate) stage: Stage<'a>,
    pub(crate) book: &'a mut Book,
    /// Whether a peer has slots. Then all peers do what those with slots can do, and the commands
    /// of a turn are counted, too.
    pub(crate) slots: bool,
    /// When the program was started.
    pub(crate) began: Instant,
}

impl Run<'_> {
    /// Measures all peers once. If a scenario fails, notes the failure and goes on.
    pub(crate) fn round(&mut self, peers: &[Peer], number: usize) -> Result<()> {
        let about = format!(
            "{}, round {}/{}",
            self.setting.title(),
            number + 1,
            self.plan.rounds
        );
        let began = self.began;
        let say = |what: &str| eprintln!("{:>5} s  {about}: {what}", began.elapsed().as_secs());
        say("lock and unlock, alone: all peers in turns");
        self.alone(peers)?;
        for peer in peers.iter().filter(|peer| **peer != Peer::Floor) {
            say(peer.title());
            let mut workers = Vec::new();
            for scenario in SCENARIOS {
                let fits = scenario.includes(*peer) && (scenario.has_slots() || !self.slots);
                if scenario == Scenario::Alone || !fits {
                    continue;
                }
                let outcome = self.scenario(scenario, *peer, &mut workers);
                if outcome.is_err() {
                    // The workers may still be in the middle of the scenario.
                    workers.clear();
                }
                self.note(scenario, *peer, outcome)?;
            }
        }
        Ok(())
    }

    fn measured(&mut self, scenario: Scenario, peer: Peer) -> Result<&mut Measured> {
        let entry = self.book.entry((self.setting, scenario, peer));
        Ok(entry.or_insert(Measured::new()?))
    }

    fn note(&mut self, scenario: Scenario, peer: Peer, outcome: Result<()>) -> Result<()> {
        if let Err(why) = outcome {
            eprintln!("FAILED: {}: {}: {why:#}", scenario.title(), peer.title());
            self.measured(scenario, peer)?.failures += 1;
        }
        Ok(())
    }

    fn scenario(
        &mut self,
        scenario: Scenario,
        peer: Peer,
        workers: &mut Vec<Worker>,
    ) -> Result<()> {
        if scenario == Scenario::HandOff && peer == Peer::Ping {
            return self.pings();
        }
        if workers.is_empty() {
            *workers = self.stage.workers(peer, PROCESSES)?;
        }
        let (processes, threads) = scenario.crowd();
        let workers = &mut workers[..processes];
        match (scenario, workers) {
            (Scenario::HandOff, [holder, waiter]) => self.hand_offs(peer, holder, waiter),
            (Scenario::Reentry, workers) => {
                self.turns(scenario, peer, workers, ("reentry", threads), |turns| {
                    &turns.cycles
                })
            }
            (_, workers) => self.turns(scenario, peer, workers, ("turns", threads), |turns| {
                &turns.waits
            }),
        }
    }

    /// One thread without contention. All peers alternate in short slices, so that changes of the
    /// machine's speed affect all of them alike.
    fn alone(&mut self, peers: &[Peer]) -> Result<()> {
        let plan = self.plan;
        let mut workers = Vec::new();
        for peer in peers {
            let started = self.stage.workers(*peer, 1).and_then(|mut workers| {
                together(
                    &mut self.stage,
                    &mut workers,
                    ("turns", 1),
                    plan.warm_up(*peer),
                )?;
                Ok(workers)
            });
            match started {
                Ok(started) => workers.push((*peer, started)),
                Err(why) => self.note(Scenario::Alone, *peer, Err(why))?,
            }
        }
        for _ in 0..plan.slices {
            let mut going = Vec::new();
            for (peer, mut worker) in workers {
                let outcome = together(&mut self.stage, &mut worker, ("turns", 1), plan.slice);
                let outcome = outcome.and_then(|(tallies, server)| {
                    let measured = self.measured(Scenario::Alone, peer)?;
                    measured.add(&tallies, plan.slice, server, |turns| &turns.cycles)
                });
                if outcome.is_ok() {
                    going.push((peer, worker));
                }
                self.note(Scenario::Alone, peer, outcome)?;
            }
            workers = going;
        }
        for (peer, mut workers) in workers {
            let outcome = self.count(Scenario::Alone, peer, &mut workers, ("turns", 1));
            self.note(Scenario::Alone, peer, outcome)?;
        }
        Ok(())
    }

    /// Threads or processes that take turns on one key.
    fn turns(
        &mut self,
        scenario: Scenario,
        peer: Peer,
        workers: &mut [Worker],
        work: Work,
        timed: fn(&Turns) -> &Vec<u64>,
    ) -> Result<()> {
        together(&mut self.stage, workers, work, self.plan.warm_up(peer))?;
        let (tallies, server) = together(&mut self.stage, workers, work, self.plan.turns)?;
        let time = self.plan.turns;
        self.measured(scenario, peer)?
            .add(&tallies, time, server, timed)?;
        self.count(scenario, peer, workers, work)
    }

    /// Lets the workers do the same once more, without timing it, and counts what they send.
    fn count(
        &mut self,
        scenario: Scenario,
        peer: Peer,
        workers: &mut [Worker],
        work: Work,
    ) -> Result<()> {
        if !self.slots {
            return Ok(());
        }
        begin(&mut self.stage, workers, work, self.plan.turns)?;
        let watch = self.stage.watch()?;
        let tallies = go(workers)?;
        let sent = self.stage.end(watch)?;
        self.measured(scenario, peer)?.add_watched(&tallies, sent);
        Ok(())
    }

    /// Times hand-offs, again and again: from just before the unlock in one process to the return
    /// of the lock call in another. Then counts the commands of one waiter.
    fn hand_offs(&mut self, peer: Peer, holder: &mut Worker, waiter: &mut Worker) -> Result<()> {
        let key = self.stage.key();
        for _ in 0..self.plan.first_hand_offs {
            hand_off(&key, holder, waiter, || Ok(()))?;
        }
        let used = (holder.cpu()? + waiter.cpu()?, self.stage.cpu()?);
        let mut times = Vec::new();
        let end = Instant::now() + self.plan.hand_off;
        while Instant::now() < end {
            let idle = idle();
            let (gave, got) = hand_off(&key, holder, waiter, || {
                thread::sleep(idle);
                Ok(())
            })?;
            ensure!(got > gave, "the lock was taken before it was given back");
            times.push(got - gave);
        }
        let clients = holder.cpu()? + waiter.cpu()? - used.0;
        let server = self.stage.cpu()? - used.1;
        let mut commands = 0;
        let (stage, waiting) = (&self.stage, self.plan.waiting);
        hand_off(&key, holder, waiter, || {
            // By then, the waiter has made its first tries, which follow each other quickly.
            thread::sleep(Duration::from_millis(300));
            let before = stage.commands()?;
            thread::sleep(waiting);
            // The first `INFO` was a command, too.
            commands = stage.commands()?.saturating_sub(before + 1);
            Ok(())
        })?;
        let measured = self.measured(Scenario::HandOff, peer)?;
        measured.commands += commands;
        measured.waited += waiting.as_secs_f64();
        measured.add_hand_offs(&times, clients, server)
    }

    /// Round trips after the same idle time, to compare with hand-offs.
    fn pings(&mut self) -> Result<()> {
        let mut times = Vec::new();
        let end = Instant::now() + self.plan.hand_off;
        while Instant::now() < end {
            thread::sleep(idle());
            let began = Instant::now();
            self.stage.ping()?;
            times.push(u64::try_from(began.elapsed().as_nanos())?);
        }
        self.measured(Scenario::HandOff, Peer::Ping)?
            .add_hand_offs(&times, 0, 0)
    }
}

/// Lets all workers do the same on one new key. Returns their answers, and the server's processor
/// time in nanoseconds.
fn together(
    stage: &mut Stage<'_>,
    workers: &mut [Worker],
    work: Work,
    time: Duration,
) -> Result<(Vec<Tally>, u64)> {
    begin(stage, workers, work, time)?;
    let before = stage.cpu()?;
    let tallies = go(workers)?;
    Ok((tallies, stage.cpu()? - before))
}

/// Tells all workers what to do, and waits until they are ready.
fn begin(
    stage: &mut Stage<'_>,
    workers: &mut [Worker],
    (work, threads): Work,
    time: Duration,
) -> Result<()> {
    let line = format!("{work} {} {threads} {}", stage.key(), time.as_secs_f64());
    workers
        .iter_mut()
        .try_for_each(|worker| worker.tell(&line))?;
    workers
        .iter_mut()
        .try_for_each(|worker| worker.hear("ready").map(drop))
}

/// Lets all workers go, and returns their answers.
fn go(workers: &mut [Worker]) -> Result<Vec<Tally>> {
    workers
        .iter_mut()
        .try_for_each(|worker| worker.tell("go"))?;
    let tally = |worker: &mut Worker| Ok(serde_json::from_str(&worker.hear("")?)?);
    workers.iter_mut().map(tally).collect()
}

/// One hand-off. Calls `meanwhile` while one worker has the lock and the other waits. Returns the
/// clock at the unlock and at the end of the lock call.
fn hand_off(
    key: &str,
    holder: &mut Worker,
    waiter: &mut Worker,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<(u64, u64)> {
    holder.tell(&format!("take {key}"))?;
    holder.hear("held")?;
    waiter.tell(&format!("wait {key}"))?;
    waiter.hear("waiting")?;
    meanwhile()?;
    holder.tell("give")?;
    Ok((holder.hear_number("gave")?, waiter.hear_number("got")?))
}

fn idle() -> Duration {
    Duration::from_micros(rand::random_range(20_000..=40_000))
}
