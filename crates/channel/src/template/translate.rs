//! Translates the parts of a template for the engine. Layout and partials are inserted here, so the engine never loads
//! a file. Each tag gets a number, so that error messages can name its line and column.

use super::expression::{Expression, Names, Read, expression};
use super::lexer::{Fault, Kind, Piece, Tag, Token, pieces};
use super::{Place, Problem, Source, Warning, limits};

/// The output form of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Plain text: values are printed unchanged.
    Text,
    /// HTML: values are escaped.
    Html,
}

/// A tag of a template.
#[derive(Debug, Clone)]
pub(super) struct TagInfo {
    /// The tag as it is written in the template.
    pub(super) source: String,
    pub(super) place: Place,
    pub(super) reads: Vec<Read>,
}

/// A part that is translated for the engine.
#[derive(Debug, Default)]
pub(super) struct Code {
    pub(super) text: String,
    /// The tags in order: byte offset in the translated text, and number of the tag.
    pub(super) tags: Vec<(usize, usize)>,
}

impl Code {
    /// The number of the tag at a byte offset.
    pub(super) fn tag_at(&self, byte: usize) -> Option<usize> {
        let behind = self.tags.partition_point(|(begin, _)| *begin <= byte);
        self.tags.get(behind.checked_sub(1)?).map(|(_, tag)| *tag)
    }
}

/// An open block of a part.
#[derive(Debug, PartialEq, Eq)]
enum Open {
    If { branches: usize, ended: bool },
    For { ended: bool },
}

/// Translates all parts of one template.
pub(super) struct Translator<'a> {
    source: &'a Source,
    pub(super) names: Names,
    pub(super) tags: Vec<TagInfo>,
    pub(super) warnings: Vec<Warning>,
    code: Code,
    form: Form,
    open: Vec<Open>,
    /// The partials that include the current text, from the outside in.
    inside: Vec<String>,
    /// The name and text of the part to insert at `{{ content }}`. `None` after it was inserted.
    content: Option<(&'a str, &'a str)>,
}

/// The source text of a part with its name, for places in error messages.
struct Text<'a> {
    part: &'a str,
    text: &'a str,
    lines: Vec<usize>,
    has_scripts: bool,
}

impl<'a> Text<'a> {
    fn new(part: &'a str, text: &'a str) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect();
        Self { part, text, lines, has_scripts: last(text, "<script").is_some() }
    }

    fn place(&self, at: usize) -> Place {
        let line = self.lines.partition_point(|begin| *begin <= at);
        let begin = line.checked_sub(1).map_or(0, |line| self.lines[line]);
        let column = self.text.get(begin..at).map_or(0, |text| text.chars().count()) + 1;
        Place { part: self.part.to_owned(), line, column }
    }

    fn problem(&self, fault: Fault) -> Problem {
        Problem::at(self.place(fault.at), fault.message)
    }

    fn problem_at(&self, at: usize, message: impl Into<String>) -> Problem {
        Problem::at(self.place(at), message)
    }
}

