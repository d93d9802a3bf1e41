//! The rules of a proxy: which fault happens to which command.

use super::Fault;

/// What is to happen to a command.
#[derive(Debug)]
pub(crate) enum Decision {
    /// It is lost in the black hole.
    Discard,
    /// Nothing special.
    Forward,
    /// A rule fires.
    Spoil(Fault),
}

/// The rules that are armed.
#[derive(Debug, Default)]
pub(crate) struct Rules(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    pattern: Vec<String>,
    /// How many matching commands pass before the rule fires.
    skip: u64,
    /// At how many matching commands the rule fires after that; `None` for all.
    left: Option<u64>,
    fault: Fault,
}

impl Rules {
    /// Adds a rule. Rules without a limit come after all others.
    pub(crate) fn arm(&mut self, command: &str, skip: u64, left: Option<u64>, fault: Fault) {
        let pattern = split(command);
        self.0.push(Rule {
            pattern,
            skip,
            left,
            fault,
        });
        self.0.sort_by_key(|rule| rule.left.is_none());
    }

    /// Forgets all rules.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Shows a command to each rule; the first that fires decides.
    pub(crate) fn decide(&mut self, args: &[String]) -> Decision {
        let mut decision = Decision::Forward;
        for rule in self.0.iter_mut().filter(|it| matches(&it.pattern, args)) {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if matches!(decision, Decision::Forward) {
                decision = Decision::Spoil(rule.fault.clone());
                rule.left = rule.left.map(|left| left - 1);
            }
        }
        self.0.retain(|rule| rule.left != Some(0));
        decision
    }
}

/// Splits the pattern of a rule.
pub(crate) fn split(command: &str) -> Vec<String> {
    command.split_whitespace().map(String::from).collect()
}

/// Whether the first arguments of a command are those of a pattern.
pub(crate) fn matches(pattern: &[String], args: &[String]) -> bool {
    let same = |(want, is): (&String, &String)| want == "*" || want.eq_ignore_ascii_case(is);
    pattern.len() <= args.len() && pattern.iter().zip(args).all(same)
}
