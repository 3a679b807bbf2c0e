//! Checks the expression of a tag and translates it for the engine. Every name becomes a slot (`p3`), a variable of a
//! loop becomes `v3`, and a comparison becomes a call of one of our filters. So the engine never looks up a name of the
//! payload, and the only operators in its input are `and`, `or`, `not` and the conditional `a if b else c`.

use std::collections::HashMap;

use super::filters;
use super::lexer::{Fault, Kind, Token};
use super::limits;
use super::payload::flat_name;

/// The source of a slot's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Root {
    /// The payload; if it has no value, the fields of the notification.
    Payload,
    /// The brand (`brand.…`); if it has no value, the payload.
    Brand,
    /// The user (`user.…`); if it has no value, the payload.
    User,
    /// The notification (`notification.…`); if it has no value, the payload.
    Notification,
}

impl Root {
    fn of(flat: &str) -> Self {
        match flat {
            "brand" => Self::Brand,
            "user" => Self::User,
            "notification" => Self::Notification,
            _ => Self::Payload,
        }
    }
}

/// A name that a template reads, with its number in the engine's context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) root: Root,
    /// The whole flat name.
    pub(super) flat: String,
    /// The flat name without its first word: `name` for `user.name`.
    pub(super) rest: String,
}

/// The names of a template: its slots, and the variables of the loops around the current tag.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) slots: Vec<Slot>,
    by_name: HashMap<(Root, String), usize>,
    loops: Vec<(String, usize)>,
    made: usize,
}

impl Names {
    fn slot(&mut self, root: Root, flat: String, rest: String) -> usize {
        let slots = &mut self.slots;
        *self.by_name.entry((root, flat.clone())).or_insert_with(|| {
            slots.push(Slot { root, flat, rest });
            slots.len() - 1
        })
    }

    /// Begins a loop and returns the engine's name of its variable.
    pub(super) fn begin_loop(&mut self, variable: &str) -> String {
        self.made += 1;
        self.loops.push((flat_name(variable), self.made));
        format!("v{}", self.made)
    }

    pub(super) fn end_loop(&mut self) {
        self.loops.pop();
    }

    fn variable(&self, flat: &str) -> Option<usize> {
        self.loops.iter().rev().find(|(name, _)| name == flat).map(|(_, id)| *id)
    }
}

/// A name as it is written in a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) name: String,
    /// The number of the slot. `None` if the name is a variable of a loop.
    pub(super) slot: Option<usize>,
}

/// An expression for the engine, and the names that it reads.
#[derive(Debug, Default)]
pub(super) struct Expression {
    pub(super) code: String,
    pub(super) reads: Vec<Read>,
}

/// The kind of a level: the tag itself, a parenthesis or the arguments of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Tag,
    Group,
    Arguments,
}

#[derive(Debug)]
struct Level {
    kept: Kept,
    /// Whether the right side of a comparison is open.
    comparing: bool,
    /// Whether an `if` has no `else` yet.
    deciding: bool,
}

impl Level {
    fn new(kept: Kept) -> Self {
        Self { kept, comparing: false, deciding: false }
    }
}

struct Checker<'t, 's, 'n> {
    tokens: &'t [Token<'s>],
    next: usize,
    /// The byte offset at which a fault at the end of the tag is reported.
    end: usize,
    names: &'n mut Names,
    out: Expression,
    /// The open levels. The vector is never empty: its first level is the tag itself.
    levels: Vec<Level>,
}

const WORDS: [&str; 6] = ["and", "or", "if", "else", "in", "is"];
const LOOP: [&str; 7] = ["index", "index0", "revindex", "revindex0", "first", "last", "length"];