impl<'a> Translator<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Self {
            source,
            names: Names::default(),
            tags: Vec::new(),
            warnings: Vec::new(),
            code: Code::default(),
            form: Form::Text,
            open: Vec::new(),
            inside: Vec::new(),
            content: None,
        }
    }

    /// Translates a part.
    pub(super) fn part(&mut self, part: &str, text: &'a str, form: Form) -> Result<Code, Problem> {
        self.form = form;
        self.text(part, text)?;
        Ok(std::mem::take(&mut self.code))
    }

    /// Translates HTML in its layout.
    pub(super) fn in_layout(&mut self, layout: &'a str, html: &'a str) -> Result<Code, Problem> {
        let Some(text) = self.source.parts.get(layout) else {
            return Err(Problem::of_part("layout", format!("there is no layout {layout:?}; create it first")));
        };
        self.form = Form::Html;
        self.content = Some(("html", html));
        let name = format!("layout {layout}");
        self.text(&name, text)?;
        if self.content.take().is_some() {
            return Err(Problem::of_part(
                name,
                "the layout has no {{ content }}; add it where the template is to be inserted",
            ));
        }
        Ok(std::mem::take(&mut self.code))
    }

    /// Translates a string that consists of `{{ name|json }}`: the value itself is inserted. `None` for any other
    /// string.
    pub(super) fn inserted(&mut self, part: &str, text: &'a str) -> Result<Option<Code>, Problem> {
        let it = Text::new(part, text);
        let all = pieces(text).map_err(|fault| it.problem(fault))?;
        let [Piece::Print(tag)] = &all[..] else { return Ok(None) };
        let [value @ .., pipe, json] = &tag.tokens[..] else { return Ok(None) };
        if !pipe.is("|") || !json.is("json") {
            return Ok(None);
        }
        let value = self.expression(&it, value, pipe.at)?;
        let number = self.tag(&it, tag, value.reads);
        self.code.text.push_str(&format!("{{{{ ({})|inserted({number}) }}}}", value.code));
        Ok(Some(std::mem::take(&mut self.code)))
    }

    fn text(&mut self, part: &str, text: &'a str) -> Result<(), Problem> {
        let it = Text::new(part, text);
        let outside = self.open.len();
        for piece in pieces(text).map_err(|fault| it.problem(fault))? {
            match piece {
                Piece::Text(text) => self.literal(text),
                Piece::Raw { left, right, text } => self.block(left, right, |this| {
                    this.literal(text);
                    Ok(())
                })?,
                Piece::Comment { left, right } => self.code.text.push_str(&format!("{{#{left} {right}#}}")),
                Piece::Print(tag) => self.print(&it, &tag)?,
                Piece::Block(tag) => self.statement(&it, &tag, outside)?,
            }
            self.check_size(&it)?;
        }
        if self.open.len() > outside {
            let end = if matches!(self.open.last(), Some(Open::For { .. })) { "endfor" } else { "endif" };
            return Err(it.problem_at(text.len(), format!("{{% {end} %}} is missing")));
        }
        Ok(())
    }

    fn check_size(&self, it: &Text<'_>) -> Result<(), Problem> {
        let too_long = self.code.text.len() > limits::EXPANDED_BYTES;
        if too_long || self.tags.len() > limits::TAGS {
            let (bytes, tags) = (limits::EXPANDED_BYTES, limits::TAGS);
            let message = format!(
                "the part is too large; with its layout and partials, at most {bytes} bytes and {tags} tags are allowed"
            );
            return Err(Problem::of_part(it.part, message));
        }
        Ok(())
    }

    /// Writes text so that the engine does not read it as a tag, regardless of the text that follows.
    fn literal(&mut self, text: &str) {
        let bytes = text.as_bytes();
        for (i, c) in text.char_indices() {
            let opens = c == '{' && bytes.get(i + 1).is_none_or(|next| matches!(next, b'{' | b'%' | b'#'));
            if opens { self.code.text.push_str("{{ \"{\" }}") } else { self.code.text.push(c) }
        }
    }

    /// Writes text in place of a block tag, with that tag's whitespace control.
    fn block(
        &mut self,
        left: &str,
        right: &str,
        inside: impl FnOnce(&mut Self) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        self.code.text.push_str(&format!("{{%{left} if 1 +%}}"));
        inside(self)?;
        self.code.text.push_str(&format!("{{%+ endif {right}%}}"));
        Ok(())
    }

    fn tag(&mut self, it: &Text<'_>, tag: &Tag<'_>, reads: Vec<Read>) -> usize {
        let number = self.tags.len();
        self.code.tags.push((self.code.text.len(), number));
        self.tags.push(TagInfo { source: tag.source.to_owned(), place: it.place(tag.at), reads });
        number
    }

    fn expression(&mut self, it: &Text<'_>, tokens: &[Token<'_>], end: usize) -> Result<Expression, Problem> {
        for (i, token) in tokens.iter().enumerate().skip(1) {
            let filter = tokens[i - 1].is("|");
            if filter && token.is("nl2br") && self.form == Form::Text {
                return Err(it.problem_at(token.at, "the filter nl2br is not allowed here; it is allowed in html only"));
            }
            if filter && token.is("safe") && self.form == Form::Html {
                self.warn(
                    it.place(token.at),
                    "the filter safe prints the value without escaping; use it only for values that no user can enter",
                );
            }
        }
        expression(tokens, end, &mut self.names).map_err(|fault| it.problem(fault))
    }

    fn warn(&mut self, place: Place, message: impl Into<String>) {
        if self.warnings.len() < limits::WARNINGS {
            let (line, column) = (Some(place.line), Some(place.column));
            let message = message.into();
            self.warnings.push(Warning { part: place.part, line, column, message, placeholder: None });
        }
    }

    fn print(&mut self, it: &Text<'_>, tag: &Tag<'_>) -> Result<(), Problem> {
        if let [only] = &tag.tokens[..]
            && only.kind == Kind::Name
            && only.text.eq_ignore_ascii_case("content")
            && it.part.starts_with("layout ")
            && let Some((part, html)) = self.content.take()
        {
            let or_keep = |mark: &'static str| if mark.is_empty() { "+" } else { mark };
            return self.block(or_keep(tag.left), or_keep(tag.right), |this| this.text(part, html));
        }
        let end = tag.at + tag.source.len() - 2;
        let value = self.expression(it, &tag.tokens, end)?;
        let before = &it.text[..tag.at];
        if self.form == Form::Html
            && let Some(message) = unsafe_place(before, it.has_scripts)
        {
            return Err(it.problem_at(tag.at, message));
        }
        let link = usize::from(self.form == Form::Html && is_target(before));
        let number = self.tag(it, tag, value.reads);
        let (left, right) = (tag.left, tag.right);
        self.code.text.push_str(&format!("{{{{{left} ({})|shown({number},{link}) {right}}}}}", value.code));
        Ok(())
    }

    fn statement(&mut self, it: &Text<'_>, tag: &Tag<'_>, outside: usize) -> Result<(), Problem> {
        let Some((word, rest)) = tag.tokens.split_first() else {
            return Err(it.problem_at(tag.at, "the tag is empty; write a name or a keyword in it"));
        };
        let end = tag.at + tag.source.len() - 2;
        match word.text {
            "if" => {
                let value = self.expression(it, rest, end)?;
                self.open(it, tag, Open::If { branches: 1, ended: false })?;
                self.emit(it, tag, value, |code| format!("if {code}"));
            }
            "elif" => {
                self.branch(outside).map_err(|message| it.problem_at(tag.at, message))?;
                let value = self.expression(it, rest, end)?;
                self.emit(it, tag, value, |code| format!("elif {code}"));
            }
            "for" => self.begin_for(it, tag, rest, end)?,
            "include" => self.include(it, tag, rest)?,
            "else" | "endif" | "endfor" => {
                if let Some(more) = rest.first() {
                    return Err(it.problem_at(more.at, format!("`{}` takes no arguments; remove them", word.text)));
                }
                self.close(word.text, outside).map_err(|message| it.problem_at(tag.at, message))?;
                self.emit(it, tag, Expression::default(), |_| word.text.to_owned());
            }
            other => {
                let known = "if, elif, else, endif, for, endfor, include, raw, endraw";
                return Err(it.problem_at(word.at, format!("`{other}` is not a tag; allowed are {known}")));
            }
        }
        Ok(())
    }

    /// The innermost open block of the current text. Blocks before index `outside` belong to the text that includes it.
    fn innermost(&mut self, outside: usize) -> Option<&mut Open> {
        self.open.get_mut(outside..).and_then(<[Open]>::last_mut)
    }

    fn branch(&mut self, outside: usize) -> Result<(), String> {
        match self.innermost(outside) {
            Some(Open::If { branches, ended: false }) if *branches < limits::BRANCHES => {
                *branches += 1;
                Ok(())
            }
            Some(Open::If { ended: false, .. }) => Err(format!("the `if` has more than {} branches", limits::BRANCHES)),
            _ => Err("`elif` has no `if` before it".to_owned()),
        }
    }

    /// Handles `else`, `endif` or `endfor`. The variable of a loop is not available in the loop's `else`.
    fn close(&mut self, word: &str, outside: usize) -> Result<(), &'static str> {
        let in_items = match (word, self.innermost(outside)) {
            ("else", Some(Open::If { ended, .. })) if !*ended => {
                *ended = true;
                return Ok(());
            }
            ("else", Some(Open::For { ended })) if !*ended => {
                *ended = true;
                self.names.end_loop();
                return Ok(());
            }
            ("endif", Some(Open::If { .. })) => false,
            ("endfor", Some(Open::For { ended })) => !*ended,
            ("else", _) => return Err("`else` has no `if` or `for` before it"),
            ("endif", _) => return Err("`endif` has no `if` before it"),
            _ => return Err("`endfor` has no `for` before it"),
        };
        if in_items {
            self.names.end_loop();
        }
        self.open.pop();
        Ok(())
    }

    fn emit(&mut self, it: &Text<'_>, tag: &Tag<'_>, value: Expression, code: impl FnOnce(&str) -> String) {
        self.tag(it, tag, value.reads);
        let (left, right) = (tag.left, tag.right);
        self.code.text.push_str(&format!("{{%{left} {} {right}%}}", code(&value.code)));
    }

    fn check_depth(&self, it: &Text<'_>, tag: &Tag<'_>) -> Result<(), Problem> {
        if self.open.len() + self.inside.len() >= limits::DEPTH {
            let message = format!(
                "`if`, `for` and `include` are nested more than {0} levels deep; at most {0} are allowed",
                limits::DEPTH
            );
            return Err(it.problem_at(tag.at, message));
        }
        Ok(())
    }

    fn open(&mut self, it: &Text<'_>, tag: &Tag<'_>, open: Open) -> Result<(), Problem> {
        self.check_depth(it, tag)?;
        self.open.push(open);
        Ok(())
    }

    fn begin_for(&mut self, it: &Text<'_>, tag: &Tag<'_>, rest: &[Token<'_>], end: usize) -> Result<(), Problem> {
        let [variable, word, list @ ..] = rest else {
            return Err(it.problem_at(tag.at, "the `for` tag is malformed; write {% for item in items %}"));
        };
        if variable.kind != Kind::Name || !word.is("in") || super::flat_name(variable.text).is_empty() {
            return Err(it.problem_at(tag.at, "the `for` tag is malformed; write {% for item in items %}"));
        }
        if list.iter().any(|token| token.is("if")) {
            return Err(it.problem_at(tag.at, "the `for` tag has a condition; put an `if` inside the loop instead"));
        }
        let value = self.expression(it, list, end)?;
        self.open(it, tag, Open::For { ended: false })?;
        let number = self.tags.len();
        let variable = self.names.begin_loop(variable.text);
        self.emit(it, tag, value, |code| format!("for {variable} in ({code})|each({number})"));
        Ok(())
    }

    fn include(&mut self, it: &Text<'_>, tag: &Tag<'_>, rest: &[Token<'_>]) -> Result<(), Problem> {
        let [Token { kind: Kind::Text, text: name, .. }] = rest else {
            return Err(it.problem_at(
                tag.at,
                "`include` needs the name of one partial in quotes, such as {% include \"footer\" %}",
            ));
        };
        let name = &name[1..name.len() - 1];
        let Some(text) = self.source.parts.get(name) else {
            return Err(it.problem_at(tag.at, format!("there is no partial {name:?}; create it first")));
        };
        if self.inside.iter().any(|outer| outer == name) {
            return Err(it.problem_at(tag.at, format!("the partial {name:?} includes itself; remove the include")));
        }
        self.check_depth(it, tag)?;
        self.inside.push(name.to_owned());
        self.block(tag.left, tag.right, |this| this.text(&format!("partial {name}"), text))?;
        self.inside.pop();
        Ok(())
    }
}

/// The reason why no value may follow this HTML: escaping would not be enough there. `None` if a value is allowed.
fn unsafe_place(before: &str, has_scripts: bool) -> Option<&'static str> {
    if before.trim_end().ends_with('=') && before.rfind('<') > before.rfind('>') {
        return Some("the value of an attribute is not in quotes; put it in quotes");
    }
    (has_scripts && last(before, "<script") > last(before, "</script"))
        .then_some("a placeholder is not allowed inside a script")
}

/// The byte offset of the last occurrence of a word. Upper and lower case are the same.
fn last(text: &str, word: &str) -> Option<usize> {
    text.as_bytes().windows(word.len()).rposition(|at| at.eq_ignore_ascii_case(word.as_bytes()))
}

/// Whether a value that follows this HTML is the target of a link or the address of an image.
fn is_target(before: &str) -> bool {
    let Some(before) = before.strip_suffix(['"', '\'']).and_then(|before| before.trim_end().strip_suffix('=')) else {
        return false;
    };
    let name = before.trim_end().rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or("");
    ["href", "src", "action", "formaction", "background", "poster", "cite", "data"]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known))
}
