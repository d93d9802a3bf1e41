//! The classes of locks that a program has named, and the class of a lock.

use std::array;
use std::cmp::Reverse;

/// The most classes. Each has its own value of every metric, and a monitoring system keeps a time
/// series for each of them.
pub(crate) const MOST: usize = 100;

/// The prefixes of the classes, ordered so that few have to be compared with a name.
#[derive(Debug)]
pub(crate) struct Classes {
    /// Sorted by first byte. Of two with the same one, the longer comes first.
    prefixes: Vec<String>,
    /// For each byte, how many prefixes begin with a lower one.
    lower: [u8; 257],
}

impl Default for Classes {
    fn default() -> Self {
        Classes::new(&[])
    }
}

impl Classes {
    /// No prefix is empty or duplicated, and there are at most [`MOST`].
    pub(crate) fn new(prefixes: &[String]) -> Classes {
        let first = |prefix: &String| prefix.bytes().next().map_or(0, usize::from);
        let mut prefixes = prefixes.to_vec();
        prefixes.sort_by_key(|prefix| (first(prefix), Reverse(prefix.len())));
        let lower = |byte| prefixes.partition_point(|prefix| first(prefix) < byte);
        let lower = array::from_fn(|byte| u8::try_from(lower(byte)).unwrap_or(u8::MAX));
        Classes { prefixes, lower }
    }

    /// The number of the class whose prefix the lock's name begins with. If there are several, the
    /// longest prefix counts. Zero if there is none. (The name of a slot or a set begins after the
    /// brace.)
    pub(crate) fn of(&self, name: &str) -> usize {
        if self.prefixes.is_empty() {
            return 0;
        }
        let of_slots = || self.of_name(name.strip_prefix('{').filter(|it| it.contains("}#"))?);
        self.of_name(name).or_else(of_slots).unwrap_or(0)
    }

    fn of_name(&self, name: &str) -> Option<usize> {
        let first = name.bytes().next().map_or(0, usize::from);
        let from = self.lower[first];
        (usize::from(from)..usize::from(self.lower[first + 1]))
            .find(|n| name.starts_with(&self.prefixes[*n]))
            .map(|n| n + 1)
    }

    /// What each class is called, by its number. `None`: there are no classes.
    pub(crate) fn names(&self) -> Option<impl Iterator<Item = &str>> {
        let named = self.prefixes.iter().map(String::as_str);
        (!self.prefixes.is_empty()).then(|| [""].into_iter().chain(named))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::garbled;

    fn classes(prefixes: &[&str]) -> Classes {
        Classes::new(&prefixes.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    /// What the class of a lock is called.
    fn called<'c>(classes: &'c Classes, name: &str) -> Option<&'c str> {
        classes.names()?.nth(classes.of(name))
    }

    #[test]
    fn a_lock_is_of_the_class_with_the_longest_prefix_of_its_name() {
        let classes = classes(&["report:", "invoice:", "invoice:late:", "i", "\u{1f512}"]);
        for (name, class) in [
            ("invoice:42", "invoice:"),
            ("invoice:", "invoice:"),
            ("invoice:late:42", "invoice:late:"),
            ("invoice", "i"),
            ("i", "i"),
            ("report:7", "report:"),
            ("report", ""),
            ("xinvoice:42", ""),
            ("", ""),
            ("\u{1f512}1", "\u{1f512}"),
            ("\u{1f513}1", ""),
        ] {
            assert_eq!(called(&classes, name), Some(class), "{name}");
        }
    }

    #[test]
    fn a_slot_is_of_the_class_of_its_set() {
        let classes = classes(&["mail", "{user}", "{mailing}#"]);
        for (name, class) in [
            ("{mail}#2", "mail"),
            ("{mail}#1-3", "mail"),
            ("{mailing}#2", "{mailing}#"),
            ("{mail}", ""),
            ("{user}#7", "{user}"),
            ("{other}#7", ""),
        ] {
            assert_eq!(called(&classes, name), Some(class), "{name}");
        }
    }

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn any_lock_is_of_the_class_that_a_plain_search_finds(
            prefixes in prop::collection::hash_set("[abé]{1,3}", 0..9),
            name in "[abcé]{0,5}",
        ) {
            let prefixes: Vec<_> = prefixes.into_iter().collect();
            let fit = prefixes.iter().filter(|it| name.starts_with(&***it));
            let longest = fit.max_by_key(|it| it.len()).map_or("", |it| it);
            let classes = Classes::new(&prefixes);
            prop_assert_eq!(called(&classes, &name).unwrap_or_default(), longest);
        }
    }
}
