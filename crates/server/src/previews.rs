//! Keeps the HTML of previewed mails until the iframe of the page requests it. An iframe cannot post a draft, and the
//! content security policy of the page forbids the inline styles of mails, so the HTML needs a URL of its own.

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};

/// The maximum number of bytes that are kept. The oldest mails are dropped first.
const KEPT_BYTES: usize = 8 * 1024 * 1024;

/// The key of a preview: the tenant, the person and the id of the template.
pub type Of<'a> = (i32, &'a str, &'a str);

struct Mail {
    tenant: i32,
    actor: String,
    template: String,
    hash: u64,
    html: String,
}

impl Mail {
    fn is_of(&self, (tenant, actor, template): Of<'_>) -> bool {
        self.tenant == tenant && self.actor == actor && self.template == template
    }
}

/// The newest preview of each person and template. It is in the memory of one process: if another process gets the
/// request of the iframe, it answers that the preview is gone.
#[derive(Default)]
pub struct Previews(Mutex<VecDeque<Mail>>);

impl Previews {
    /// Keeps a mail in place of the previous preview, and returns the hash for the URL of the iframe.
    pub fn keep(&self, of: Of<'_>, html: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        html.hash(&mut hasher);
        let hash = hasher.finish();
        let mut mails = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        mails.retain(|mail| !mail.is_of(of));
        let (tenant, actor, template) = (of.0, of.1.to_owned(), of.2.to_owned());
        mails.push_back(Mail { tenant, actor, template, hash, html: html.to_owned() });
        while mails.iter().map(|mail| mail.html.len()).sum::<usize>() > KEPT_BYTES {
            mails.pop_front();
        }
        hash
    }

    pub fn find(&self, of: Of<'_>, hash: u64) -> Option<String> {
        let mails = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        mails.iter().find(|mail| mail.is_of(of) && mail.hash == hash).map(|mail| mail.html.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_mail_of_a_person_and_template_is_kept_within_the_limit() {
        let previews = Previews::default();
        let old = previews.keep((1, "ada", "t"), "old");
        let new = previews.keep((1, "ada", "t"), "new");
        assert_eq!(
            (previews.find((1, "ada", "t"), old), previews.find((1, "ada", "t"), new)),
            (None, Some("new".into()))
        );
        for other in [(2, "ada", "t"), (1, "bob", "t"), (1, "ada", "u")] {
            assert_eq!(previews.find(other, new), None);
        }
        for n in 0..9 {
            previews.keep((1, "ada", &n.to_string()), &"x".repeat(KEPT_BYTES / 8));
        }
        assert_eq!(previews.find((1, "ada", "t"), new), None);
        assert!(previews.0.lock().unwrap().len() <= 8);
    }
}
