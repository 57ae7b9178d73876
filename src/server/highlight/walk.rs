//! All patterns of a grammar, to compile them before anybody asks.
//!
//! It must not know when, or on which thread.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use syntect::parsing::SyntaxSet;
use syntect::parsing::syntax_definition::{Context, ContextReference, MatchOperation, MatchPattern, Pattern};

/// The contexts of these grammars and of all that they lead to: a page of HTML has scripts and styles in it. The
/// grammars are given and known by their place in the set.
pub(super) fn contexts<'a>(set: &'a SyntaxSet, grammars: &BTreeSet<usize>) -> Vec<&'a Context> {
    let mut known = grammars.clone();
    let mut ahead: Vec<_> = grammars.iter().copied().collect();
    let mut found = Vec::new();
    while let Some(grammar) = ahead.pop() {
        for context in (0..).map_while(|place| context(set, grammar, place)) {
            found.push(context);
            ahead.extend(leads_to(context).filter(|grammar| known.insert(*grammar)));
        }
    }
    found
}

/// A context by its place, which syntect lets nobody name but a deserializer.
fn context(set: &SyntaxSet, grammar: usize, place: usize) -> Option<&Context> {
    let direct = json!({"Direct": {"syntax_index": grammar, "context_index": place}});
    serde_json::from_value::<ContextReference>(direct).ok()?.resolve(set).ok()
}

/// The grammars that a context goes on in.
fn leads_to(context: &Context) -> impl Iterator<Item = usize> {
    let references = context.patterns.iter().flat_map(|pattern| match pattern {
        Pattern::Include(reference) => std::slice::from_ref(reference),
        Pattern::Match(pattern) => match &pattern.operation {
            MatchOperation::Push(references) | MatchOperation::Set(references) => references.as_slice(),
            _ => &[],
        },
    });
    references.filter_map(|reference| {
        let id: Value = serde_json::to_value(reference.id().ok()?).ok()?;
        usize::try_from(id["syntax_index"].as_u64()?).ok()
    })
}

/// The patterns of a context that can be compiled beforehand: not those that repeat what another one has matched,
/// which are compiled anew for each text.
pub(super) fn patterns(context: &Context) -> impl Iterator<Item = &MatchPattern> {
    let own = context.patterns.iter().filter_map(|pattern| match pattern {
        Pattern::Match(pattern) => Some(pattern),
        Pattern::Include(_) => None,
    });
    own.filter(|pattern| !pattern.has_captures)
}

/// Compiles a pattern, which its first use does.
pub(super) fn compile(pattern: &MatchPattern) {
    let _ = pattern.regex().is_match("");
}