/// Checks and translates the tokens of an expression. `end` is the byte offset after them.
pub(super) fn expression(tokens: &[Token<'_>], end: usize, names: &mut Names) -> Result<Expression, Fault> {
    let mut checker =
        Checker { tokens, next: 0, end, names, out: Expression::default(), levels: vec![Level::new(Kept::Tag)] };
    checker.run()?;
    Ok(checker.out)
}

impl<'s> Checker<'_, 's, '_> {
    fn run(&mut self) -> Result<(), Fault> {
        let mut wants_value = true;
        while self.next < self.tokens.len() {
            wants_value = if wants_value { self.value()? } else { self.operator()? };
        }
        if wants_value {
            return Err(Fault::new(self.end, "a value is missing"));
        }
        if self.levels.len() > 1 {
            return Err(Fault::new(self.end, "a parenthesis is not closed; add `)`"));
        }
        self.end_expression();
        Ok(())
    }

    fn take(&mut self) -> Option<Token<'s>> {
        let token = self.tokens.get(self.next).copied();
        self.next += 1;
        token
    }

    fn next_is(&self, text: &str) -> bool {
        self.tokens.get(self.next).is_some_and(|token| token.is(text))
    }

    fn skip(&mut self, text: &str) -> bool {
        let found = self.next_is(text);
        self.next += usize::from(found);
        found
    }

    fn push(&mut self, code: &str) {
        self.out.code.push_str(code);
    }

    fn open(&mut self, kept: Kept, at: usize) -> Result<(), Fault> {
        if self.levels.len() > limits::DEPTH {
            return Err(Fault::new(
                at,
                format!("parentheses are nested more than {0} levels deep; at most {0} are allowed", limits::DEPTH),
            ));
        }
        self.levels.push(Level::new(kept));
        self.push("(");
        Ok(())
    }

    fn end_comparison(&mut self) {
        if self.levels.last_mut().is_some_and(|level| std::mem::take(&mut level.comparing)) {
            self.push(")");
        }
    }

    /// Ends an expression. An `if` without `else` gets an empty value, which does not count as missing.
    fn end_expression(&mut self) {
        self.end_comparison();
        if self.levels.last_mut().is_some_and(|level| std::mem::take(&mut level.deciding)) {
            self.push(" else \"\"");
        }
    }

    fn decide(&mut self, token: Token<'_>) -> Result<(), Fault> {
        self.end_comparison();
        let begins = token.text == "if";
        match self.levels.last_mut() {
            Some(level) if level.deciding != begins => level.deciding = begins,
            _ if begins => {
                return Err(Fault::new(token.at, "a second `if` needs parentheses: a if x else (b if y else c)"));
            }
            _ => return Err(Fault::new(token.at, "`else` has no `if` before it")),
        }
        self.out.code.push_str(&format!(" {} ", token.text));
        Ok(())
    }

    /// Reads a value. Returns whether another value must follow.
    fn value(&mut self) -> Result<bool, Fault> {
        let Some(token) = self.take() else { return Err(Fault::new(self.end, "a value is missing")) };
        match token.kind {
            Kind::Name if token.text == "not" => {
                self.push("not ");
                return Ok(true);
            }
            Kind::Name if token.text.eq_ignore_ascii_case("true") => self.push("true"),
            Kind::Name if token.text.eq_ignore_ascii_case("false") => self.push("false"),
            Kind::Name if WORDS.contains(&token.text) => {
                return Err(Fault::new(token.at, format!("a value is missing before `{}`", token.text)));
            }
            Kind::Name => self.name(token)?,
            Kind::Text | Kind::Number => self.push(token.text),
            Kind::Sign if token.text == "(" => {
                self.open(Kept::Group, token.at)?;
                return Ok(true);
            }
            Kind::Sign if token.text == "[" => self.list()?,
            Kind::Sign => return Err(Fault::new(token.at, format!("a value is missing before `{}`", token.text))),
        }
        Ok(false)
    }

    /// Reads a list of strings and numbers. Other values are refused, because such lists could grow to any size.
    fn list(&mut self) -> Result<(), Fault> {
        self.push("[");
        while !self.skip("]") {
            match self.take() {
                Some(token) if matches!(token.kind, Kind::Text | Kind::Number) => self.push(token.text),
                Some(token) => return Err(Fault::new(token.at, "a list may contain only texts in quotes and numbers")),
                None => return Err(Fault::new(self.end, "the list is not closed; add `]`")),
            }
            if !self.next_is("]") && !self.skip(",") {
                return Err(Fault::new(self.end, "the list is not closed, or a comma is missing in it"));
            }
            self.push(",");
        }
        self.push("]");
        Ok(())
    }

    /// Reads the operator, filter or bracket after a value. Returns whether another value must follow.
    fn operator(&mut self) -> Result<bool, Fault> {
        let Some(token) = self.take() else { return Ok(false) };
        match token.text {
            "|" => return self.filter(token),
            "is" => return self.test(token).map(|()| false),
            "if" | "else" => self.decide(token)?,
            "and" | "or" => {
                self.end_comparison();
                self.out.code.push_str(&format!(" {} ", token.text));
            }
            "==" => self.comparison("eq", token)?,
            "!=" => self.comparison("ne", token)?,
            "<" => self.comparison("lt", token)?,
            "<=" => self.comparison("le", token)?,
            ">" => self.comparison("gt", token)?,
            ">=" => self.comparison("ge", token)?,
            "in" => self.comparison("within", token)?,
            "not" if self.skip("in") => self.comparison("outside", token)?,
            ")" if self.levels.len() > 1 => {
                self.end_expression();
                self.levels.pop();
                self.push(")");
                return Ok(false);
            }
            "," if self.levels.last().is_some_and(|level| level.kept == Kept::Arguments) => {
                self.end_expression();
                self.push(",");
            }
            "(" => return Err(Fault::new(token.at, "templates have no functions; use a filter: {{ name|upper }}")),
            text => {
                return Err(Fault::new(
                    token.at,
                    format!("`{text}` is not expected here; remove it, or put an operator before it"),
                ));
            }
        }
        Ok(true)
    }

    fn comparison(&mut self, filter: &str, token: Token<'_>) -> Result<(), Fault> {
        if self.levels.last().is_some_and(|level| level.comparing) {
            return Err(Fault::new(token.at, "a comparison has more than two values; join two comparisons with `and`"));
        }
        self.out.code.push_str(&format!("|{filter}("));
        if let Some(level) = self.levels.last_mut() {
            level.comparing = true;
        }
        Ok(())
    }

    fn filter(&mut self, pipe: Token<'_>) -> Result<bool, Fault> {
        let name = self.take().filter(|token| token.kind == Kind::Name);
        let Some(name) = name else { return Err(Fault::new(pipe.at, "the name of a filter is missing after |")) };
        if !filters::NAMES.contains(&name.text) {
            let known = filters::NAMES.join(", ");
            return Err(Fault::new(name.at, format!("`{}` is not a filter; allowed are {known}", name.text)));
        }
        self.out.code.push_str(&format!("|{}", name.text));
        if !self.skip("(") {
            return Ok(false);
        }
        if self.skip(")") {
            return Ok(false);
        }
        self.open(Kept::Arguments, name.at)?;
        Ok(true)
    }

    fn test(&mut self, is: Token<'_>) -> Result<(), Fault> {
        let not = if self.skip("not") { "not " } else { "" };
        match self.take() {
            Some(name) if filters::TESTS.contains(&name.text) => {
                self.out.code.push_str(&format!(" is {not}{}", name.text));
                Ok(())
            }
            _ => Err(Fault::new(is.at, format!("`is` must be followed by one of {}", filters::TESTS.join(", ")))),
        }
    }

    /// Reads a name with its dots and brackets: `guest.phone`, `items[0].name`.
    fn name(&mut self, first: Token<'s>) -> Result<(), Fault> {
        let mut written = first.text.to_owned();
        let mut path = vec![Step::Name(flat_name(first.text))];
        loop {
            if self.skip(".") {
                let step = self.take();
                written.push('.');
                path.push(step_of(step).ok_or_else(|| Fault::new(first.at, "a name is missing after the dot"))?);
                written.push_str(step.map_or("", |token| token.text));
            } else if self.skip("[") {
                let step = self.take().filter(|token| token.kind != Kind::Name);
                let step = step.and_then(|token| step_of(Some(token)).map(|step| (step, token.text)));
                let closed = self.skip("]");
                let Some((step, text)) = step.filter(|_| closed) else {
                    return Err(Fault::new(first.at, "brackets must contain a number or a text in quotes"));
                };
                path.push(step);
                written.push_str(&format!("[{text}]"));
            } else {
                break;
            }
        }
        if self.next_is("(") {
            return Err(Fault::new(first.at, "templates have no functions; use a filter: {{ name|upper }}"));
        }
        self.read(first, path, written)
    }

    fn read(&mut self, first: Token<'s>, path: Vec<Step>, written: String) -> Result<(), Fault> {
        let mut steps = path.into_iter().peekable();
        let Some(Step::Name(head)) = steps.next() else { return Ok(()) };
        if head == "loop" && !self.names.loops.is_empty() {
            let Some(Step::Name(field)) = steps.next().filter(|_| steps.peek().is_none()) else {
                return Err(Fault::new(first.at, format!("`loop` has no such field; allowed are {}", LOOP.join(", "))));
            };
            if !LOOP.contains(&field.as_str()) {
                return Err(Fault::new(first.at, format!("`loop` has no such field; allowed are {}", LOOP.join(", "))));
            }
            self.out.code.push_str(&format!("loop.{field}"));
            return Ok(());
        }
        let mut rest = String::new();
        while let Some(Step::Name(name)) = steps.next_if(|step| matches!(step, Step::Name(_))) {
            rest.push_str(&name);
        }
        let flat = format!("{head}{rest}");
        if flat.is_empty() || flat.len() > limits::NAME_BYTES {
            let limit = limits::NAME_BYTES;
            return Err(Fault::new(
                first.at,
                format!("the name is empty or too long; 1 to {limit} letters and digits are allowed"),
            ));
        }
        let slot = match self.names.variable(&head) {
            Some(variable) => {
                self.out.code.push_str(&format!("v{variable}"));
                self.field(&rest);
                None
            }
            None => {
                let root = if rest.is_empty() { Root::Payload } else { Root::of(&head) };
                let slot = self.names.slot(root, flat, rest);
                self.out.code.push_str(&format!("p{slot}"));
                Some(slot)
            }
        };
        let mut tail = String::new();
        for step in steps {
            match step {
                Step::Name(name) => tail.push_str(&name),
                Step::Index(index) => {
                    self.field(&std::mem::take(&mut tail));
                    self.out.code.push_str(&format!("[{index}]"));
                }
            }
        }
        self.field(&tail);
        self.out.reads.push(Read { name: written, slot });
        Ok(())
    }

    fn field(&mut self, flat: &str) {
        if !flat.is_empty() {
            self.out.code.push_str(&format!("[\"{flat}\"]"));
        }
    }
}

