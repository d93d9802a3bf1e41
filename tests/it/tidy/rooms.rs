//! The rooms of `src`: how large they are, what they are for, and what they use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use crate::tidy::graph::{Graph, Module};
use crate::tidy::{code, inside, root, sources, text, without_tests};

/// The most entries of a folder.
const ENTRIES: usize = 14;

/// The folders in a folder of the repository, and in these, with itself.
fn folders(top: &str) -> Vec<PathBuf> {
    let mut found = vec![root().join(top)];
    let mut at = 0;
    while at < found.len() {
        let entries = fs::read_dir(&found[at]).expect("a folder");
        let inside = entries.map(|it| it.expect("an entry").path());
        found.extend(inside.filter(|path| path.is_dir()));
        at += 1;
    }
    found
}

#[test]
fn a_folder_has_few_entries() {
    for folder in [folders("src"), folders("tests/it")].concat() {
        let entries = fs::read_dir(&folder).expect("a folder").count();
        assert!(
            entries <= ENTRIES,
            "{} has {entries} entries",
            inside(&folder)
        );
    }
}

/// The rooms: the folders at the root of `src`, and the three of `client`.
pub(super) fn rooms(graph: &Graph) -> BTreeSet<Module> {
    let of = |top: &[String]| {
        let all = graph.files.keys().map(Vec::as_slice);
        let is_room = |it: &&[String]| it.len() == top.len() + 1 && it.starts_with(top);
        let is_folder = |it: &&[String]| root().join("src").join(it.join("/")).is_dir();
        let rooms = all
            .filter(is_room)
            .filter(is_folder)
            .map(<[String]>::to_vec);
        rooms.collect::<Vec<_>>()
    };
    let found = [of(&[]), of(&["client".to_owned()])].concat();
    assert!(found.len() > 10, "{found:?}");
    found.into_iter().collect()
}

/// The lines of a file's documentation.
pub(super) fn opening(module: &Module) -> Vec<String> {
    let path = format!("src/{}", module.join("/"));
    let is_folder = root().join(&path).is_dir();
    let path = path + if is_folder { "/mod.rs" } else { ".rs" };
    let text = text(&path);
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(|line| line.trim().to_owned()).collect()
}

/// The rooms that a room's `mod.rs` says it may use. Without such a sentence, there is none.
pub(super) fn may_use(room: &Module) -> Vec<String> {
    let opening = opening(room).join(" ");
    let (_, sentence) = opening.split_once("may use ").unwrap_or_default();
    let sentence = sentence.split('.').next().expect("a sentence");
    sentence
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Whatever a room names is in its sentence, and the other way round.
#[test]
fn each_room_says_which_rooms_it_uses() {
    let graph = Graph::read();
    let rooms = rooms(&graph);
    let mut used: BTreeMap<&Module, BTreeSet<String>> = BTreeMap::new();
    for module in graph.files.keys() {
        for room in rooms.iter().filter(|room| module.starts_with(room)) {
            // A room in another one also names the rooms beside it, without the outer one.
            let beside = &room[..room.len() - 1];
            let named = graph
                .named_by(module)
                .into_iter()
                .filter(|path| !path.starts_with(room));
            let named = named.filter_map(|path| match path.strip_prefix(beside) {
                Some(within) => within.first().cloned(),
                None => path.first().cloned(),
            });
            used.entry(room).or_default().extend(named);
        }
    }
    let wrong: Vec<_> = rooms
        .iter()
        .filter_map(|room| {
            let says: BTreeSet<_> = may_use(room).into_iter().collect();
            let uses = used.remove(room).unwrap_or_default();
            (says != uses).then(|| format!("{}: says {says:?}, uses {uses:?}", room.join("::")))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The order is that of the `mod` lines of a folder, from the top to the bottom.
#[test]
fn a_file_uses_only_what_is_declared_below_it() {
    let graph = Graph::read();
    let mut wrong = Vec::new();
    for module in graph.files.keys().filter(|module| !module.is_empty()) {
        for used in graph.used_by(module) {
            let common = module.iter().zip(&used).take_while(|(a, b)| a == b).count();
            let (Some(ours), Some(theirs)) = (module.get(common), used.get(common)) else {
                continue; // A folder's `mod.rs`, and what is in the folder.
            };
            let order = &graph.files[&module[..common]].declares;
            let place = |name| order.iter().position(|it| it == name);
            if place(ours) >= place(theirs) {
                wrong.push(format!("{} uses {}", module.join("::"), used.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "used, and declared above: {wrong:#?}");
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let graph = Graph::read();
    let mut left: BTreeMap<_, _> = graph
        .files
        .keys()
        .map(|it| (it, graph.used_by(it)))
        .collect();
    left.remove(&Module::new());
    // A room that uses nothing that is left is in no circle, nor is one that nothing uses.
    loop {
        let is_free = |(module, used): &(&&Module, &BTreeSet<Module>)| {
            !used.iter().any(|it| left.contains_key(it))
                || !left.values().any(|used| used.contains(**module))
        };
        let Some(free) = left.iter().find(is_free).map(|(module, _)| *module) else {
            break;
        };
        left.remove(free);
    }
    let circles: Vec<_> = left
        .iter()
        .map(|(module, used)| {
            let used = used
                .iter()
                .filter(|it| left.contains_key(it))
                .map(|it| it.join("::"));
            format!(
                "{} -> {}",
                module.join("::"),
                used.collect::<Vec<_>>().join(", ")
            )
        })
        .collect();
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn only_the_client_names_redis_and_only_the_store_names_the_client() {
    // That this is true, another test says.
    assert_eq!(may_use(&vec!["client".to_owned()]), ["base"]);
    for (path, text) in sources() {
        let path = inside(&path)
            .strip_prefix("src/")
            .expect("in src")
            .to_owned();
        let names = |words: &[&str]| {
            let lines =
                code(without_tests(&text)).filter(|line| words.iter().any(|it| line.contains(it)));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        if path.starts_with("client/") {
            continue;
        }
        let redis = names(&["redis::", "r2d2::"]);
        assert!(redis.is_empty(), "{path}: {redis:?}");
        if !path.starts_with("store/") {
            let client = names(&["crate::client"]);
            assert!(client.is_empty(), "{path}: {client:?}");
        }
    }
}

/// A module that a file reaches by its parents would hide which room is used.
#[test]
fn no_file_reaches_two_modules_up() {
    for (path, text) in sources() {
        let up: Vec<_> = code(without_tests(&text))
            .filter(|line| line.contains("super::super"))
            .collect();
        assert!(up.is_empty(), "{}: {up:?}", inside(&path));
    }
}
