//! Files that are served or embedded as they are: the inbox component, its demonstration, the style sheet and the script
//! of the pages, and the templates of the pages.

use std::borrow::Cow;
use std::path::Path;

use axum::Router;
use axum::extract::Path as UrlPath;
use axum::http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::problem::{Answer, Problem};

const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// The path, the media type and the content of each file that other sites may load.
const ASSETS: [(&str, &str, &str); 6] = [
    ("/inbox.js", JAVASCRIPT, include_str!("assets/inbox.js")),
    ("/inbox/demo", HTML, include_str!("assets/inbox_demo.html")),
    ("/inbox/demo.js", JAVASCRIPT, include_str!("assets/inbox_demo.js")),
    ("/inbox/demo.css", CSS, include_str!("assets/inbox_demo.css")),
    ("/icon.svg", SVG, include_str!("assets/icon.svg")),
    // Browsers request this path for pages that name no icon, such as /openapi.json.
    ("/favicon.ico", SVG, include_str!("assets/icon.svg")),
];

/// A file of the pages. Debug builds read it from the source folder, so that an edited file is seen immediately.
pub struct Embedded {
    pub name: &'static str,
    embedded: &'static str,
    source: &'static str,
}

macro_rules! embedded {
    ($folder:literal, $name:literal) => {
        Embedded {
            name: $name,
            embedded: include_str!(concat!($folder, "/", $name)),
            source: concat!(env!("CARGO_MANIFEST_DIR"), "/src/ui/", $folder, "/", $name),
        }
    };
}

/// The style sheet of all pages.
pub const STYLE: Embedded = embedded!("assets", "pages.css");
/// The style sheet of the demo's page, which no other page loads.
pub const DEMO_STYLE: Embedded = embedded!("assets", "demo.css");
/// The script of all pages. Every page works without it.
pub const SCRIPT: Embedded = embedded!("assets", "pages.js");

/// The script of the template editor. It is not in the script of all pages, because only one page needs it.
pub const EDITOR: Embedded = embedded!("assets", "editor.js");

/// The templates of the pages.
pub const PAGES: &[Embedded] = &[
    embedded!("pages", "frame.html"),
    embedded!("pages", "problem.html"),
    embedded!("pages", "rows.html"),
    embedded!("pages", "confirm.html"),
    embedded!("pages", "demo.html"),
    embedded!("pages", "go_live.html"),
    embedded!("pages", "overview.html"),
    embedded!("pages", "notifications.html"),
    embedded!("pages", "notification.html"),
    embedded!("pages", "parked.html"),
    embedded!("pages", "jobs.html"),
    embedded!("pages", "job.html"),
    embedded!("pages", "fields.html"),
    embedded!("pages", "templates.html"),
    embedded!("pages", "template.html"),
    embedded!("pages", "versions.html"),
    embedded!("pages", "users.html"),
    embedded!("pages", "user.html"),
    embedded!("pages", "member_lists.html"),
    embedded!("pages", "member_list.html"),
    embedded!("pages", "suppressions.html"),
    embedded!("pages", "audit.html"),
    embedded!("pages", "event_types.html"),
    embedded!("pages", "event_type.html"),
    embedded!("pages", "event_type_form.html"),
    embedded!("pages", "system.html"),
    embedded!("pages", "keys.html"),
    embedded!("pages", "secret.html"),
    embedded!("pages", "glossary.html"),
    embedded!("pages", "providers.html"),
    embedded!("pages", "provider.html"),
    embedded!("pages", "catalogue.html"),
    embedded!("pages", "provider_form.html"),
    embedded!("pages", "provider_made.html"),
    embedded!("pages", "provider_test.html"),
    embedded!("pages", "callback.html"),
    embedded!("pages", "entities.html"),
    embedded!("pages", "entity.html"),
    embedded!("pages", "resend.html"),
    embedded!("pages", "captured.html"),
    embedded!("pages", "blocks.html"),
    embedded!("pages", "content.html"),
];

impl Embedded {
    pub fn text(&self) -> Cow<'static, str> {
        let edited = if cfg!(debug_assertions) { std::fs::read_to_string(Path::new(self.source)).ok() } else { None };
        edited.map_or(Cow::Borrowed(self.embedded), Cow::Owned)
    }

    /// The path with a hash of the content, so that browsers may keep the file for ever.
    pub fn path(&self) -> String {
        format!("/assets/{:016x}/{}", hash(self.text().as_bytes()), self.name)
    }
}

/// FNV-1a. The hash distinguishes versions of our own files and is not for security.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The routes of the files. Any site may load the files of the inbox, because they contain only code that is the same
/// for every visitor.
pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let own = Router::new().route("/assets/{hash}/{name}", get(own_file));
    ASSETS.into_iter().fold(own, |router, (path, kind, text)| {
        let headers = [
            (CONTENT_TYPE, kind),
            (CACHE_CONTROL, "public, max-age=300"),
            (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
            (HeaderName::from_static("cross-origin-resource-policy"), "cross-origin"),
        ];
        router.route(path, get(move || async move { (headers, text).into_response() }))
    })
}

/// Serves a file of the pages. If the URL has the hash of another version, another process made the page, and the
/// browser must not keep the file.
async fn own_file(UrlPath((hash, name)): UrlPath<(String, String)>) -> Answer {
    let known = [(&STYLE, CSS), (&DEMO_STYLE, CSS), (&SCRIPT, JAVASCRIPT), (&EDITOR, JAVASCRIPT)]
        .into_iter()
        .find(|(file, _)| file.name == name);
    let Some((file, kind)) = known else { return Err(Problem::not_found("file").into()) };
    let is_current = file.path() == format!("/assets/{hash}/{name}");
    let kept = if is_current { "public, max-age=31536000, immutable" } else { "no-cache" };
    Ok(([(CONTENT_TYPE, kind), (CACHE_CONTROL, kept)], file.text()).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_and_script_stay_small() {
        assert!(STYLE.embedded.len() <= 24_000, "{} bytes of CSS", STYLE.embedded.len());
        assert!(SCRIPT.embedded.len() <= 12_000, "{} bytes of JavaScript", SCRIPT.embedded.len());
    }
}