#[derive(Debug)]
enum Step {
    Name(String),
    Index(usize),
}

fn step_of(token: Option<Token<'_>>) -> Option<Step> {
    let token = token?;
    match token.kind {
        Kind::Name => Some(Step::Name(flat_name(token.text))),
        Kind::Text => Some(Step::Name(flat_name(token.text))),
        Kind::Number => token.text.parse().ok().map(Step::Index),
        Kind::Sign => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::lexer::{Piece, pieces};
    use super::*;

    fn translated(source: &str) -> Result<String, String> {
        let mut names = Names::default();
        names.begin_loop("item");
        let source = format!("{{{{ {source} }}}}");
        let all = pieces(&source).map_err(|fault| fault.message)?;
        let [Piece::Print(tag)] = &all[..] else { panic!("{source}") };
        expression(&tag.tokens, source.len(), &mut names).map(|it| it.code).map_err(|fault| fault.message)
    }

    #[test]
    fn names_become_slots_and_comparisons_become_filters() {
        for (source, code) in [
            ("guest.Phone", "p0"),
            ("guest['phone']|default(guestPhone)", "p0|default(p0)"),
            ("items[0].guest.name", "p0[0][\"guestname\"]"),
            ("Item.price.amount", "v1[\"priceamount\"]"),
            ("loop.index", "loop.index"),
            ("a == b and not c in [1, 'x']", "p0|eq(p1) and not p2|within([1,'x',])"),
            ("a if (b > 3 or c) else d|upper", "p0 if (p1|gt(3) or p2) else p3|upper"),
            ("a not in b", "p0|outside(p1)"),
            ("a is not defined", "p0 is not defined"),
            ("a|default(b == c, 1)", "p0|default(p1|eq(p2),1)"),
            ("a|upper()", "p0|upper"),
            ("True", "true"),
            ("a if b == c", "p0 if p1|eq(p2) else \"\""),
            ("a|default(b if c, d)", "p0|default(p1 if p2 else \"\",p3)"),
        ] {
            assert_eq!(translated(source).as_deref(), Ok(code), "{source}");
        }
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for (source, part) in [
            ("", "a value is missing"),
            ("a b", "not expected"),
            ("a == b == c", "two values"),
            ("a|", "filter is missing"),
            ("a|env", "is not a filter"),
            ("a.b()", "no functions"),
            ("range(9)", "no functions"),
            ("(a)(b)", "no functions"),
            ("(a", "not closed"),
            ("a)", "not expected"),
            ("(a, b)", "not expected"),
            ("[a]", "texts in quotes and numbers"),
            ("[1", "not closed"),
            ("a[b]", "number or a text"),
            ("a.|upper", "after the dot"),
            ("a is strange", "`is` must be followed by"),
            ("loop.cycle", "no such field"),
            ("a and", "a value is missing"),
            ("and a", "before `and`"),
            ("_", "letters and digits"),
            ("a else b", "no `if`"),
            ("a if b if c", "parentheses"),
        ] {
            let message = translated(source).unwrap_err();
            assert!(message.contains(part), "{source}: {message}");
        }
        let deep = format!("{}a{}", "(".repeat(17), ")".repeat(17));
        assert!(translated(&deep).unwrap_err().contains("16"));
    }
}
