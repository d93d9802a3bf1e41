//! Which file of `src` uses which. A name that is re-exported belongs to the file that defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::tidy::{code, root, sources, without_tests};

/// A module, as its path from the root of the crate: `["waiting", "queue"]`.
pub(super) type Module = Vec<String>;

/// The files of `src` that programs use, and the modules that each of them declares, in its order.
pub(super) struct Graph {
    pub(super) files: BTreeMap<Module, File>,
    /// Which name of a module is another path.
    exports: BTreeMap<Module, Module>,
}

pub(super) struct File {
    /// The code, without tests and comments.
    code: String,
    /// The modules that it declares as files, in its order.
    pub(super) declares: Vec<String>,
}

impl Graph {
    pub(super) fn read() -> Graph {
        let mut files = BTreeMap::new();
        for (path, text) in sources() {
            let lines: Vec<_> = code(without_tests(&text)).collect();
            // In `lib.rs`, a module that is for tests only comes first.
            let declares = text.lines().filter_map(declared);
            let file = File {
                declares: declares.collect(),
                code: lines.join("\n"),
            };
            files.insert(module_of(&path), file);
        }
        let mut graph = Graph {
            files,
            exports: BTreeMap::new(),
        };
        graph.exports = graph
            .files
            .keys()
            .flat_map(|it| graph.exports_of(it))
            .collect();
        graph
    }

    /// What a file names from elsewhere in the crate, without what it only hands on.
    pub(super) fn named_by(&self, module: &Module) -> BTreeSet<Module> {
        let mut code = self.files[module].code.clone();
        for export in exports(&code) {
            code = code.replace(&export, "");
        }
        self.paths_in(module, &code)
    }

    /// The files that a file uses.
    pub(super) fn used_by(&self, module: &Module) -> BTreeSet<Module> {
        let named = self.named_by(module);
        let files = named.iter().filter_map(|path| self.defined_in(path));
        files.filter(|file| file != module).collect()
    }

    /// The file that defines what a path names, if that is no file for tests only.
    fn defined_in(&self, path: &Module) -> Option<Module> {
        let file = (0..=path.len())
            .rev()
            .map(|length| path[..length].to_vec())
            .find(|it| self.files.contains_key(it))?;
        let Some(name) = path.get(file.len()) else {
            return Some(file);
        };
        let named = [&file[..], std::slice::from_ref(name)].concat();
        match self.exports.get(&named) {
            Some(elsewhere) => self.defined_in(elsewhere),
            None if file.is_empty() => None, // A macro, or a module that is for tests only.
            None => Some(file),
        }
    }

    /// Which names a file hands on, and what they are elsewhere.
    fn exports_of(&self, module: &Module) -> Vec<(Module, Module)> {
        let mut found = Vec::new();
        for export in exports(&self.files[module].code) {
            for path in self.paths_in(module, &export) {
                let name = path.last().expect("a name").clone();
                found.push(([&module[..], &[name]].concat(), path));
            }
        }
        found
    }

    /// The paths in a part of a file that lead to somewhere in this crate.
    fn paths_in(&self, module: &Module, code: &str) -> BTreeSet<Module> {
        let mut found = BTreeSet::new();
        let above = &module[..module.len().saturating_sub(1)];
        let mut starts = vec![
            ("crate", vec![]),
            ("self", module.clone()),
            ("super", above.to_vec()),
        ];
        for child in &self.files[module].declares {
            starts.push((child, [&module[..], std::slice::from_ref(child)].concat()));
        }
        for (word, base) in starts {
            for (at, _) in code.match_indices(&format!("{word}::")) {
                let before = code[..at].chars().next_back().unwrap_or(' ');
                let is_visibility = code[..at].ends_with("pub(in ");
                if !before.is_alphanumeric() && before != '_' && before != ':' && !is_visibility {
                    expand(&base, &code[at + word.len() + 2..], &mut found);
                }
            }
        }
        found
    }
}

/// Adds the paths that begin with `base` and go on with the beginning of `rest`. Returns how much
/// of `rest` that was.
fn expand(base: &Module, rest: &str, found: &mut BTreeSet<Module>) -> usize {
    let start = rest.len() - rest.trim_start().len();
    let name_at = &rest[start..];
    if let Some(group) = name_at.strip_prefix('{') {
        let mut at = start + 1;
        let _ = group;
        while !rest[at..].trim_start().starts_with('}') {
            at += expand(base, &rest[at..], found);
            let left = rest[at..].trim_start();
            at = rest.len() - left.strip_prefix(',').unwrap_or(left).len();
        }
        return rest.len() - rest[at..].trim_start().len() + 1;
    }
    let is_part = |it: char| it.is_alphanumeric() || it == '_';
    let length = name_at.find(|it| !is_part(it)).unwrap_or(name_at.len());
    let path = match &name_at[..length] {
        "self" | "" => base.clone(),
        name => [&base[..], &[name.to_owned()]].concat(),
    };
    let end = start + length;
    if let Some(more) = rest[end..].strip_prefix("::")
        && more.starts_with(|it: char| is_part(it) || it == '{')
    {
        return end + 2 + expand(&path, more, found);
    }
    found.insert(path);
    end.max(1)
}

/// The re-exports of a file, each from its `pub` to its semicolon.
fn exports(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for start in ["\npub use ", "\npub(crate) use ", "\npub(super) use "] {
        for (at, _) in code.match_indices(start) {
            let end = code[at..].find(';').expect("the end of a use");
            found.push(code[at..at + end].to_owned());
        }
    }
    found
}

/// The module that a line declares.
fn declared(line: &str) -> Option<String> {
    let rest = ["mod ", "pub mod ", "pub(crate) mod ", "pub(super) mod "]
        .iter()
        .find_map(|start| line.strip_prefix(start))?;
    rest.strip_suffix(';').map(str::to_owned)
}

/// The module of a file. `lib.rs` and `mod.rs` are the module of their folder.
pub(super) fn module_of(path: &Path) -> Module {
    let inside = path.strip_prefix(root().join("src")).expect("inside");
    let parts = inside.with_extension("");
    let mut module: Module = parts
        .iter()
        .map(|part| part.to_str().expect("UTF-8").to_owned())
        .collect();
    if module
        .last()
        .is_some_and(|last| last == "mod" || last == "lib")
    {
        module.pop();
    }
    module
}
