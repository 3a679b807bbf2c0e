//! Asset files: the inbox component, a page that demonstrates it, and the style and script of the pages.

use axum::Router;
use axum::http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use axum::response::IntoResponse;
use axum::routing::get;

/// The path, the media type and the content of each file.
const ASSETS: [(&str, &str, &str); 8] = [
    ("/inbox.js", "text/javascript; charset=utf-8", include_str!("assets/inbox.js")),
    ("/inbox/demo", "text/html; charset=utf-8", include_str!("assets/inbox_demo.html")),
    ("/inbox/demo.js", "text/javascript; charset=utf-8", include_str!("assets/inbox_demo.js")),
    ("/inbox/demo.css", "text/css; charset=utf-8", include_str!("assets/inbox_demo.css")),
    ("/sign-in.js", "text/javascript; charset=utf-8", include_str!("assets/sign_in.js")),
    ("/sign-in.css", "text/css; charset=utf-8", include_str!("assets/sign_in.css")),
    ("/icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
    // Browsers request this path for pages that name no icon, such as /openapi.json.
    ("/favicon.ico", "image/svg+xml", include_str!("assets/icon.svg")),
];

/// The routes of the asset files. Any site may load them, because they contain only code that is the same for every
/// visitor.
pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    ASSETS.into_iter().fold(Router::new(), |router, (path, kind, text)| {
        let headers = [
            (CONTENT_TYPE, kind),
            (CACHE_CONTROL, "public, max-age=300"),
            (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
            (HeaderName::from_static("cross-origin-resource-policy"), "cross-origin"),
        ];
        router.route(path, get(move || async move { (headers, text).into_response() }))
    })
}
